"""The event engine: every device, every message, in the order of the reference simulator."""
