"""Spans of telemetry and tracing."""
