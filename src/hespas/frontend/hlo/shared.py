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
        places = {each.id: at for at, each in enumerate(computation.instructions)}
        bare = type(computation)(instructions=computation.instructions)
        parts: list[Hashable] = [places.get(computation.root_id, -1)]
        for each in bare.instructions:
            parts.append(tuple([places.get(used, -1) for used in each.operand_ids]))
            called = each.called_computation_ids
            if called:
                parts.append(tuple(map(self.original, called)))
            for name in _LEFT_OUT:
                each.ClearField(name)
        return bare.SerializeToString(deterministic=True), *parts
