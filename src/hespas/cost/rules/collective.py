"""Collectives: only the arithmetic they do on each device.

What they carry between devices, and the memory traffic that goes with it, is priced by the
simulation of the network; counting bytes here too would pay for them twice.
"""

from __future__ import annotations

from hespas.cost.rules.movement import nothing
from hespas.cost.rules.sizes import arithmetic_type, tensor
from hespas.cost.work import Work, flop_counts, summed
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


RULES = {
    "all_gather": nothing,
    "all_reduce": all_reduce,
    "all_to_all": nothing,
    "collective_broadcast": nothing,
    "collective_permute": nothing,
    "cross-replica-sum": all_reduce,
    "ragged_all_to_all": nothing,
    "recv": nothing,
    "recv_done": nothing,
    "reduce_scatter": reduce_scatter,
    "send": nothing,
    "send_done": nothing,
}
