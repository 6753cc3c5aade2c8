"""Exports of observability platforms."""
