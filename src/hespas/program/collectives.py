"""Define the collectives of programs, systems, traces, algorithms and simulations."""

from __future__ import annotations

from enum import Enum


class CollectiveKind(Enum):
    """A kind of collective; values are MSCCL's ``coll`` names where they exist."""

    ALL_REDUCE = "allreduce"
    ALL_GATHER = "allgather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "alltoall"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    CUSTOM = "custom"
    GATHER = "gather"
    SCATTER = "scatter"
    BARRIER = "barrier"
    REDUCE_SCATTER_BLOCK = "reduce_scatter_block"

    @property
    def text(self) -> str:
        """The kind in options and reports, such as ``all_reduce``."""
        return self.name.lower()

    @property
    def base(self) -> CollectiveKind:
        """The kind whose algorithms run it.

        A reduce-scatter in blocks is a reduce-scatter.
        """
        is_block = self is CollectiveKind.REDUCE_SCATTER_BLOCK
        return CollectiveKind.REDUCE_SCATTER if is_block else self

    @property
    def option(self) -> str:
        """The kind in ASTRA-sim's files, such as ``all-reduce``."""
        return self.text.replace("_", "-")


COMMON_KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)
"""The collectives whose algorithm a system chooses: those of ASTRA-sim."""
