"""Chakra execution traces: write what each device does to files, and read it back."""

from __future__ import annotations

from hespas.schedule.chakra_reader import read_traces
from hespas.schedule.chakra_writer import write_traces

__all__ = ["read_traces", "write_traces"]
