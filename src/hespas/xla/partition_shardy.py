"""Partition with Shardy's own passes alone: for more devices than XLA's CPU client takes."""

from __future__ import annotations

from hespas.errors import ProgramError
from hespas.xla.partition_wire import PartitionRequest


def partition_with_shardy(source: bytes, request: PartitionRequest) -> bytes:
    """Return the partitioned program as text."""
    raise ProgramError("not built", mend=f"{len(source)} {request.name}")
