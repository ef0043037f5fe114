"""Basic blocks, loops, and the slice of a kernel that decides where it goes and what it touches.

A comparison whose sides move by constant steps keeps its answer for a number of iterations that
follows from a division; a loop goes on as it does for the least such number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import cast

import msgspec
import numpy as np

from hespas.price.ptx.arithmetic import Value
from hespas.price.ptx.parser import Instruction, Kernel, address_of

_ENDS = frozenset({"bra", "ret", "exit", "trap"})
_ACCESSES = frozenset({"ld", "st", "atom", "red"})
NOWHERE = -1


class BasicBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions ``start`` up to but without ``stop``, always executed together.

    ``steps`` are the positions of those that the walk has to follow; ``after`` is the block
    that follows in the text, ``target`` the one that its last instruction jumps to; `NOWHERE`
    where there is none.
    """

    start: int
    stop: int
    steps: tuple[int, ...]
    after: int
    target: int


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel cut into basic blocks, in an order in which only loops lead back.

    ``loops`` gives the blocks of each loop by its head. ``followed`` are the registers that
    addresses, guards and branches depend on.
    """

    blocks: tuple[BasicBlock, ...]
    loops: Mapping[int, frozenset[int]]
    followed: frozenset[str]


def is_access(instruction: Instruction) -> bool:
    """Return whether an instruction touches global or shared memory."""
    if instruction.parts[0] not in _ACCESSES:
        return False
    return "global" in instruction.parts or "shared" in instruction.parts


def flow_of(kernel: Kernel) -> Flow:
    """Cut a kernel into basic blocks, find its loops, and mark what has to be followed."""
    instructions = kernel.instructions
    starts = {0, *kernel.labels.values()}
    starts |= {i + 1 for i, each in enumerate(instructions) if each.parts[0] in _ENDS}
    ordered = sorted(start for start in starts if start < len(instructions))
    stops = [*ordered[1:], len(instructions)]
    edges = [_edges(kernel, ordered, stop) for stop in stops]
    order, loops = _order(edges)
    number = {text: new for new, text in enumerate(order)} | {NOWHERE: NOWHERE}
    followed = _followed(instructions)
    return Flow(
        blocks=tuple(
            BasicBlock(
                start=ordered[text],
                stop=stops[text],
                steps=_steps(instructions, ordered[text], stops[text], followed),
                after=number[edges[text][0]],
                target=number[edges[text][1]],
            )
            for text in order
        ),
        loops={
            number[head]: frozenset(number[each] for each in body) for head, body in loops.items()
        },
        followed=frozenset(followed),
    )


def _steps(
    instructions: Sequence[Instruction], start: int, stop: int, followed: set[str]
) -> tuple[int, ...]:
    return tuple(
        [
            i
            for i, each in enumerate(instructions[start:stop], start)
            if not followed.isdisjoint(each.writes) or is_access(each)
        ]
    )


def _edges(kernel: Kernel, starts: Sequence[int], stop: int) -> tuple[int, int]:
    """Return the block after and the block jumped to, as numbers in the text."""
    last = kernel.instructions[stop - 1]
    after = starts.index(stop) if stop < len(kernel.instructions) else NOWHERE
    if last.name == "bra":
        target = starts.index(kernel.labels[str(last.sources[0])])
        return (after if last.guard else NOWHERE), target
    is_end = last.name in _ENDS and not last.guard
    return (NOWHERE if is_end else after), NOWHERE


def _order(edges: Sequence[tuple[int, int]]) -> tuple[list[int], dict[int, set[int]]]:
    """Return the blocks in reverse postorder, each loop together, and the loops by head."""
    first = _postorder(edges, {})
    rank = {block: -position for position, block in enumerate(first)}
    loops: dict[int, set[int]] = {}
    into: dict[int, list[int]] = {}
    for block in first:
        for target in edges[block]:
            into.setdefault(target, []).append(block)
    for block in first:
        for head in edges[block]:
            if head != NOWHERE and rank[head] <= rank[block]:
                _add_body(loops.setdefault(head, {head}), block, into)
    depth = {block: sum(block in body for body in loops.values()) for block in first}
    return _postorder(edges, depth)[::-1], loops


def _add_body(body: set[int], tail: int, into: Mapping[int, list[int]]) -> None:
    waiting = [tail]
    while waiting:
        block = waiting.pop()
        if block not in body:
            body.add(block)
            waiting.extend(into.get(block, ()))


def _postorder(edges: Sequence[tuple[int, int]], depth: Mapping[int, int]) -> list[int]:
    """Return the blocks as a depth-first search leaves them, what leaves loops first."""
    found: list[int] = []
    entered = {0}
    waiting = [(0, _nexts(edges[0], depth))]
    while waiting:
        block, nexts = waiting[-1]
        if not nexts:
            found.append(block)
            waiting.pop()
            continue
        target = nexts.pop(0)
        if target not in entered:
            entered.add(target)
            waiting.append((target, _nexts(edges[target], depth)))
    return found


def _nexts(edges: tuple[int, int], depth: Mapping[int, int]) -> list[int]:
    after, target = edges
    targets = [each for each in (target, after) if each != NOWHERE]
    return sorted(targets, key=lambda each: depth.get(each, 0))


def _followed(instructions: tuple[Instruction, ...]) -> set[str]:
    """Return the registers that addresses, guards and branches depend on."""
    makers: dict[str, list[Instruction]] = {}
    for each in instructions:
        for name in each.writes:
            makers.setdefault(name, []).append(each)
    waiting = [each.guard for each in instructions if each.guard]
    waiting += [address_of(each)[0] for each in instructions if is_access(each)]
    followed: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in followed or name[:1] != "%":
            continue
        followed.add(name)
        for maker in makers.get(name, ()):
            waiting.extend(maker.reads)
    return followed


_NEGATED = {"ge": "lt", "hs": "lo", "gt": "le", "hi": "ls"}
_FOREVER = 1 << 62


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks that lead back to ``head``.

    ``carried`` are registers that an iteration reads before it writes them; ``comparisons`` the
    positions of the ``setp`` that decide its branches.
    """

    head: int
    body: frozenset[int]
    carried: tuple[str, ...]
    comparisons: tuple[int, ...]


