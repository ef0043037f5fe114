"""When buffers are live in one order of all operations, those inside of loops and branches too.

XLA's buffer assignment runs through a program once: what is inside of a loop stands before the end
of the loop, once. A buffer of an outer block is live all through the regions of the operations
between its first and its last moment. The memory of a value that a loop carries is free inside,
from when the old value is read last until the new one is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hespas.memory.allocation import Span
from hespas.memory.buffers import Buffer
from hespas.memory.liveness import BlockLiveness, Inside


def spans_of(liveness: BlockLiveness, temporaries: Iterable[Buffer]) -> Iterator[Span]:
    """Yield the given temporaries of a block, and all those of the blocks inside of it."""
    walk = _Walk()
    walk.block(liveness, temporaries)
    for buffer, (first, last) in walk.live.items():
        yield Span(
            size_bytes=buffer.size_bytes, live=_without(first, last, walk.free.get(buffer, []))
        )


@dataclass(slots=True, kw_only=True)
class _Walk:
    """``live`` and ``free`` are intervals by buffer; ``owner`` says in whose memory one lies."""

    clock: int = 0
    live: dict[Buffer, tuple[int, int]] = field(default_factory=dict[Buffer, tuple[int, int]])
    free: dict[Buffer, list[tuple[int, int]]] = field(
        default_factory=dict[Buffer, list[tuple[int, int]]]
    )
    owner: dict[Buffer, Buffer] = field(default_factory=dict[Buffer, Buffer])

    def block(self, liveness: BlockLiveness, temporaries: Iterable[Buffer]) -> None:
        """Note when buffers of a block are live, from the present time on."""
        starts, ends = list[int](), list[int]()
        for moment in range(len(liveness.operations)):
            starts.append(self.clock)
            if moment in liveness.regions:
                self._inside(liveness.regions[moment])
            ends.append(self.clock)
            self.clock += 1
        for buffer in temporaries:
            self.live[buffer] = starts[buffer.written_at], ends[buffer.held_until]
        for old, new in liveness.replaced:
            if new.written_at > old.read_at + 1:
                free = ends[old.read_at] + 1, starts[new.written_at] - 1
                self.free.setdefault(self._owner(old), []).append(free)

    def _inside(self, inside: Inside) -> None:
        for block in inside.blocks:
            for given, (old, new) in zip(inside.given, block.carried, strict=False):
                self.owner[old] = self._owner(given)
                if new.actual is not old:
                    self.owner[new.actual] = self.owner[old]
            self.block(block, block.temporaries())

    def _owner(self, buffer: Buffer) -> Buffer:
        return self.owner.get(buffer.actual, buffer.actual)


def _without(first: int, last: int, free: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return what is left of an interval without those that are free; they do not overlap."""
    live = list[tuple[int, int]]()
    for start, end in sorted(free):
        if first <= start and end <= last:
            live.append((first, start - 1))
            first = end + 1
    live.append((first, last))
    return tuple([each for each in live if each[0] <= each[1]])
