"""From measurements to presets: the fits, and the files that they make."""
