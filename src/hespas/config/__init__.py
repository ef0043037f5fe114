"""The run configuration: the documented JSON file, checked key by key."""
