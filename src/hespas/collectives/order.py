"""What happens before what, so that accesses to one chunk that nothing orders are found.

Each threadblock has a vector clock: of every threadblock, how many steps have surely ended.
A step takes over the clocks of what it waits for; two accesses race if neither's threadblock
knew of the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Clock = NDArray[np.int32]


class Access(NamedTuple):
    """A threadblock's number, and its step."""

    block: int
    step: int


class Race(NamedTuple):
    """An earlier access that nothing orders before this one, and whether it wrote."""

    other: Access
    wrote: bool


@dataclass(slots=True)
class _Slot:
    written: Access | None = None
    read: list[Access] = field(default_factory=list[Access])


class Order:
    """The clocks of ``count`` threadblocks, and the last accesses to every chunk."""

    def __init__(self, count: int) -> None:
        self._clocks = np.zeros((count, count), dtype=np.int32)
        self._slots: dict[object, _Slot] = {}

    def snapshot(self, block: int) -> Clock:
        """Return what a threadblock knows now."""
        return self._clocks[block].copy()

    def learn(self, block: int, known: Clock) -> None:
        """Have a threadblock know what another knew."""
        np.maximum(self._clocks[block], known, out=self._clocks[block])

    def end_step(self, block: int, step: int) -> None:
        """Note that a threadblock has ended a step."""
        self._clocks[block, block] = step + 1

    def read(self, access: Access, slot: object) -> Race | None:
        """Note that a step reads a chunk; return the write that races with it."""
        found = self._slots.setdefault(slot, _Slot())
        found.read.append(access)
        return self._race(access, found.written, wrote=True)

    def write(self, access: Access, slot: object) -> Race | None:
        """Note that a step writes a chunk; return an access that races with it."""
        found = self._slots.setdefault(slot, _Slot())
        race = self._race(access, found.written, wrote=True)
        for other in found.read:
            race = race or self._race(access, other, wrote=False)
        found.written, found.read = access, []
        return race

    def last_write(self, slot: object) -> Access | None:
        """Return what wrote a chunk last."""
        found = self._slots.get(slot)
        return None if found is None else found.written

    def _race(self, access: Access, other: Access | None, *, wrote: bool) -> Race | None:
        if other is None or other == access:
            return None
        if self._clocks[access.block, other.block] > other.step:
            return None
        return Race(other, wrote)
