"""``method: compiler``: what the compiler itself expects operations to take."""
