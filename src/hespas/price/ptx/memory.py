"""Count the sectors, lines and banks that a warp's addresses touch.

A warp's access goes to L2 in sectors of 32 bytes and to L1 in lines of 128 bytes, one line a cycle;
shared memory serves one word of 4 bytes from each of 32 banks a cycle. Source: NVIDIA, "CUDA C++
Best Practices Guide", coalesced access to global memory, and shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hespas.price.kernel import WARP
from hespas.price.ptx.opcodes import Array, Value, narrowed
from hespas.price.ptx.terms import LINE_BYTES, SECTOR_BYTES

_LINE_SHIFT = 7
_SECTOR_SHIFT = 5
_NOWHERE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """One access by all warps of a block.

    ``sectors`` and ``lines`` sum over the warps the distinct ones of each; ``ids`` are the sectors,
    to recognise those touched before.
    """

    warps: int
    threads: int
    sectors: int
    lines: int
    ids: Array


def touched(address: Value, mask: Array | None, threads: int) -> Touched:
    """Count the sectors of an access; ``mask`` selects threads, None all.

    >>> lane = np.arange(32, dtype=np.int64)
    >>> [touched(lane * step, None, 32).sectors for step in (2, 4, 8, 32)]
    [2, 4, 8, 32]
    """
    active = threads if mask is None else int(np.count_nonzero(mask))
    warps = active_warps(mask, threads)
    if isinstance(address, int):
        ids = np.array([address >> _SECTOR_SHIFT])
        return Touched(warps=warps, threads=active, sectors=warps, lines=warps, ids=ids)
    sectors = address >> _SECTOR_SHIFT
    if mask is not None:
        sectors = np.where(mask, sectors, _NOWHERE)
    by_warp = np.sort(_warps(sectors), axis=1)
    return Touched(
        warps=warps,
        threads=active,
        sectors=_different(by_warp),
        lines=_different(by_warp >> (_LINE_SHIFT - _SECTOR_SHIFT)),
        ids=by_warp.ravel(),
    )


def bank_passes(address: Value, mask: Array | None, threads: int, width: int) -> int:
    """Return the cycles of shared memory for one access.

    The first warp with active threads represents all of them.

    >>> lane = np.arange(32, dtype=np.int64)
    >>> [bank_passes(lane * step, None, 32, 4) for step in (4, 8, 128)]
    [1, 2, 32]
    """
    warps = active_warps(mask, threads)
    if isinstance(address, int) or not warps:
        return warps
    by_warp = _warps(address if mask is None else np.where(mask, address, _NOWHERE))
    first = by_warp[int(np.argmax((by_warp != _NOWHERE).any(axis=1)))]
    words = np.unique(first[first != _NOWHERE] >> 2)
    conflicts = int(np.bincount(words & 31).max())
    minimum = -(-len(first) * width // 128)
    return warps * max(conflicts, minimum if width > 4 else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    """An access's counts, with the objects that its key names."""

    start: Value
    mask: Array | None
    offset: int
    stride: int
    touched: Touched


@dataclass(slots=True, kw_only=True)
class Patterns:
    """Accesses of one run of a basic block."""

    threads: int
    touched: dict[tuple[int, int, int], _Pattern] = field(
        default_factory=dict[tuple[int, int, int], _Pattern]
    )
    banks: dict[tuple[int, int, int, int], tuple[Value, Array | None, int]] = field(
        default_factory=dict[tuple[int, int, int, int], tuple[Value, "Array | None", int]]
    )

    def clear(self) -> None:
        """Forget all patterns: registers change from run to run."""
        self.touched.clear()
        self.banks.clear()

    def access(self, start: Value, offset: int, mask: Array | None) -> tuple[Touched, int]:
        """Count the sectors of an access; return its stride in bytes too."""
        key = (id(start), id(mask), offset % LINE_BYTES)
        pattern = self.touched.get(key)
        if pattern is None or isinstance(start, int):
            address = narrowed(start, 64) + offset
            pattern = self.touched[key] = _Pattern(
                start=start,
                mask=mask,
                offset=offset,
                stride=_stride(address),
                touched=touched(address, mask, self.threads),
            )
        access, sectors_ahead = pattern.touched, (offset - pattern.offset) // SECTOR_BYTES
        if sectors_ahead:
            ids = np.where(access.ids >= 0, access.ids + sectors_ahead, access.ids)
            access = replace(access, ids=ids)
        return access, pattern.stride

    def passes(self, start: Value, offset: int, mask: Array | None, width: int) -> int:
        """Return the cycles of shared memory that an access takes."""
        key = (id(start), id(mask), offset % LINE_BYTES, width)
        if key not in self.banks:
            passes = bank_passes(narrowed(start, 64) + offset, mask, self.threads, width)
            self.banks[key] = (start, mask, passes)
        return self.banks[key][2]


def _stride(address: Value) -> int:
    if isinstance(address, int) or len(address) < 2:
        return 0
    return int(address[1] - address[0])


def different(ids: Array) -> Array:
    """Return the distinct sectors in order, without placeholders.

    >>> different(np.array([3, -1, 2, 3])).tolist()
    [2, 3]
    """
    ordered = np.sort(ids)
    is_new = np.empty(len(ordered), dtype=np.bool_)
    is_new[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    is_new &= ordered >= 0
    return ordered[is_new]


def active_warps(mask: Array | None, threads: int) -> int:
    """Return how many warps have at least one active thread."""
    if mask is None:
        return -(-threads // WARP)
    return int(np.count_nonzero(_warps(mask).any(axis=1)))


def _warps(values: Array) -> Array:
    missing = -len(values) % WARP
    if missing:
        filler: Any = False if values.dtype == np.bool_ else _NOWHERE
        values = np.concatenate([values, np.full(missing, filler, dtype=values.dtype)])
    return values.reshape(-1, WARP)


def _different(rows: Array) -> int:
    """Count the distinct values of each sorted row, without placeholders."""
    first = int(np.count_nonzero(rows[:, 0] >= 0))
    return first + int(np.count_nonzero((rows[:, 1:] != rows[:, :-1]) & (rows[:, 1:] >= 0)))
