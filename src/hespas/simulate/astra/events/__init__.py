"""The event engine: every device and every message, in the order of ASTRA-sim's event queue.

`run.run_events` takes a folded job in which each device is a class of its own.
"""
