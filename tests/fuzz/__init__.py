"""Damaged and impossible files for every reader of hespas: ``make fuzz``, docs/reliability.md."""
