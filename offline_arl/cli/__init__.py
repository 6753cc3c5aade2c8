"""The command line: parses, calls `offline_arl.workflows`, renders. Commands import what they need when they run."""

from offline_arl.cli.entry import app, main

__all__ = ["app", "main"]
