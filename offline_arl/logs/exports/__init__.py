"""Exports: trajectories as records that other tools read as they are, and that the log adapters read back.

A format is a module with one `Exporter`. It says what a record looks like to the other tool; what that leaves out,
`exporter.record_of` finds by reading the record back, and puts into the slot (`logs.slots`).
"""
