"""Compile and time modules on this machine: `worker` is the process that does it."""
