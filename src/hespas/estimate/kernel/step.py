"""One instruction for all threads of a block: addresses, guards, and what memory they touch."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from hespas.estimate.kernel.access import LINE_BYTES, SECTOR_BYTES
from hespas.estimate.kernel.arithmetic import (
    Array,
    Value,
    bits_of,
    compared,
    evaluate,
    narrowed,
)
from hespas.estimate.kernel.ptx import Instruction, Operand, address_of
from hespas.estimate.kernel.sectors import bank_passes, different, touched
from hespas.estimate.kernel.state import Pattern, Walk
from hespas.program.kernels import Extent

_FLOATS = frozenset({"f16", "bf16", "f32", "f64", "f16x2", "bf16x2"})
# What a thread cannot know without running: memory and other threads.
_FROM_DATA = frozenset({"ld", "atom", "shfl", "redux", "vote", "match", "ldmatrix", "elect"})
_PARAMETER_SPACING = 1 << 40
_FAR_SECTORS = 2048 // SECTOR_BYTES
"""A page of device memory stays open: what lies no farther on belongs to the same run."""

_SHARED_SPACING = 1 << 20
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
    if from_memory or not state.from_data.isdisjoint(instruction.reads):
        state.from_data.update(instruction.writes)
    elif state.from_data:
        state.from_data.difference_update(instruction.writes)


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
    known = cast("list[Value]", operands)
    if parts[0] == "setp":
        history = state.comparisons.setdefault(position, [])
        history.append(compared(parts, known))
        del history[:-3]
    found = evaluate(parts, known)
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
    return _name(source)


def _name(text: str) -> int | None:
    """Return the address of a shared or local variable, told apart by its name."""
    if text[0].isdigit() or text[0] in "-[":
        return None
    return _SHARED_SPACING * (1 + sum(text.encode()) % 1024)


def _parameter(operand: str, bits: int) -> int:
    """Return the address that a parameter holds, told apart by its number; 0 for a number."""
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
    if start is None or base in state.from_data:
        state.data_addresses.add(position)
    if start is None:
        start = np.arange(state.threads, dtype=np.int64) * 4096
    if instruction.name == "ld":
        _load(state, instruction, start, offset)
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


def _load(state: Walk, instruction: Instruction, start: Value, offset: int) -> None:
    """Put stand-ins into those registers that addresses or branches depend on."""
    for number, name in enumerate(instruction.writes):
        if name in state.flow.followed:
            state.registers[name] = _loaded(narrowed(start, 64) + offset, number)
    state.from_data.update(instruction.writes)


def _pattern(state: Walk, start: Value, offset: int, mask: Array | None) -> Pattern:
    """Return what an access touches, or one whole lines away from it touched."""
    key = (id(start), id(mask), offset % LINE_BYTES)
    known = state.patterns.get(key)
    if known is None or isinstance(start, int):
        address = narrowed(start, 64) + offset
        known = state.patterns[key] = Pattern(
            start=start,
            mask=mask,
            offset=offset,
            stride=_stride(address),
            found=touched(address, mask, state.threads),
        )
    return known


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
    known = state.bank_patterns.get(key)
    if known is None:
        passes = bank_passes(narrowed(start, 64) + offset, mask, state.threads, width)
        known = state.bank_patterns[key] = (start, mask, passes)
    return known[2]


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

    >>> from hespas.estimate.kernel.ptx import read_kernel
    >>> kernel = read_kernel(".entry k() { st.global.v4.b16 [%rd1], {%a, %b, %c, %d}; ret; }")
    >>> width_bytes(kernel.instructions[0])
    8
    """
    kind = instruction.parts[-1]
    lanes = next((int(p[1:]) for p in instruction.parts if p[0] == "v" and p[1:].isdigit()), 1)
    bits = "".join(character for character in kind if character.isdigit())
    return max(1, int(bits or 32) // 8) * lanes
