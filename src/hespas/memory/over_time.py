"""The memory in use while each operation of a compiled program runs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

from hespas.memory.liveness import inner_liveness, levels_of
from hespas.memory.usage import Settled, settled
from hespas.program.program import Block, Op, Program


def operation_key(op: Op) -> Hashable:
    """Return what an operation is known by: its name, or itself where it has none."""
    return op.instruction or op


def memory_of_operations(program: Program) -> Mapping[Hashable, int]:
    """Return the device memory in use while each operation of a scheduled program runs.

    Arguments and outputs are held throughout. The largest value is
    `hespas.memory.usage.MemoryUse.peak_bytes` without the gaps between buffers. A program that no
    compiler scheduled gives nothing: its order isn't that of a device.
    """
    if not program.is_scheduled:
        return {}
    state = settled(program)
    return dict(_main(program, state))


def _main(program: Program, state: Settled) -> Iterator[tuple[Hashable, int]]:
    levels = levels_of(state.liveness, state.temporaries)
    block = state.main.body
    for moment, op in enumerate(block.operations):
        live_bytes = state.held_bytes + levels[moment]
        inner = state.liveness.inner.get(moment)
        yield operation_key(op), live_bytes + (0 if inner is None else inner.size_bytes)
        yield from _inside(program, op, live_bytes)


def _inside(program: Program, op: Op, outer_bytes: int) -> Iterator[tuple[Hashable, int]]:
    """Yield the memory of the operations of a loop's body, or of branches."""
    if op.kind not in ("while", "case", "if"):
        return
    for number, block in enumerate(op.regions):
        yield from _block(program, op, number, block, outer_bytes)


def _block(
    program: Program, op: Op, number: int, block: Block, outer_bytes: int
) -> Iterator[tuple[Hashable, int]]:
    liveness = inner_liveness(program, op, number)
    levels = levels_of(liveness, liveness.temporaries())
    for moment, inner in enumerate(block.operations):
        live_bytes = outer_bytes + levels[moment]
        peak = liveness.inner.get(moment)
        yield operation_key(inner), live_bytes + (0 if peak is None else peak.size_bytes)
        yield from _inside(program, inner, live_bytes)
