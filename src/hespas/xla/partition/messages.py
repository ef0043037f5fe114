"""The question to the partitioner's process (`hespas.base.question`)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

PARTITIONED_FILE = "partitioned.mlir"
MOST_OF_ONE_PROCESS = 2048
"""The most devices of a client of XLA's that needs no other process, as it believes."""


class Partitioner(StrEnum):
    """What applies the program's shardings."""

    XLA_SHARDY = "XLA's partitioner, with Shardy's propagation"
    XLA_GSPMD = "XLA's partitioner, with GSPMD's propagation"
    SHARDY = "Shardy's partitioner"


class PartitionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A program of so many devices; ``name`` is what messages call it."""

    name: str
    replicas: int
    partitions: int
    partitioner: Partitioner


class PartitionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The program is partitioned, and stands in `PARTITIONED_FILE`."""
