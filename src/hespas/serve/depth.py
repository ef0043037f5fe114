"""Steps of deep models from those of two shallower ones.

A model's layers repeat, but for some at its front. What a step takes then grows by the same with
each round of them, so that two depths give any other one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from fractions import Fraction

from msgspec.structs import asdict, replace

from hespas.base.frozen import frozen
from hespas.prediction.figures.schema import BoundShares, RunReport

_LEAST = 4
"""The fewest layers that are predicted, and between the two depths: fewer end otherwise."""
_GAIN = 2
"""How many times as many layers as both depths a model has, for which two steps are less work."""


@frozen
class Depths:
    """A model's predicted depths, and its own, in layers."""

    shallow: int
    deep: int
    layers: int

    def grown(self, shallow: float, deep: float) -> float:
        """Extrapolate linearly to the model's depth."""
        rounds = Fraction(self.layers - self.shallow, self.deep - self.shallow)
        return shallow + float(rounds) * (deep - shallow)


def depths_of(kinds: Sequence[Hashable]) -> Depths | None:
    """Choose two depths that a model's steps follow from.

    None where predicting all layers costs no more. Both have the front of the model, and end in its
    round of kinds where the model does.

    >>> depths_of(["dense"] * 3 + ["routed"] * 58)
    Depths(shallow=7, deep=11, layers=61)
    >>> depths_of(["window", "full"] * 18)
    Depths(shallow=4, deep=8, layers=36)
    >>> depths_of(["dense"] * 16) is None
    True
    """
    layers, candidates = len(kinds), list[Depths]()
    for period in range(1, layers // 2):
        differing = [
            layer for layer in range(layers - period) if kinds[layer] != kinds[layer + period]
        ]
        front = differing[-1] + 1 if differing else 0
        least = front + max(_LEAST, period)
        shallow = least + (layers - least) % period
        step = period * -(-_LEAST // period)
        candidates.append(Depths(shallow=shallow, deep=shallow + step, layers=layers))
    best = min(candidates, key=lambda each: each.deep, default=None)
    if best is None or _GAIN * (best.shallow + best.deep) > layers:
        return None
    return best


def deepened(shallow: RunReport, deep: RunReport, depths: Depths) -> RunReport:
    """Extrapolate two depths' reports to the model's depth."""
    step_s = depths.grown(shallow.step_time_s, deep.step_time_s)
    peak = depths.grown(shallow.peak_memory_bytes, deep.peak_memory_bytes)
    bounds = {
        name: depths.grown(
            getattr(shallow.bound, name) * shallow.step_time_s, share * deep.step_time_s
        )
        / step_s
        for name, share in asdict(deep.bound).items()
    }
    times_s = {
        name: depths.grown(getattr(shallow, name), getattr(deep, name))
        for name in ("compute_s", "communication_s")
    }
    per_op = {
        kind: replace(row, time_s=depths.grown(shallow.per_op[kind].time_s, row.time_s))
        for kind, row in deep.per_op.items()
        if kind in shallow.per_op
    }
    energy_j = deep.energy_j
    if shallow.energy_j is not None and deep.energy_j is not None:
        energy_j = depths.grown(shallow.energy_j, deep.energy_j)
    return replace(
        deep,
        step_time_s=step_s,
        peak_memory_bytes=round(peak),
        energy_j=energy_j,
        per_op={**deep.per_op, **per_op},
        bound=BoundShares(**bounds),
        **times_s,
    )
