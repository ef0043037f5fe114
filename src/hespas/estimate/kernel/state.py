"""What is known while a kernel is walked, and what the walk counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from hespas.estimate.kernel.arithmetic import Array, Value
from hespas.estimate.kernel.flow import Flow
from hespas.estimate.kernel.loops import Loop
from hespas.estimate.kernel.ptx import Kernel
from hespas.estimate.kernel.sectors import Touched


@dataclass(slots=True, kw_only=True)
class AccessCounts:
    """Sums over the block: ``sectors`` per instruction, warp by warp; ``lines`` likewise.

    ``stride`` is the distance in bytes between the first two threads, ``passes`` are cycles of
    shared memory.
    """

    warps: float = 0.0
    threads: float = 0.0
    sectors: float = 0.0
    lines: float = 0.0
    passes: float = 0.0
    stride: int = 0


@dataclass(slots=True, kw_only=True)
class Walk:
    """The state of a walk, and its result.

    ``runs`` counts for each basic block the warps that ran it, ``accesses`` what each access
    touched, by position; ``load_sectors`` the sectors that loads ask L2 for if L1 keeps what
    one basic block loads, ``fresh_sectors`` if it keeps everything. In loops
    ``loop_sectors`` different ones lie in ``loop_runs`` runs without wide gaps. ``unknown_loops``
    are the heads of loops that end where data says, counted as one iteration; ``data_branches`` the
    positions of branches on data, ``data_addresses`` those of accesses whose address is data.
    """

    kernel: Kernel
    flow: Flow
    threads: int
    registers: dict[str, Value | None] = field(default_factory=dict[str, Value | None])
    runs: list[float] = field(default_factory=list[float])
    accesses: dict[int, AccessCounts] = field(default_factory=dict[int, AccessCounts])
    load_sectors: float = 0.0
    fresh_sectors: float = 0.0
    unknown_loops: set[int] = field(default_factory=set[int])
    data_branches: set[int] = field(default_factory=set[int])
    data_addresses: set[int] = field(default_factory=set[int])
    from_data: set[str] = field(default_factory=set[str])
    comparisons: dict[int, list[tuple[Value, Value]]] = field(
        default_factory=dict[int, list[tuple[Value, Value]]]
    )
    loop_sectors: float = 0.0
    loop_runs: float = 0.0
    seen: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    loaded: list[Array] = field(default_factory=list[Array])
    stored: list[Array] = field(default_factory=list[Array])
    patterns: dict[tuple[int, int, int], Pattern] = field(
        default_factory=dict[tuple[int, int, int], "Pattern"]
    )
    bank_patterns: dict[tuple[int, int, int, int], tuple[Value, Array | None, int]] = field(
        default_factory=dict[tuple[int, int, int, int], tuple[Value, "Array | None", int]]
    )
    visits: dict[int, list[Visit]] = field(default_factory=dict[int, "list[Visit]"])
    loops: dict[int, Loop] = field(default_factory=dict[int, Loop])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """What an access touched, for those whose addresses are whole lines away from it."""

    start: Value
    mask: Array | None
    offset: int
    stride: int
    found: Touched


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What was known when a loop came back to its head."""

    carried: Mapping[str, Value | None]
    counts: Array


def counts_of(state: Walk) -> Array:
    """Return all that a walk counts, in one order."""
    rows = [*state.runs, state.load_sectors, state.fresh_sectors]
    rows += [state.loop_sectors, state.loop_runs]
    for each in state.accesses.values():
        rows += [each.warps, each.threads, each.sectors, each.lines, each.passes]
    return np.array(rows)


def add_counts(state: Walk, counts: Array) -> None:
    """Add to all that a walk counts, in the order of `counts_of`."""
    values = iter(cast("list[float]", counts.tolist()))
    state.runs = [run + next(values) for run in state.runs]
    state.load_sectors += next(values)
    state.fresh_sectors += next(values)
    state.loop_sectors += next(values)
    state.loop_runs += next(values)
    for each in state.accesses.values():
        each.warps += next(values)
        each.threads += next(values)
        each.sectors += next(values)
        each.lines += next(values)
        each.passes += next(values)
