"""Other programs: `process` runs one to its end, `worker` talks to one that stays."""
