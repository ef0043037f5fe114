"""Which computations are the same: XLA writes one for each fusion, hundreds of them alike."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

# What names an instruction or says where it came from.
_LEFT_OUT = (
    "id",
    "name",
    "metadata",
    "operand_ids",
    "called_computation_ids",
    "frontend_attributes",
    "original_value",
    "sharding",
    "statistics_viz",
)
_END = -1
"""Stands behind the operands of each instruction, and is the number of none."""


@dataclass(slots=True, kw_only=True)
class Originals:
    """Finds, for each computation, the first one that equals it but for names."""

    computations: Mapping[int, Any]
    _first: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    _of: dict[int, int] = field(default_factory=dict[int, int])

    def original(self, number: int) -> int:
        """Return the number of the first computation that equals this one."""
        known = self._of.get(number)
        if known is None:
            key = self._key(self.computations[number])
            known = self._of[number] = self._first.setdefault(key, number)
        return known

    def _key(self, computation: Any) -> Hashable:
        bare = type(computation)(instructions=computation.instructions)
        places: dict[int, int] = {}
        used: list[int] = []
        called: list[Hashable] = []
        for at, each in enumerate(bare.instructions):
            places[each.id] = at
            used += each.operand_ids
            used.append(_END)
            if each.called_computation_ids:
                called.append((at, *map(self.original, each.called_computation_ids)))
            clear = each.ClearField
            for name in _LEFT_OUT:
                clear(name)
        used.append(computation.root_id)
        parts = bare.SerializeToString(deterministic=True)
        return parts, tuple(map(places.get, used)), tuple(called)
