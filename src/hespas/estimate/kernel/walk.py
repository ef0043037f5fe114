"""Walk one block of threads through a kernel: which instructions run how often, on what addresses.

Only addresses, guards and branches are computed, for all threads of the block together. Threads
that part at a branch wait for each other: those that are furthest behind go first. A loop whose
registers move by a constant step is walked three times and then multiplied.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from hespas.estimate.kernel.arithmetic import Array, Value, narrowed
from hespas.estimate.kernel.flow import NOWHERE, Flow, flow_of, is_access
from hespas.estimate.kernel.loops import Loop, further_iterations, loop_of
from hespas.estimate.kernel.ptx import Kernel
from hespas.estimate.kernel.sectors import active_warps
from hespas.estimate.kernel.state import AccessCounts, Visit, Walk, add_counts, counts_of
from hespas.estimate.kernel.step import close, guard, special_registers, step
from hespas.program.kernels import Extent

_MOST_STEPS = 20_000


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
