"""Other simulators, each in a process of its own."""
