"""Allocate temporaries: in free outputs, or in one heap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hespas.base.frozen import frozen
from hespas.memory.buffers import THROUGHOUT, Buffer
from hespas.memory.liveness import BlockLiveness, Inside


@dataclass(slots=True, kw_only=True)
class OutputMemory:
    """An output's memory, and the moments of its uses.

    ``written_at`` is when the output itself is written. ``overwritten`` are buffers that the output
    may be written over, in the buffers' own memory.
    """

    size_bytes: int
    written_at: int
    used: int = 0
    overwritten: frozenset[Buffer] = frozenset()

    def use(self, first: int, last: int) -> None:
        """Mark the memory as used from one moment to another, both included."""
        self.used |= _bits(first, last)

    def is_free_for(self, buffer: Buffer, moments: int) -> bool:
        """Return whether the memory is free at ``moments``."""
        if buffer in self.overwritten:
            moments = _bits(buffer.written_at, buffer.held_until - 1)
        return not self.used & moments


def outside_outputs(temporaries: Iterable[Buffer], outputs: Sequence[OutputMemory]) -> list[Buffer]:
    """Place temporaries in the memory of outputs; return the remaining ones.

    Source: XLA's buffer assignment, which places buffers by size, the largest first, each into the
    smallest allocation made before that is large enough and free while the buffer is live. Outputs
    are placed in their order; of equal allocations the one made last is taken first.
    """
    memories = sorted(outputs, key=lambda memory: (memory.size_bytes, -memory.written_at))
    sizes = [memory.size_bytes for memory in memories]
    free = _FreeMemories(memories)
    overwriting = {buffer for memory in memories for buffer in memory.overwritten}
    remaining: list[Buffer] = []
    for buffer in sorted(temporaries, key=lambda temporary: -temporary.size_bytes):
        number = free.first_for(
            buffer, bisect_left(sizes, buffer.size_bytes), overwrites=buffer in overwriting
        )
        if number is None:
            remaining.append(buffer)
        else:
            free.use(number, buffer)
    return remaining


class _FreeMemories:
    """A binary tree over memories, with the moments of whole branches' use.

    Leaves stand behind the inner nodes; node ``n`` has the children ``2 n`` and ``2 n + 1``.
    """

    def __init__(self, memories: Sequence[OutputMemory]) -> None:
        self._memories = memories
        self._leaves = 1 << max(len(memories) - 1, 0).bit_length()
        self._used = [-1] * (2 * self._leaves)
        for number, memory in enumerate(memories):
            self._used[self._leaves + number] = memory.used
        for node in reversed(range(1, self._leaves)):
            self._used[node] = self._used[2 * node] & self._used[2 * node + 1]

    def first_for(self, buffer: Buffer, begin: int, *, overwrites: bool) -> int | None:
        """Return the first memory from ``begin`` on that a buffer can use."""
        moments = _bits(buffer.written_at, buffer.held_until)
        # A buffer that the memory's output is written over needs the memory for a moment less.
        least = _bits(buffer.written_at, buffer.held_until - 1) if overwrites else moments
        pending = [(1, 0, self._leaves)]
        while pending:
            node, first, count = pending.pop()
            if first + count <= begin or first >= len(self._memories) or self._used[node] & least:
                continue
            if count > 1:
                half = count // 2
                pending += ((2 * node + 1, first + half, half), (2 * node, first, half))
            elif self._memories[first].is_free_for(buffer, moments):
                return first
        return None

    def use(self, number: int, buffer: Buffer) -> None:
        """Put a buffer into a memory."""
        memory, node = self._memories[number], self._leaves + number
        memory.use(buffer.written_at, buffer.held_until)
        self._used[node] = memory.used
        while node > 1:
            node //= 2
            self._used[node] = self._used[2 * node] & self._used[2 * node + 1]


def _bits(first: int, last: int) -> int:
    """Return the bits of an interval of moments."""
    return (1 << (last - THROUGHOUT + 1)) - (1 << (first - THROUGHOUT))


ALIGNMENT_BYTES = 128
"""The alignment of a GPU's buffers."""

MOST_PLACED = 3000
"""The number of largest buffers that are placed: the time grows with its square."""


@frozen
class Span:
    """A buffer and its live intervals in order, ends included.

    Between the intervals other buffers may use its memory, as with a value that a loop carries.
    """

    size_bytes: int
    live: tuple[tuple[int, int], ...]

    @property
    def duration(self) -> int:
        """The buffer's live moments, first to last."""
        return self.live[-1][1] - self.live[0][0]


def packed_bytes(spans: Iterable[Span]) -> int:
    """Return the size of one allocation that holds all buffers, gaps included.

    Source: XLA's heap for known schedules (``GlobalDecreasingSizeBestFitHeap``). Buffers are placed
    one after another, the largest first and of equal ones the longest-lived, or the other way
    round, whichever takes less memory; each goes into the smallest gap that buffers live at the
    same time leave, or behind them all. Only the largest `MOST_PLACED` are placed; the others are
    assumed to fit into gaps.

    >>> early, late = Span(size_bytes=256, live=((0, 4),)), Span(size_bytes=256, live=((5, 9),))
    >>> packed_bytes([early, late, Span(size_bytes=100, live=((3, 6),))])
    384
    """
    aligned = [_aligned(span) for span in spans if span.size_bytes]
    by_size = sorted(aligned, key=lambda span: (-span.size_bytes, -span.duration))[:MOST_PLACED]
    by_duration = sorted(range(len(by_size)), key=lambda number: -by_size[number].duration)
    live_together = _live_together(by_size)
    least = _heap_bytes(by_size, live_together, range(len(by_size)))
    return min(least, _heap_bytes(by_size, live_together, by_duration, enough_bytes=least))


