"""Walk a block of threads, and count instructions and addresses.

Only addresses, guards and branches are computed, for all threads of the block together. Threads
that part at a branch wait for each other: those that are furthest behind go first. A loop whose
registers move by a constant step is walked three times and then multiplied: a comparison whose
sides move by constant steps keeps its answer for a number of iterations that follows from a
division, and the loop repeats for the least such number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, cast

import numpy as np

from hespas.price.ptx.memory import Patterns, active_warps, different
from hespas.price.ptx.opcodes import Array, Value, bits_of, compared, evaluate, narrowed
from hespas.price.ptx.parser import (
    NOWHERE,
    Flow,
    Instruction,
    Kernel,
    Loop,
    Operand,
    address_of,
    flow_of,
    is_access,
    is_load,
    loop_of,
)
from hespas.price.ptx.terms import SECTOR_BYTES
from hespas.program.kernels import Extent, KernelLaunch

_MOST_STEPS = 20_000
_FLOATS = frozenset({"f16", "bf16", "f32", "f64", "f16x2", "bf16x2"})
# Results a thread cannot know without running: from memory and other threads.
_FROM_DATA = frozenset({"ld", "atom", "shfl", "redux", "vote", "match", "ldmatrix", "elect"})
_PARAMETER_SPACING = 1 << 40
_FAR_SECTORS = 2048 // SECTOR_BYTES
"""A page of device memory stays open: sectors no farther apart belong to the same run."""
_VARIABLE_SPACING = (1 << 20) + (1 << 14)
"""Spacing of variables: large, and no multiple of the range that `_loaded` distinguishes."""
_WORD_BITS, _HALF = 32, 1 << 31
_LOADED, FRESH, _IN_LOOPS, _LOOP_RUNS, _SUMS = range(5)
Comparison = tuple[Value, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessCounts:
    """Sums over the block: ``sectors`` per instruction, warp by warp; ``lines`` likewise.

    ``stride`` is the distance in bytes between the first two threads, ``passes`` are cycles of
    shared memory.
    """

    warps: float
    threads: float
    sectors: float
    lines: float
    passes: float
    stride: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Visit:
    """The walk's state on return to a loop's head."""

    carried: Mapping[str, Value | None]
    counts: Array


@dataclass(kw_only=True)
class Walk:
    """The state of a walk, and its result.

    ``counts`` holds all counts, in one order: the warps that ran each basic block (`runs`); the
    sectors that loads ask L2 for if L1 keeps what one basic block loads, and if it keeps
    everything, and in loops the distinct ones and the runs without wide gaps that these lie in
    (`sums`); and what each access touched, by warp (`accesses`). ``unknown_loops`` are the heads of
    loops that end on data, counted as one iteration; ``data_branches`` the positions of branches on
    data. ``from_data`` are the registers that depend on data, ``scattered`` those of them that
    depend on data which each thread loads for itself: a value that all threads of the block load
    from one address, such as the start of a slice, keeps them together. ``data_addresses`` are the
    positions of accesses whose address is scattered.
    """

    kernel: Kernel
    flow: Flow
    threads: int
    registers: dict[str, Value | None]
    integers: tuple[int | None, ...] = ()
    unknown_loops: set[int] = field(default_factory=set[int])
    data_branches: set[int] = field(default_factory=set[int])
    data_addresses: set[int] = field(default_factory=set[int])
    from_data: set[str] = field(default_factory=set[str])
    scattered: set[str] = field(default_factory=set[str])
    comparisons: dict[int, list[Comparison]] = field(default_factory=dict[int, list[Comparison]])
    seen: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    loaded: list[Array] = field(default_factory=list[Array])
    stored: list[Array] = field(default_factory=list[Array])
    strides: dict[int, int] = field(default_factory=dict[int, int])
    variables: dict[str, int] = field(default_factory=dict[str, int])
    visits: dict[int, list[_Visit]] = field(default_factory=dict[int, list[_Visit]])
    loops: dict[int, Loop] = field(default_factory=dict[int, Loop])
    pending: dict[int, Array | None] = field(default_factory=lambda: {0: None})

    def __post_init__(self) -> None:
        access_positions = [
            position
            for position, instruction in enumerate(self.kernel.instructions)
            if is_access(instruction)
        ]
        self.rows = {position: row for row, position in enumerate(access_positions)}
        blocks = len(self.flow.blocks)
        self.counts: Array = np.zeros(blocks + _SUMS + 5 * len(access_positions))
        self.runs = self.counts[:blocks]
        self.sums = self.counts[blocks : blocks + _SUMS]
        self.touched = self.counts[blocks + _SUMS :].reshape(-1, 5)
        self.patterns = Patterns(threads=self.threads)

    @property
    def accesses(self) -> dict[int, AccessCounts]:
        """The counts of each access, by its position."""
        names = ("warps", "threads", "sectors", "lines", "passes")
        return {
            position: AccessCounts(
                stride=self.strides.get(position, 0),
                **dict(zip(names, self.touched[row].tolist(), strict=True)),
            )
            for position, row in self.rows.items()
        }

    def go(self) -> None:
        """Walk from the first block until no thread goes on."""
        for _ in range(_MOST_STEPS):
            if not self.pending:
                return
            number = min(self.pending)
            mask = self.pending.pop(number)
            self._run(number, mask)
            for target, going in self._leave(number, mask):
                if target <= number:
                    self._come_back(target, going)
                else:
                    self._join(target, going)
        self.unknown_loops.add(min(self.pending))

    def _join(self, target: int, going: Array | None) -> None:
        waiting = self.pending.get(target, going)
        self.pending[target] = None if waiting is None or going is None else waiting | going

    def _run(self, number: int, mask: Array | None) -> None:
        """Run one basic block, and count the sectors it touches, each once."""
        self.runs[number] += active_warps(mask, self.threads)
        self.loaded.clear()
        self.stored.clear()
        self.patterns.clear()
        for position in self.flow.blocks[number].steps:
            self._step(position, mask)
        is_inside = any(number in body for body in self.flow.loops.values())
        for accessed in (self.loaded, self.stored):
            if not accessed:
                continue
            ids = different(np.concatenate(accessed))
            if is_inside:
                self.sums[_IN_LOOPS] += len(ids)
                self.sums[_LOOP_RUNS] += 1 + np.count_nonzero(np.diff(ids) > _FAR_SECTORS)
            if accessed is self.loaded:
                fresh = ids[~np.isin(ids, self.seen, assume_unique=True)]
                self.sums[_LOADED] += len(ids)
                self.sums[FRESH] += len(fresh)
                self.seen = np.concatenate([self.seen, fresh])

    def _leave(self, number: int, mask: Array | None) -> list[tuple[int, Array | None]]:
        block = self.flow.blocks[number]
        last = self.kernel.instructions[block.stop - 1]
        if last.name != "bra" or not last.guard:
            only = block.after if block.target == NOWHERE else block.target
            return [] if only == NOWHERE else [(only, mask)]
        condition = self._guard(last)
        if condition is None:
            return [(self._choose(number), mask)]
        if isinstance(condition, int):
            return [(block.target if condition else block.after, mask)]
        going = condition if mask is None else condition & mask
        staying = ~condition if mask is None else ~condition & mask
        parted = [(block.target, going), (block.after, staying)]
        return [(to, None if part.all() else part) for to, part in parted if part.any()]

    def _choose(self, number: int) -> int:
        """Choose a branch on data: leave loops, skip plain code."""
        block = self.flow.blocks[number]
        near, far = sorted((block.after, block.target))
        for head, body in self.flow.loops.items():
            if number in body and (near == head or far not in body):
                self.unknown_loops.add(head)
                return far
        self.data_branches.add(block.stop - 1)
        between = [
            instruction
            for skipped in self.flow.blocks[near:far]
            for instruction in self.kernel.instructions[skipped.start : skipped.stop]
        ]
        # Library functions have slow paths for rare arguments; these paths keep a local table.
        is_library = any("local" in instruction.parts for instruction in between)
        return near if any(map(is_access, between)) and not is_library else far

    def _come_back(self, head: int, going: Array | None) -> None:
        """Start a loop's next iteration."""
        if head not in self.loops:
            self.loops[head] = loop_of(self.kernel, self.flow, head)
        loop, visits = self.loops[head], self.visits.setdefault(head, [])
        carried = {name: self.registers.get(name) for name in loop.carried}
        visits.append(_Visit(carried=carried, counts=self.counts.copy()))
        del visits[:-3]
        is_known = True
        if len(visits) == 3 and not loop.body.intersection(self.pending):
            is_known = self._multiply(loop, visits)
        if is_known:
            self._join(head, going)
        for inner in [
            visited for visited in self.visits if visited in loop.body and visited != head
        ]:
            del self.visits[inner]

    def _multiply(self, loop: Loop, visits: list[_Visit]) -> bool:
        """Skip equal iterations; return whether something known ends the loop."""
        steps = _steps(visits)
        if steps is None:
            return True
        further = self._further_iterations(loop)
        if further is None:
            self.unknown_loops.add(loop.head)
            return False
        if further < 1:
            return True
        self.counts += (visits[-1].counts - visits[-2].counts) * further
        for name, moving in steps.items():
            value = cast("Value", self.registers[name]) + moving * further
            is_wide = isinstance(value, int) or value.dtype == np.int64
            self.registers[name] = narrowed(value, 64) if is_wide else value
        for position in loop.comparisons:
            history = self.comparisons.get(position)
            if history is not None:
                pairs = zip(history[-1], history[-2], strict=True)
                left, right = [last + (last - before) * further for last, before in pairs]
                history[:] = [(left, right)]
        visits.clear()
        return True

    def _further_iterations(self, loop: Loop) -> int | None:
        """Return for how many more iterations every comparison keeps its answer.

        Comparisons of data are assumed to keep theirs. None if nothing known ends the loop; 0 if a
        comparison doesn't move steadily.
        """
        least = _FOREVER
        for position in loop.comparisons:
            comparison = self.kernel.instructions[position]
            if not self.from_data.isdisjoint(comparison.writes):
                continue
            sides = self.comparisons.get(position, ())
            if len(sides) < 3:
                return 0
            gaps = [_gap(pair) for pair in sides[-3:]]
            step = gaps[2] - gaps[1]
            if np.any(step != gaps[1] - gaps[0]):
                return 0
            least = min(least, _iterations(comparison, gaps[2], step))
        return None if least >= _FOREVER else least

    def _guard(self, instruction: Instruction) -> int | Array | None:
        """Return the active threads: one bool, an array, or None."""
        value = self.registers.get(instruction.guard)
        if value is None or instruction.guard in self.from_data:
            return None
        if isinstance(value, int):
            return int(bool(value) != instruction.guard_is_negated)
        return ~value if instruction.guard_is_negated else value

    def _step(self, position: int, mask: Array | None) -> None:
        instruction = self.kernel.instructions[position]
        if instruction.guard and instruction.name != "bra":
            allowed = self._guard(instruction)
            if isinstance(allowed, int) and not allowed:
                return
            if isinstance(allowed, np.ndarray):
                mask = allowed if mask is None else allowed & mask
                if not mask.any():
                    return
        if position in self.rows:
            self._access(position, instruction, mask)
        elif instruction.writes:
            self._assign(instruction, self._result(position, instruction), mask)
            self._mark(instruction)

    def _mark(self, instruction: Instruction) -> None:
        """Track the registers whose value depends on memory or on other threads."""
        from_memory = instruction.name in _FROM_DATA and "param" not in instruction.parts
        for names in (self.from_data, self.scattered):
            if from_memory or not names.isdisjoint(instruction.reads):
                names.update(instruction.writes)
            elif names:
                names.difference_update(instruction.writes)

    def _result(self, position: int, instruction: Instruction) -> Value | None:
        parts, bits = instruction.parts, bits_of(instruction.parts)
        if parts[0] == "ld" and "param" in parts:
            return _parameter(str(instruction.sources[0]), bits, self.integers)
        if parts[-1] in _FLOATS and parts[0] not in {"mov", "selp"}:
            return None
        operands = [self._value(source) for source in instruction.sources]
        if bits == _WORD_BITS:
            operands = [_word(operand) for operand in operands]
        if any(operand is None for operand in operands):
            return None
        values = cast("list[Value]", operands)
        if parts[0] == "setp":
            history = self.comparisons.setdefault(position, [])
            history.append(compared(parts, values))
            del history[:-3]
        result = evaluate(parts, values)
        if result is None or (parts[-1] == "pred" and isinstance(result, int)):
            return result
        if parts[-1] != "pred" or isinstance(result, int):
            return narrowed(result, bits)
        return result.astype(np.bool_)

    def _value(self, source: Operand) -> Value | None:
        if isinstance(source, int):
            return source
        if source[0] == "%":
            return self.registers.get(source)
        if source[0].isdigit() or source[0] in "-[":
            return None
        # Variables get addresses in the order in which a kernel first names them.
        return _VARIABLE_SPACING * self.variables.setdefault(source, len(self.variables))

    def _assign(self, instruction: Instruction, value: Value | None, mask: Array | None) -> None:
        for name in instruction.writes:
            before = self.registers.get(name)
            if mask is None or value is None or before is None:
                self.registers[name] = value
            elif not (isinstance(value, int) and isinstance(before, int) and value == before):
                like = value if isinstance(value, np.ndarray) else before
                chosen = np.where(mask, value, before)
                is_array = isinstance(like, np.ndarray)
                chosen = chosen.astype(cast("Any", like).dtype) if is_array else chosen
                self.registers[name] = chosen

    def _access(self, position: int, instruction: Instruction, mask: Array | None) -> None:
        base, offset = address_of(instruction)
        start = self._value(base) if base else None
        if start is None or base in self.scattered:
            self.data_addresses.add(position)
        if start is None:
            start = np.arange(self.threads, dtype=np.int64) * 4096
        reads = is_load(instruction)
        if reads:
            self._load(instruction, start, offset, is_scattered=base in self.scattered)
        row = self.touched[self.rows[position]]
        if "shared" in instruction.parts and instruction.name != "cp":
            row[4] += self.patterns.passes(start, offset, mask, width_bytes(instruction))
            return
        access, self.strides[position] = self.patterns.access(start, offset, mask)
        row[:4] += (access.warps, access.threads, access.sectors, access.lines)
        (self.loaded if reads else self.stored).append(access.ids)

    def _load(
        self, instruction: Instruction, start: Value, offset: int, *, is_scattered: bool
    ) -> None:
        """Store stand-ins in the loaded registers that addresses or branches depend on."""
        for number, name in enumerate(instruction.writes):
            if name in self.flow.followed:
                self.registers[name] = _loaded(narrowed(start, 64) + offset, number)
        self.from_data.update(instruction.writes)
        if is_scattered or not isinstance(start, int):
            self.scattered.update(instruction.writes)
        else:
            self.scattered.difference_update(instruction.writes)


