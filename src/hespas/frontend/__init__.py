"""From what compilers write to a `Program`."""
