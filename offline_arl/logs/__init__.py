"""Log adapters: from the records of a log file to trajectories.

`records` cuts files into raw records, `detect` finds the adapter, and one module a format converts a record.
"""
