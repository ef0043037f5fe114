"""Random numbers."""

from __future__ import annotations

from hespas.cost.rules.sizes import traffic
from hespas.cost.work import Work
from hespas.program.program import Op
from hespas.program.types import tensors


def rng(op: Op) -> Work:
    """One transcendental for each number made (XLA's HloCostAnalysis).

    The bounds and the generator's state are read, numbers and new state are written.
    """
    made = [kind for value in op.results for kind in tensors(value.type)]
    return traffic(op, transcendentals=sum(kind.element_count for kind in made))


RULES = {
    "rng": rng,
    "rng_bit_generator": rng,
    "xla.rng_get_and_update_state": rng,
}