def loop_of(kernel: Kernel, flow: Flow, head: int) -> Loop:
    """Describe the loop of a head."""
    body = flow.loops[head]
    blocks = [flow.blocks[number] for number in sorted(body)]
    followed = [position for block in blocks for position in block.steps]
    written = {name for i in followed for name in kernel.instructions[i].writes}
    carried: dict[str, None] = {}
    done: set[str] = set()
    for position in followed:
        each = kernel.instructions[position]
        carried.update(dict.fromkeys(n for n in each.reads if n in written and n not in done))
        done.update(each.writes)
    inside = [i for block in blocks for i in range(block.start, block.stop)]
    return Loop(
        head=head,
        body=body,
        carried=tuple(carried),
        comparisons=_deciding(kernel, inside),
    )


def _deciding(kernel: Kernel, inside: Sequence[int]) -> tuple[int, ...]:
    """Return the comparisons inside a loop that its branches and guards depend on."""
    writers: dict[str, list[int]] = {}
    for position in inside:
        for name in kernel.instructions[position].writes:
            writers.setdefault(name, []).append(position)
    waiting = [kernel.instructions[i].guard for i in inside if kernel.instructions[i].guard]
    found: set[int] = set()
    asked: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in asked:
            continue
        asked.add(name)
        for position in writers.get(name, ()):
            maker = kernel.instructions[position]
            if maker.name == "setp":
                found.add(position)
            elif maker.parts[-1] == "pred":
                waiting.extend(maker.reads)
    return tuple(sorted(found))


def further_iterations(
    loop: Loop,
    history: Mapping[int, Sequence[tuple[Value, Value]]],
    kernel: Kernel,
    from_data: AbstractSet[str],
) -> int | None:
    """Return for how many more iterations every comparison keeps its answer.

    Comparisons of data, which set a register of ``from_data``, are taken to keep theirs. None
    where nothing that is known ends the loop; 0 where a comparison doesn't move steadily.
    """
    left = _FOREVER
    for position in loop.comparisons:
        if not from_data.isdisjoint(kernel.instructions[position].writes):
            continue
        sides = history.get(position, ())
        if len(sides) < 3:
            return 0
        gaps = [_gap(pair) for pair in sides[-3:]]
        step = gaps[2] - gaps[1]
        if np.any(step != gaps[1] - gaps[0]):
            return 0
        left = min(left, _iterations(kernel.instructions[position], gaps[2], step))
    return None if left >= _FOREVER else left


def _gap(pair: tuple[Value, Value]) -> Value:
    left, right = pair
    wide = [each if isinstance(each, int) else each.astype(np.int64) for each in (left, right)]
    return wide[0] - wide[1]


def _iterations(comparison: Instruction, gap: Value, step: Value) -> int:
    asked = comparison.parts[1]
    asked = _NEGATED.get(asked, asked)
    gaps, steps = np.broadcast_arrays(np.atleast_1d(gap), np.atleast_1d(step))
    each = [
        _lasting(asked, int(cast("int", g)), int(cast("int", s)))
        for g, s in set(zip(gaps.tolist(), steps.tolist(), strict=True))
    ]
    return min(each)


def _lasting(asked: str, gap: int, step: int) -> int:
    """Return how often ``gap`` can move by ``step`` before the answer changes.

    >>> _lasting("lt", -10, 4), _lasting("le", -8, 4), _lasting("ne", 12, -4), _lasting("lt", 5, 1)
    (2, 2, 2, 4611686018427387904)
    """
    if asked in {"eq", "ne"}:
        return _until_equal(gap, step)
    edge = -1 if asked in {"lt", "lo"} else 0
    if gap <= edge:
        return _FOREVER if step <= 0 else (edge - gap) // step
    return _FOREVER if step >= 0 else (gap - edge - 1) // -step


def _until_equal(gap: int, step: int) -> int:
    if gap == 0:
        return _FOREVER if step == 0 else 0
    meets = step != 0 and -gap // step > 0 and gap % step == 0
    return -gap // step - 1 if meets else _FOREVER
