"""Random numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hespas.program.operations.sizes import arithmetic_type, first_result, traffic
from hespas.program.operations.traits import Category, Traits
from hespas.program.types import tensors
from hespas.program.work import Work, flop_counts

if TYPE_CHECKING:
    from hespas.program.program import Op


def rng(op: Op) -> Work:
    """One transcendental for each number made (XLA's HloCostAnalysis).

    The bounds and the generator's state are read, numbers and new state are written.
    """
    made = [kind for value in op.results for kind in tensors(value.type)]
    return traffic(op, transcendentals=sum(kind.element_count for kind in made))


# Threefry 2x32 makes two numbers with 20 rounds of add, rotate (2 shifts, 1 or) and xor, after 2
# additions of the key; 5 times in between it adds the key and a counter, 3 additions.
# Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
_THREEFRY_FLOPS_PER_PAIR = 20 * 5 + 2 + 5 * 3


def threefry(op: Op) -> Work:
    """Count the integer operations of Threefry 2x32, for each pair of numbers made."""
    made = first_result(op)
    name = arithmetic_type(made.element)
    return traffic(op, flops=flop_counts(name, made.element_count * _THREEFRY_FLOPS_PER_PAIR))


_RANDOM = Traits(category=Category.RANDOM, work=rng, kernel_name="random numbers")

TRAITS = {
    "rng": replace(_RANDOM, fusion_rank=6),
    "rng_bit_generator": replace(_RANDOM, fusion_rank=7),
    "xla.rng_get_and_update_state": replace(_RANDOM, kernel_name=""),
}