def _aligned(span: Span) -> Span:
    size_bytes = -(-span.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return Span(size_bytes=size_bytes, live=span.live)


def _heap_bytes(
    spans: Sequence[Span],
    together: NDArray[np.bool_],
    order: Iterable[int],
    *,
    enough_bytes: int | None = None,
) -> int:
    """Place spans in an order; return the memory they take."""
    starts, ends = np.zeros(len(spans), np.int64), np.zeros(len(spans), np.int64)
    is_placed = np.zeros(len(spans), np.bool_)
    top = 0
    for number in order:
        size_bytes = spans[number].size_bytes
        busy = np.flatnonzero(together[number] & is_placed)
        start = _smallest_gap(starts[busy], ends[busy], size_bytes)
        starts[number], ends[number], is_placed[number] = start, start + size_bytes, True
        top = max(top, start + size_bytes)
        if enough_bytes is not None and top > enough_bytes:
            break
    return top


def _live_together(spans: Sequence[Span]) -> NDArray[np.bool_]:
    """Return, for each pair of spans, whether they live together."""
    together = np.zeros((len(spans), len(spans)), np.bool_)
    intervals = sorted(
        (first, last, number) for number, span in enumerate(spans) for first, last in span.live
    )
    firsts = [first for first, _, _ in intervals]
    numbers = np.array([number for _, _, number in intervals], np.int64)
    for position, (_, last, number) in enumerate(intervals, start=1):
        together[number, numbers[position : bisect_right(firsts, last)]] = True
    return together | together.T


def _smallest_gap(starts: NDArray[np.int64], ends: NDArray[np.int64], size_bytes: int) -> int:
    """Return the start of the smallest gap for ``size_bytes``, else the end."""
    if not len(starts):
        return 0
    order = starts.argsort()
    reached = np.maximum.accumulate(ends[order])
    free_from = np.concatenate(([0], reached[:-1]))
    gaps = starts[order] - free_from
    gaps[gaps < size_bytes] = _NO_GAP
    smallest = gaps.argmin()
    return int(reached[-1] if gaps[smallest] == _NO_GAP else free_from[smallest])


_NO_GAP = np.iinfo(np.int64).max


def spans_of(liveness: BlockLiveness, temporaries: Iterable[Buffer]) -> Iterator[Span]:
    """Yield the live intervals of a block's buffers, inner ones included.

    Moments are those of one order of all operations: XLA's buffer assignment runs through a program
    once, and the body of a loop stands before the end of the loop, once. A buffer of an outer block
    is live all through the regions of the operations between its first and its last moment. The
    memory of a value that a loop carries is free inside, from when the old value is read last until
    the new one is written.
    """
    clock = _Clock()
    clock.block(liveness, temporaries)
    for buffer, (first, last) in clock.live.items():
        live = _remove_free(first, last, clock.free.get(buffer, []))
        yield Span(size_bytes=buffer.size_bytes, live=live)


@dataclass(slots=True, kw_only=True)
class _Clock:
    """Live and free intervals of buffers; ``owner`` has who lends the memory."""

    clock: int = 0
    live: dict[Buffer, tuple[int, int]] = field(default_factory=dict[Buffer, tuple[int, int]])
    free: dict[Buffer, list[tuple[int, int]]] = field(
        default_factory=dict[Buffer, list[tuple[int, int]]]
    )
    owner: dict[Buffer, Buffer] = field(default_factory=dict[Buffer, Buffer])

    def block(self, liveness: BlockLiveness, temporaries: Iterable[Buffer]) -> None:
        """Record when a block's buffers are live."""
        starts, ends = list[int](), list[int]()
        for moment in range(len(liveness.operations)):
            starts.append(self.clock)
            if moment in liveness.regions:
                self._enter_regions(liveness.regions[moment])
            ends.append(self.clock)
            self.clock += 1
        for buffer in temporaries:
            self.live[buffer] = starts[buffer.written_at], ends[buffer.held_until]
        for old, new in liveness.replaced:
            if new.written_at > old.read_at + 1:
                free = ends[old.read_at] + 1, starts[new.written_at] - 1
                self.free.setdefault(self._owner(old), []).append(free)

    def _enter_regions(self, inside: Inside) -> None:
        for block in inside.blocks:
            for passed, (old, new) in zip(inside.inputs, block.carried, strict=False):
                self.owner[old] = self._owner(passed)
                if new.actual is not old:
                    self.owner[new.actual] = self.owner[old]
            self.block(block, block.temporaries())

    def _owner(self, buffer: Buffer) -> Buffer:
        return self.owner.get(buffer.actual, buffer.actual)


def _remove_free(
    first: int, last: int, free: Iterable[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    """Return an interval without its free parts, which don't overlap."""
    live = list[tuple[int, int]]()
    for start, end in sorted(free):
        if first <= start and end <= last:
            live.append((first, start - 1))
            first = end + 1
    live.append((first, last))
    return tuple([interval for interval in live if interval[0] <= interval[1]])
