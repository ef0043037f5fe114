"""Loops: what they carry from one iteration to the next, and how many are left.

A comparison whose sides move by constant steps keeps its answer for a number of iterations that
follows from a division; a loop goes on as it does for the least such number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import cast

import msgspec
import numpy as np

from hespas.estimate.kernel.arithmetic import Value
from hespas.estimate.kernel.flow import Flow
from hespas.estimate.kernel.ptx import Instruction, Kernel

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
