"""What every device does, as a graph of tasks, and the files that carry it."""
