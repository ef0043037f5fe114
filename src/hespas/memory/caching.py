"""Model PyTorch's caching allocator: reserved and live memory of a step.

Memory is taken from the device in segments and given out in blocks, which stay reserved when they
are freed. Each stream has blocks of its own, small and large ones apart. A request takes the
smallest free block that holds it, and splits off the rest where that is worth a block. Source:
pytorch/pytorch, c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h (BSD-3-Clause),
v2.13, with the defaults of ``PYTORCH_CUDA_ALLOC_CONF``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hespas.base.frozen import frozen
from hespas.program.recorded import Storage

ROUNDED_BYTES = 512
"""Requests are multiples of this: ``kMinBlockSize``."""
_SMALL_BYTES = 2**20
"""Requests up to this come from the pool of small blocks: ``kSmallSize``."""
_SMALL_SEGMENT_BYTES, _LARGE_SEGMENT_BYTES = 2 * 2**20, 20 * 2**20
_LEAST_OWN_BYTES, _OWN_MULTIPLE_BYTES = 10 * 2**20, 2 * 2**20
"""Requests from ``kMinLargeAlloc`` on get a segment of their own size, in multiples."""

PoolKey = tuple[int, bool]
"""A stream, and whether its blocks are small."""


def rounded(size_bytes: int) -> int:
    """Return the bytes of the block that a request gets.

    >>> rounded(0), rounded(1), rounded(513)
    (0, 512, 1024)
    """
    return -(-size_bytes // ROUNDED_BYTES) * ROUNDED_BYTES


def segment_bytes(size_bytes: int) -> int:
    """Return the bytes of the segment that serves a request.

    >>> [segment_bytes(size) // 2**20 for size in (512, 2**20 + 512, 11 * 2**20)]
    [2, 20, 12]
    """
    if size_bytes <= _SMALL_BYTES:
        return _SMALL_SEGMENT_BYTES
    if size_bytes < _LEAST_OWN_BYTES:
        return _LARGE_SEGMENT_BYTES
    return -(-size_bytes // _OWN_MULTIPLE_BYTES) * _OWN_MULTIPLE_BYTES


@dataclass(slots=True, eq=False)
class _Block:
    """A part of a segment with its neighbours; ``address`` orders equal sizes."""

    address: int
    size_bytes: int
    is_free: bool = False
    before: _Block | None = None
    after: _Block | None = None


@dataclass(slots=True, kw_only=True)
class _Pool:
    """One stream's blocks of a kind, the free ones sorted."""

    is_small: bool
    is_expandable: bool
    free: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    blocks: dict[int, _Block] = field(default_factory=dict[int, _Block])
    reserved_bytes: int = 0
    _last: _Block | None = None

    def take(self, size_bytes: int) -> _Block:
        index = bisect_left(self.free, (size_bytes, -1))
        block = (
            self.blocks[self.free.pop(index)[1]]
            if index < len(self.free)
            else self._new(size_bytes)
        )
        block.is_free = False
        unused_bytes = block.size_bytes - size_bytes
        if (
            unused_bytes >= ROUNDED_BYTES
            if self.is_small or self.is_expandable
            else unused_bytes > _SMALL_BYTES
        ):
            split = _Block(
                block.address + size_bytes, unused_bytes, before=block, after=block.after
            )
            if block.after is not None:
                block.after.before = split
            block.after, block.size_bytes = split, size_bytes
            self.blocks[split.address] = split
            self._put(split)
            if self._last is block:
                self._last = split
        return block

    def _new(self, size_bytes: int) -> _Block:
        """Return a block of memory that is taken from the device."""
        if self.is_expandable:
            return self._grow_segment(size_bytes)
        size = segment_bytes(size_bytes)
        address = self.reserved_bytes
        self.reserved_bytes += size
        block = self.blocks[address] = _Block(address, size)
        return block

    def _grow_segment(self, size_bytes: int) -> _Block:
        """Return a block at the segment's end, grown by pages."""
        last = self._last
        end = 0 if last is None else last.address + last.size_bytes
        if last is not None and last.is_free:
            self.free.remove((last.size_bytes, last.address))
            size_bytes -= last.size_bytes
        page = _SMALL_SEGMENT_BYTES if self.is_small else _LARGE_SEGMENT_BYTES
        grown = -(-size_bytes // page) * page
        self.reserved_bytes += grown
        if last is not None and last.is_free:
            last.size_bytes += grown
            return last
        block = self.blocks[end] = _Block(end, grown, before=last)
        if last is not None:
            last.after = block
        self._last = block
        return block

    def give_back(self, block: _Block) -> None:
        """Free a block, and join it with free neighbours."""
        for neighbour in (block.before, block.after):
            if neighbour is None or not neighbour.is_free:
                continue
            self.free.remove((neighbour.size_bytes, neighbour.address))
            first, second = (neighbour, block) if neighbour is block.before else (block, neighbour)
            del self.blocks[second.address]
            first.size_bytes += second.size_bytes
            first.after = second.after
            if second.after is not None:
                second.after.before = first
            if self._last is second:
                self._last = first
            block = first
        self._put(block)

    def _put(self, block: _Block) -> None:
        block.is_free = True
        insort(self.free, (block.size_bytes, block.address))


@frozen
class AllocatorUse:
    """A step's use of a device's memory, in bytes.

    ``live`` are the numbers of the storages that are live at ``position``, when most is;
    ``live_bytes`` is the size of their blocks. ``reserved_bytes`` are of all segments at the end,
    of which none is given back.
    """

    reserved_bytes: int
    live_bytes: int
    position: int
    live: tuple[int, ...]


def allocator_use(storages: Sequence[Storage], *, is_expandable: bool = False) -> AllocatorUse:
    """Return the memory that the allocator reserves for storages during a step.

    The step includes the storages from before it. ``is_expandable`` stands for
    ``expandable_segments:True``.
    """
    pools: dict[PoolKey, _Pool] = {}
    blocks: dict[int, _Block] = {}
    live_bytes = peak_bytes = peak_position = 0
    for position, number, is_taken in _events(storages):
        size = rounded(storages[number].size_bytes)
        key = storages[number].stream, size <= _SMALL_BYTES
        if key not in pools:
            pools[key] = _Pool(is_small=key[1], is_expandable=is_expandable)
        if is_taken:
            blocks[number] = pools[key].take(size)
        else:
            pools[key].give_back(blocks.pop(number))
        change = size if is_taken else -size
        live_bytes += change
        if live_bytes > peak_bytes:
            peak_bytes, peak_position = live_bytes, position
    return AllocatorUse(
        reserved_bytes=sum(pool.reserved_bytes for pool in pools.values()),
        live_bytes=peak_bytes,
        position=peak_position,
        live=tuple(_live_at(storages, peak_position)),
    )


_BEFORE = -1
"""The position of storages that exist before the step."""


def _allocated(storage: Storage) -> int:
    return _BEFORE if storage.allocated is None else storage.allocated


def _events(storages: Sequence[Storage]) -> Iterator[tuple[int, int, bool]]:
    """Yield positions, storage numbers, and whether the storage is allocated there.

    At one position older storages are freed first: a call's results exist before it, and a storage
    that it was the last to read is freed before the next call. Empty storages take no memory.
    """
    events: list[tuple[int, int, int, bool]] = []
    for number, storage in enumerate(storages):
        if storage.size_bytes <= 0:
            continue
        allocated = _allocated(storage)
        events.append((allocated, 1, number, True))
        if storage.freed is not None:
            is_at_once = storage.freed <= allocated
            events.append((max(allocated, storage.freed), 2 if is_at_once else 0, number, False))
    for position, _, number, is_taken in sorted(events):
        yield position, number, is_taken


def _live_at(storages: Sequence[Storage], position: int) -> Iterator[int]:
    """Yield the storages that are live after a position's allocations."""
    for number, storage in enumerate(storages):
        allocated = _allocated(storage)
        last = allocated if storage.freed is None else max(allocated, storage.freed - 1)
        is_there = allocated <= position and (storage.freed is None or position <= last)
        if is_there and storage.size_bytes > 0:
            yield number


def live_levels(storages: Sequence[Storage], positions: int) -> list[int]:
    """Return the live bytes at each position, from 0 on.

    >>> live_levels([Storage(size_bytes=512, allocated=1, freed=2)], 3)
    [0, 512, 0]
    """
    changes = [0] * (positions + 1)
    for storage in storages:
        size = rounded(storage.size_bytes)
        changes[min(storage.allocated or 0, positions)] += size
        if storage.freed is not None:
            changes[min(storage.freed, positions)] -= size
    levels: list[int] = []
    for change in changes[:positions]:
        levels.append((levels[-1] if levels else 0) + change)
    return levels
