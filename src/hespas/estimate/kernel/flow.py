"""Basic blocks, loops, and the slice of a kernel that decides where it goes and what it touches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from hespas.estimate.kernel.ptx import Instruction, Kernel, address_of

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
    """Tell whether an instruction touches global or shared memory."""
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
    known = [each for each in (target, after) if each != NOWHERE]
    return sorted(known, key=lambda each: depth.get(each, 0))


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
