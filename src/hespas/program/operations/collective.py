"""Collectives: only the arithmetic they do on each device.

What they carry between devices, and the memory traffic that goes with it, is priced by the
simulation of the network; counting bytes here too would pay for them twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hespas.program.operations.movement import nothing
from hespas.program.operations.sizes import arithmetic_type, tensor
from hespas.program.operations.traits import Category, Traits
from hespas.program.work import Work, flop_counts, summed

if TYPE_CHECKING:
    from hespas.program.program import Op


def all_reduce(op: Op) -> Work:
    """One FLOP for each element (XLA's HloCostAnalysis, whatever the reduction is)."""
    types = [tensor(op, value) for value in op.operands]
    return summed(
        Work(flops=flop_counts(arithmetic_type(kind.element), kind.element_count)) for kind in types
    )


def reduce_scatter(op: Op) -> Work:
    """Each of the device's N / p results sums p contributions: (p - 1) N / p, inputs - outputs.

    XLA's HloCostAnalysis counts nothing here.
    """
    pairs = zip(op.operands, op.results, strict=True)
    types = [(tensor(op, given), tensor(op, made)) for given, made in pairs]
    return summed(
        Work(
            flops=flop_counts(
                arithmetic_type(given.element), max(0, given.element_count - made.element_count)
            )
        )
        for given, made in types
    )


_COLLECTIVE = Traits(category=Category.COLLECTIVE, work=nothing, kernel_name="collective")
_SUM = replace(_COLLECTIVE, work=all_reduce)
_END = Traits(category=Category.HOST, work=nothing, has_effect=True)

TRAITS = {
    "all_gather": _COLLECTIVE,
    "all_reduce": _SUM,
    "all_to_all": _COLLECTIVE,
    "collective_broadcast": _COLLECTIVE,
    "collective_permute": _COLLECTIVE,
    "cross-replica-sum": _SUM,
    "ragged_all_to_all": _COLLECTIVE,
    "recv": replace(_COLLECTIVE, has_effect=True),
    "recv_done": _END,
    "reduce_scatter": replace(_COLLECTIVE, work=reduce_scatter),
    "send": replace(_COLLECTIVE, has_effect=True),
    "send_done": _END,
}
