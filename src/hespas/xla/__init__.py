"""The only rooms that know jaxlib's internals, which change between releases."""
