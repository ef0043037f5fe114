"""From regions and a device to durations."""
