"""Trajectories: the record types, their checks, and the store that holds them.

The record types are in `schema`, the store in `store`, conditions and splits in `select`. Importing this package
loads neither polars nor anything else that is heavy.
"""
