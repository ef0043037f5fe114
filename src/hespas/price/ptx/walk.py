"""Walk one block of threads through a kernel: which instructions run how often, on what addresses.

Only addresses, guards and branches are computed, for all threads of the block together. Threads
that part at a branch wait for each other: those that are furthest behind go first. A loop whose
registers move by a constant step is walked three times and then multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from hespas.price.ptx.arithmetic import (
    Array,
    Value,
    bits_of,
    compared,
    evaluate,
    narrowed,
)
from hespas.price.ptx.parser import (
    NOWHERE,
    Flow,
    Instruction,
    Kernel,
    Loop,
    Operand,
    address_of,
    flow_of,
    further_iterations,
    is_access,
    loop_of,
)
from hespas.price.ptx.terms import LINE_BYTES, SECTOR_BYTES, WARP
from hespas.program.kernels import Extent

_LINE_SHIFT = 7
_SECTOR_SHIFT = 5
_NOWHERE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """One access by all warps of a block.

    ``sectors`` sums over warps the different sectors of each, ``lines`` the different lines;
    ``ids`` are the sectors, for telling what was touched before.
    """

    warps: int
    threads: int
    sectors: int
    lines: int
    ids: Array


def touched(address: Value, mask: Array | None, threads: int) -> Touched:
    """Return what an access touches; ``mask`` says which threads take part, None for all.

    >>> lane = np.arange(32, dtype=np.int64)
    >>> [touched(lane * step, None, 32).sectors for step in (2, 4, 8, 32)]
    [2, 4, 8, 32]
    """
    active = threads if mask is None else int(np.count_nonzero(mask))
    if isinstance(address, int):
        warps = active_warps(mask, threads)
        ids = np.array([address >> _SECTOR_SHIFT])
        return Touched(warps=warps, threads=active, sectors=warps, lines=warps, ids=ids)
    sectors = address >> _SECTOR_SHIFT
    if mask is not None:
        sectors = np.where(mask, sectors, _NOWHERE)
    by_warp = np.sort(_warps(sectors), axis=1)
    return Touched(
        warps=active_warps(mask, threads),
        threads=active,
        sectors=_different(by_warp),
        lines=_different(by_warp >> (_LINE_SHIFT - _SECTOR_SHIFT)),
        ids=by_warp.ravel(),
    )


def bank_passes(address: Value, mask: Array | None, threads: int, width: int) -> int:
    """Return the cycles that shared memory takes for one access by all warps of a block.

    The first warp with active threads stands for all of them.

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
    whole = -(-len(first) * width // 128)
    return warps * max(conflicts, whole if width > 4 else 1)


def different(ids: Array) -> Array:
    """Return the sectors once each, in order, without those that stand for nothing.

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
    rest = -len(values) % WARP
    if rest:
        filler: Any = False if values.dtype == np.bool_ else _NOWHERE
        values = np.concatenate([values, np.full(rest, filler, dtype=values.dtype)])
    return values.reshape(-1, WARP)


def _different(rows: Array) -> int:
    """Count the different values of each sorted row, without those that stand for nothing."""
    first = int(np.count_nonzero(rows[:, 0] >= 0))
    return first + int(np.count_nonzero((rows[:, 1:] != rows[:, :-1]) & (rows[:, 1:] >= 0)))


_MOST_STEPS = 20_000


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


@dataclass(slots=True, kw_only=True)
class Walk:
    """The state of a walk, and its result.

    ``runs`` counts for each basic block the warps that ran it, ``accesses`` what each access
    touched, by position; ``load_sectors`` the sectors that loads ask L2 for if L1 keeps what
    one basic block loads, ``fresh_sectors`` if it keeps everything. In loops
    ``loop_sectors`` different ones lie in ``loop_runs`` runs without wide gaps. ``unknown_loops``
    are the heads of loops that end where data says, counted as one iteration; ``data_branches`` the
    positions of branches on data. ``from_data`` are the registers that depend on data,
    ``scattered`` those of them that depend on data which each thread loads for itself: what all
    threads of the block load from one address, such as where a slice starts, keeps them together.
    ``data_addresses`` are the positions of accesses whose address is scattered.
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
    scattered: set[str] = field(default_factory=set[str])
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
    variables: dict[str, int] = field(default_factory=dict[str, int])
    visits: dict[int, list[Visit]] = field(default_factory=dict[int, "list[Visit]"])
    loops: dict[int, Loop] = field(default_factory=dict[int, Loop])


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


def walk(kernel: Kernel, *, grid: Extent, block: Extent, index: int) -> Walk:
    """Walk block number ``index`` of the grid through the kernel."""
    return walk_along(kernel, flow_of(kernel), grid=grid, block=block, index=index)


def walk_along(kernel: Kernel, flow: Flow, *, grid: Extent, block: Extent, index: int) -> Walk:
    """Walk a block through a kernel whose flow is known."""
    threads = block[0] * block[1] * block[2]
    state = Walk(kernel=kernel, flow=flow, threads=threads)
    state.runs = [0.0] * len(flow.blocks)
    state.registers.update(special_registers(grid, block, index))
    state.accesses = {
        position: AccessCounts()
        for position, each in enumerate(kernel.instructions)
        if is_access(each)
    }
    pending: dict[int, Array | None] = {0: None}
    for _ in range(_MOST_STEPS):
        if not pending:
            return state
        number = min(pending)
        mask = pending.pop(number)
        for target, going in _run(state, number, mask):
            if target <= number:
                _come_back(state, target, going, pending)
            else:
                _join(pending, target, going)
    state.unknown_loops.add(min(pending))
    return state


def _join(pending: dict[int, Array | None], target: int, going: Array | None) -> None:
    if target not in pending:
        pending[target] = going
        return
    waiting = pending[target]
    pending[target] = None if waiting is None or going is None else waiting | going


def _run(state: Walk, number: int, mask: Array | None) -> list[tuple[int, Array | None]]:
    """Run one basic block; return where its threads go."""
    block = state.flow.blocks[number]
    state.runs[number] += active_warps(mask, state.threads)
    state.loaded.clear()
    state.stored.clear()
    state.patterns.clear()
    state.bank_patterns.clear()
    for position in block.steps:
        step(state, position, mask)
    close(state, number)
    return _leave(state, number, mask)


def _leave(state: Walk, number: int, mask: Array | None) -> list[tuple[int, Array | None]]:
    block = state.flow.blocks[number]
    last = state.kernel.instructions[block.stop - 1]
    if last.name != "bra" or not last.guard:
        only = block.after if block.target == NOWHERE else block.target
        return [] if only == NOWHERE else [(only, mask)]
    taken = guard(state, last)
    if taken is None:
        return [(_choose(state, number), mask)]
    if isinstance(taken, int):
        return [(block.target if taken else block.after, mask)]
    going = taken if mask is None else taken & mask
    staying = ~taken if mask is None else ~taken & mask
    parted = [(block.target, going), (block.after, staying)]
    return [(to, None if each.all() else each) for to, each in parted if each.any()]


def _choose(state: Walk, number: int) -> int:
    """Choose for a branch on data: out of a loop; around what doesn't touch memory."""
    block = state.flow.blocks[number]
    near, far = sorted((block.after, block.target))
    for head, body in state.flow.loops.items():
        if number in body and (near == head or far not in body):
            state.unknown_loops.add(head)
            return far
    state.data_branches.add(block.stop - 1)
    between = [
        state.kernel.instructions[position]
        for each in state.flow.blocks[near:far]
        for position in range(each.start, each.stop)
    ]
    # The slow ways of library functions, for arguments that are hardly ever met, keep a table.
    is_library = any("local" in each.parts for each in between)
    works = any(is_access(each) for each in between) and not is_library
    return near if works else far


def _come_back(
    state: Walk, head: int, going: Array | None, pending: dict[int, Array | None]
) -> None:
    """Start a loop's next iteration, after multiplying those that are like the last one."""
    loop = state.loops.get(head)
    if loop is None:
        loop = state.loops[head] = loop_of(state.kernel, state.flow, head)
    visits = state.visits.setdefault(head, [])
    visits.append(_visit(state, loop))
    del visits[:-3]
    is_known = True
    if len(visits) == 3 and not state.flow.loops[head].intersection(pending):
        is_known = _multiply(state, loop, visits)
    if is_known:
        _join(pending, head, going)
    for inner in [each for each in state.visits if each in loop.body and each != head]:
        del state.visits[inner]


def _visit(state: Walk, loop: Loop) -> Visit:
    return Visit(
        carried={name: state.registers.get(name) for name in loop.carried},
        counts=counts_of(state),
    )


def _multiply(state: Walk, loop: Loop, visits: list[Visit]) -> bool:
    """Multiply as many iterations as are alike; False where nothing known ends the loop."""
    steps = _steps(visits)
    if steps is None:
        return True
    further = further_iterations(loop, state.comparisons, state.kernel, state.from_data)
    if further is None:
        state.unknown_loops.add(loop.head)
        return False
    if further < 1:
        return True
    add_counts(state, (visits[-1].counts - visits[-2].counts) * further)
    for name, moving in steps.items():
        moved = cast("Value", state.registers[name]) + moving * further
        is_wide = isinstance(moved, int) or moved.dtype == np.int64
        state.registers[name] = narrowed(moved, 64) if is_wide else moved
    for position in loop.comparisons:
        history = state.comparisons.get(position)
        if history is not None:
            history[:] = [_moved(history, further)]
    visits.clear()
    return True


def _moved(history: list[tuple[Value, Value]], further: int) -> tuple[Value, Value]:
    (left, right), (left_before, right_before) = history[-1], history[-2]
    return left + (left - left_before) * further, right + (right - right_before) * further


def _steps(visits: list[Visit]) -> dict[str, Value] | None:
    """Return by how much each register moves in an iteration; None where it is no constant."""
    steps: dict[str, Value] = {}
    for name, last in visits[-1].carried.items():
        middle, first = visits[-2].carried[name], visits[-3].carried[name]
        if last is None or middle is None or first is None:
            if last is not middle or middle is not first:
                return None
        elif _is_truth(last) or _is_truth(middle) or _is_truth(first):
            if np.any(last != middle) or np.any(middle != first):
                return None
        elif np.any(last - middle != middle - first):
            return None
        else:
            steps[name] = last - middle
    return steps


def _is_truth(value: Value) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.bool_


_FLOATS = frozenset({"f16", "bf16", "f32", "f64", "f16x2", "bf16x2"})
# What a thread cannot know without running: memory and other threads.
_FROM_DATA = frozenset({"ld", "atom", "shfl", "redux", "vote", "match", "ldmatrix", "elect"})
_PARAMETER_SPACING = 1 << 40
_FAR_SECTORS = 2048 // SECTOR_BYTES
"""A page of device memory stays open: what lies no farther on belongs to the same run."""

_VARIABLE_SPACING = (1 << 20) + (1 << 14)
"""Variables lie far apart, by no multiple of the range that `_loaded` distinguishes."""

_WORD_BITS, _HALF = 32, 1 << 31


def special_registers(grid: Extent, block: Extent, index: int) -> dict[str, Value | None]:
    """Return what the threads of block number ``index`` know of themselves."""
    lanes = np.arange(block[0] * block[1] * block[2], dtype=np.int32)
    found: dict[str, Value | None] = {
        "%tid.x": lanes % block[0] if block[1] * block[2] > 1 else lanes,
        "%tid.y": (lanes // block[0]) % block[1] if block[1] > 1 else 0,
        "%tid.z": lanes // (block[0] * block[1]) if block[2] > 1 else 0,
        "%ctaid.x": index % grid[0],
        "%ctaid.y": index // grid[0] % grid[1],
        "%ctaid.z": index // (grid[0] * grid[1]),
        "%laneid": lanes % 32,
        "%warpid": lanes // 32,
    }
    for axis, name in enumerate("xyz"):
        found[f"%ntid.{name}"] = block[axis]
        found[f"%nctaid.{name}"] = grid[axis]
    return found


def guard(state: Walk, instruction: Instruction) -> int | Array | None:
    """Return whether the threads take part: all or none, each by itself, or None: unknown."""
    if not instruction.guard:
        return 1
    value = state.registers.get(instruction.guard)
    if value is None or instruction.guard in state.from_data:
        return None
    if isinstance(value, int):
        return int(bool(value) != instruction.guard_is_negated)
    return ~value if instruction.guard_is_negated else value


def step(state: Walk, position: int, mask: Array | None) -> None:
    """Execute one instruction for the threads of ``mask``, None for all."""
    instruction = state.kernel.instructions[position]
    if instruction.guard and instruction.name != "bra":
        allowed = guard(state, instruction)
        if isinstance(allowed, int) and not allowed:
            return
        if isinstance(allowed, np.ndarray):
            mask = allowed if mask is None else allowed & mask
            if not mask.any():
                return
    if position in state.accesses:
        _access(state, position, instruction, mask)
    elif instruction.writes:
        _assign(state, instruction, _result(state, position, instruction), mask)
        _mark(state, instruction)


def _mark(state: Walk, instruction: Instruction) -> None:
    """Keep track of the registers whose value depends on memory or on other threads."""
    from_memory = instruction.parts[0] in _FROM_DATA and "param" not in instruction.parts
    for names in (state.from_data, state.scattered):
        if from_memory or not names.isdisjoint(instruction.reads):
            names.update(instruction.writes)
        elif names:
            names.difference_update(instruction.writes)


def _result(state: Walk, position: int, instruction: Instruction) -> Value | None:
    parts = instruction.parts
    if parts[0] == "ld" and "param" in parts:
        return _parameter(str(instruction.sources[0]), bits_of(parts))
    if parts[-1] in _FLOATS and parts[0] not in {"mov", "selp"}:
        return None
    operands = [_value(state, source) for source in instruction.sources]
    if bits_of(parts) == _WORD_BITS:
        operands = [_word(operand) for operand in operands]
    if any(operand is None for operand in operands):
        return None
    values = cast("list[Value]", operands)
    if parts[0] == "setp":
        history = state.comparisons.setdefault(position, [])
        history.append(compared(parts, values))
        del history[:-3]
    found = evaluate(parts, values)
    if found is None or isinstance(found, int) or parts[0] == "setp":
        return found if parts[-1] == "pred" else _narrow(found, parts)
    return found.astype(np.bool_) if parts[-1] == "pred" else _narrow(found, parts)


def _word(value: Value | None) -> Value | None:
    """Return a whole number of the text as a register of 32 bits holds it."""
    if isinstance(value, int) and not -_HALF <= value < _HALF:
        return narrowed(value, _WORD_BITS)
    return value


def _narrow(value: Value | None, parts: tuple[str, ...]) -> Value | None:
    return None if value is None else narrowed(value, bits_of(parts))


def _value(state: Walk, source: Operand) -> Value | None:
    if isinstance(source, int):
        return source
    if source[0] == "%":
        return state.registers.get(source)
    if source[0].isdigit() or source[0] in "-[":
        return None
    # The address of a shared or local variable: in the order in which a kernel first names them.
    return _VARIABLE_SPACING * state.variables.setdefault(source, len(state.variables))


def _parameter(operand: str, bits: int) -> int:
    """Return the address that a parameter holds, distinguished by its number; 0 for a number."""
    digits = operand.strip("[] ").rpartition("_")[2]
    number = int(digits) if digits.isdigit() else 0
    return _PARAMETER_SPACING * (number + 1) if bits == 64 else 0


def _assign(state: Walk, instruction: Instruction, value: Value | None, mask: Array | None) -> None:
    for name in instruction.writes:
        before = state.registers.get(name)
        if mask is None or value is None or before is None:
            state.registers[name] = value
        elif not _is_same_number(value, before):
            like = value if isinstance(value, np.ndarray) else before
            chosen = np.where(mask, value, before)
            is_array = isinstance(like, np.ndarray)
            state.registers[name] = chosen.astype(cast("Any", like).dtype) if is_array else chosen


def _is_same_number(left: Value, right: Value) -> bool:
    return isinstance(left, int) and isinstance(right, int) and left == right


def _access(state: Walk, position: int, instruction: Instruction, mask: Array | None) -> None:
    base, offset = address_of(instruction)
    start = _value(state, base) if base else None
    if start is None or base in state.scattered:
        state.data_addresses.add(position)
    if start is None:
        start = np.arange(state.threads, dtype=np.int64) * 4096
    if instruction.name == "ld":
        _load(state, instruction, start, offset, is_scattered=base in state.scattered)
    counts = state.accesses[position]
    if "shared" in instruction.parts:
        counts.passes += _passes(state, instruction, start, offset, mask)
        return
    pattern = _pattern(state, start, offset, mask)
    found = pattern.found
    counts.warps += found.warps
    counts.threads += found.threads
    counts.sectors += found.sectors
    counts.lines += found.lines
    counts.stride = pattern.stride
    moved = (offset - pattern.offset) // SECTOR_BYTES
    ids = np.where(found.ids >= 0, found.ids + moved, found.ids) if moved else found.ids
    (state.loaded if instruction.name == "ld" else state.stored).append(ids)


def _load(
    state: Walk, instruction: Instruction, start: Value, offset: int, *, is_scattered: bool
) -> None:
    """Put stand-ins into those registers that addresses or branches depend on."""
    for number, name in enumerate(instruction.writes):
        if name in state.flow.followed:
            state.registers[name] = _loaded(narrowed(start, 64) + offset, number)
    state.from_data.update(instruction.writes)
    if is_scattered or not isinstance(start, int):
        state.scattered.update(instruction.writes)
    else:
        state.scattered.difference_update(instruction.writes)


def _pattern(state: Walk, start: Value, offset: int, mask: Array | None) -> Pattern:
    """Return what an access touches, or one whole lines away from it touched."""
    key = (id(start), id(mask), offset % LINE_BYTES)
    pattern = state.patterns.get(key)
    if pattern is None or isinstance(start, int):
        address = narrowed(start, 64) + offset
        pattern = state.patterns[key] = Pattern(
            start=start,
            mask=mask,
            offset=offset,
            stride=_stride(address),
            found=touched(address, mask, state.threads),
        )
    return pattern


def _stride(address: Value) -> int:
    if isinstance(address, int) or len(address) < 2:
        return 0
    return int(address[1] - address[0])


def _passes(
    state: Walk, instruction: Instruction, start: Value, offset: int, mask: Array | None
) -> int:
    """Return the cycles of shared memory, the same for every access whole lines away."""
    width = width_bytes(instruction)
    key = (id(start), id(mask), offset % LINE_BYTES, width)
    pattern = state.bank_patterns.get(key)
    if pattern is None:
        passes = bank_passes(narrowed(start, 64) + offset, mask, state.threads, width)
        pattern = state.bank_patterns[key] = (start, mask, passes)
    return pattern[2]


def _loaded(address: Value, number: int) -> Value:
    """Return a stand-in for what memory holds: the same for the same address, else scattered."""
    if isinstance(address, int):
        return 0
    scattered = ((address >> 2) * 40503 + number) & 0x7FFF
    return scattered.astype(np.int32)


def close(state: Walk, number: int) -> None:
    """Count what one run of a basic block touched, each sector once."""
    is_inside = any(number in body for body in state.flow.loops.values())
    for found in (state.loaded, state.stored):
        if not found:
            continue
        ids = different(np.concatenate(found))
        if is_inside:
            state.loop_sectors += len(ids)
            state.loop_runs += 1 + int(np.count_nonzero(np.diff(ids) > _FAR_SECTORS))
        if found is state.loaded:
            state.load_sectors += len(ids)
            fresh = ids[~np.isin(ids, state.seen, assume_unique=True)]
            state.fresh_sectors += len(fresh)
            state.seen = np.concatenate([state.seen, fresh])


def width_bytes(instruction: Instruction) -> int:
    """Return the bytes that one thread moves.

    >>> from hespas.price.ptx.parser import read_kernel
    >>> kernel = read_kernel(".entry k() { st.global.v4.b16 [%rd1], {%a, %b, %c, %d}; ret; }")
    >>> width_bytes(kernel.instructions[0])
    8
    """
    kind = instruction.parts[-1]
    lanes = next((int(p[1:]) for p in instruction.parts if p[0] == "v" and p[1:].isdigit()), 1)
    bits = "".join(character for character in kind if character.isdigit())
    return max(1, int(bits or 32) // 8) * lanes
