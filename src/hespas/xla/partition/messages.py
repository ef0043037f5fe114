"""The request to the partitioner's process and its answer, as files in its directory."""

from __future__ import annotations

from enum import StrEnum

import msgspec

PROGRAM_FILE = "program.mlir"
REQUEST_FILE = "request.json"
ANSWER_FILE = "answer.json"
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
    """``refused`` says why the program was not partitioned; it is empty on success."""

    refused: str = ""
    hint: str = ""
