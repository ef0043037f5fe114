"""Other programs, each in a process of its own."""
