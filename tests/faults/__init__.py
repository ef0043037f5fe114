"""Faults of the machine while commands run: ``make faults``, docs/reliability.md."""
