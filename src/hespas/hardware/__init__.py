"""Descriptions of machines: devices, links and systems, and the presets that name them."""