def walk(kernel: Kernel, launch: KernelLaunch, *, index: int, flow: Flow | None = None) -> Walk:
    """Walk block ``index`` of the grid through the kernel."""
    state = Walk(
        kernel=kernel,
        flow=flow_of(kernel) if flow is None else flow,
        threads=prod(launch.block),
        registers=_special_registers(launch.grid, launch.block, index),
        integers=launch.integers,
    )
    state.go()
    return state


def _special_registers(grid: Extent, block: Extent, index: int) -> dict[str, Value | None]:
    lanes = np.arange(prod(block), dtype=np.int32)
    return {
        "%tid.x": lanes % block[0] if block[1] * block[2] > 1 else lanes,
        "%tid.y": (lanes // block[0]) % block[1] if block[1] > 1 else 0,
        "%tid.z": lanes // (block[0] * block[1]) if block[2] > 1 else 0,
        "%ctaid.x": index % grid[0],
        "%ctaid.y": index // grid[0] % grid[1],
        "%ctaid.z": index // (grid[0] * grid[1]),
        "%laneid": lanes % 32,
        "%warpid": lanes // 32,
        **{f"%ntid.{name}": block[axis] for axis, name in enumerate("xyz")},
        **{f"%nctaid.{name}": grid[axis] for axis, name in enumerate("xyz")},
    }


def _word(value: Value | None) -> Value | None:
    """Wrap a whole number as a register of 32 bits holds it."""
    if isinstance(value, int) and not -_HALF <= value < _HALF:
        return narrowed(value, _WORD_BITS)
    return value


def _parameter(operand: str, bits: int, integers: tuple[int | None, ...]) -> int:
    """Return a parameter's integer, or its address, distinct for each one; 0 for other numbers."""
    digits = operand.strip("[] ").rpartition("_")[2]
    number = int(digits) if digits.isdigit() else 0
    integer = integers[number] if number < len(integers) else None
    if integer is not None:
        return integer
    return _PARAMETER_SPACING * (number + 1) if bits == 64 else 0


def _loaded(address: Value, number: int) -> Value:
    """Return a stand-in for loaded data."""
    if isinstance(address, int):
        return 0
    scattered = ((address >> 2) * 40503 + number) & 0x7FFF
    return scattered.astype(np.int32)


def width_bytes(instruction: Instruction) -> int:
    """Return the bytes that one thread moves.

    >>> from hespas.price.ptx.parser import read_kernel
    >>> kernel = read_kernel(".entry k() { st.global.v4.b16 [%rd1], {%a, %b, %c, %d}; ret; }")
    >>> width_bytes(kernel.instructions[0])
    8
    """
    if instruction.name == "cp":
        return next((source for source in instruction.sources if isinstance(source, int)), 4)
    lanes = next((int(p[1:]) for p in instruction.parts if p[0] == "v" and p[1:].isdigit()), 1)
    bits = "".join(filter(str.isdigit, instruction.parts[-1]))
    return max(1, int(bits or 32) // 8) * lanes


def _steps(visits: list[_Visit]) -> dict[str, Value] | None:
    """Return registers' constant steps in an iteration, if constant."""
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


_NEGATED = {"ge": "lt", "hs": "lo", "gt": "le", "hi": "ls"}
_FOREVER = 1 << 62


def _gap(pair: Comparison) -> Value:
    left, right = [side if isinstance(side, int) else side.astype(np.int64) for side in pair]
    return left - right


def _iterations(comparison: Instruction, gap: Value, step: Value) -> int:
    test = _NEGATED.get(comparison.parts[1], comparison.parts[1])
    gaps, steps = np.broadcast_arrays(np.atleast_1d(gap), np.atleast_1d(step))
    pairs = set(zip(gaps.tolist(), steps.tolist(), strict=True))
    return min(_lasting(test, int(cast("int", g)), int(cast("int", s))) for g, s in pairs)


def _lasting(test: str, gap: int, step: int) -> int:
    """Return how often ``gap`` can move by ``step`` before the answer changes.

    >>> _lasting("lt", -10, 4), _lasting("le", -8, 4), _lasting("ne", 12, -4), _lasting("lt", 5, 1)
    (2, 2, 2, 4611686018427387904)
    """
    if test in {"eq", "ne"}:
        if gap == 0:
            return _FOREVER if step == 0 else 0
        meets = step != 0 and -gap // step > 0 and gap % step == 0
        return -gap // step - 1 if meets else _FOREVER
    edge = -1 if test in {"lt", "lo"} else 0
    if gap <= edge:
        return _FOREVER if step <= 0 else (edge - gap) // step
    return _FOREVER if step >= 0 else (gap - edge - 1) // -step
