"""Collective algorithms as steps: who sends how many bytes to whom, how often.

Among n members with S bytes (an all-gather's, a gather's and a scatter's shares included: see
`hespas.schedule.tasks.CollectiveTask.size_bytes`). In every step all messages go at once, and the
next step begins when all have come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

from hespas.errors import SimulationError
from hespas.simulate.flow import rings
from hespas.simulate.flow.patterns import Form, Pattern, shift, tree_depths
from hespas.simulate.flow.steps import Step, Task

MOST_DIRECT = 64
"""Larger groups don't keep connections between all pairs, but for all-to-all."""


Rule = Callable[[Task], list[Step]]


def steps_of(kind: str, algorithm: str, task: Task) -> list[Step]:
    """Return the steps of a collective.

    Raises `SimulationError` where the algorithm can't do this.

    >>> steps = steps_of("all_reduce", "ring", Task(members=4, size_bytes=1000))
    >>> [(step.count, step.size_bytes, step.reduced_bytes) for step in steps]
    [(3, 250, 250), (3, 250, 0)]
    """
    rule = _RULES.get((kind, algorithm))
    if rule is None:
        raise SimulationError(f"there is no {kind} by {algorithm}")
    return rule(task)


def algorithms_for(kind: str, members: int) -> tuple[str, ...]:
    """Return the algorithms that can run a collective among so many members.

    >>> algorithms_for("all_to_all", 6)
    ('direct', 'ring')
    """
    is_power = members & members - 1 == 0
    return tuple(
        algorithm
        for of, algorithm in _RULES
        if of == kind
        and (is_power or algorithm != "halvingDoubling")
        and (members <= MOST_DIRECT or algorithm != "direct" or kind == "all_to_all")
    )


def _direct(task: Task, each_bytes: int, *, reduces: bool) -> list[Step]:
    peers = task.members - 1
    window = min(task.window or peers, peers)
    return [
        Step(
            pattern=shift(first, min(first + window - 1, peers)),
            size_bytes=each_bytes,
            reduced_bytes=each_bytes if reduces else 0,
            messages=min(window, peers - first + 1),
        )
        for first in range(1, peers + 1, window)
    ]


def _direct_all_reduce(task: Task) -> list[Step]:
    each = task.size_bytes // task.members
    return [*_direct(task, each, reduces=True), *_direct(task, each, reduces=False)]


def _direct_reduce_scatter(task: Task) -> list[Step]:
    return _direct(task, task.size_bytes // task.members, reduces=True)


def _direct_all_gather(task: Task) -> list[Step]:
    return _direct(task, task.size_bytes, reduces=False)


def _direct_all_to_all(task: Task) -> list[Step]:
    return _direct(task, task.size_bytes // task.members, reduces=False)


def _direct_gather(task: Task) -> list[Step]:
    return [Step(pattern=Pattern(Form.TO_ROOT), size_bytes=task.size_bytes)]


def _direct_scatter(task: Task) -> list[Step]:
    peers = task.members - 1
    each = task.size_bytes // task.members
    return [Step(pattern=Pattern(Form.FROM_ROOT), size_bytes=each, messages=peers)]


def _levels(task: Task) -> int:
    levels = task.members.bit_length() - 1
    if task.members != 1 << levels:
        message = f"halvingDoubling among {task.members}, which is not a power of two"
        raise SimulationError(message)
    return levels


def _halving(task: Task) -> list[Step]:
    return [
        Step(
            pattern=Pattern(Form.EXCHANGE, 1 << level),
            size_bytes=task.size_bytes >> level + 1,
            # ASTRA-sim's figures: what is sent next has been reduced, but for the first.
            reduced_bytes=task.size_bytes >> level + 1 if level else 0,
        )
        for level in range(_levels(task))
    ]


def _halving_all_reduce(task: Task) -> list[Step]:
    down = _halving(task)
    return [
        *down,
        *(Step(pattern=step.pattern, size_bytes=step.size_bytes) for step in reversed(down)),
    ]


def _doubling(task: Task) -> list[Step]:
    return [
        Step(
            pattern=Pattern(Form.EXCHANGE, task.members >> level + 1),
            size_bytes=task.size_bytes << level,
        )
        for level in range(_levels(task))
    ]


def _tree_all_reduce(task: Task) -> list[Step]:
    if task.pipeline_bytes is None:
        return _whole_tree(task)
    half = ceil(task.size_bytes / 2)
    piece = max(1, min(task.pipeline_bytes, half))
    depth = max(tree_depths(task.members))
    return [
        Step(
            pattern=Pattern(Form.BOTH_TREES),
            size_bytes=piece,
            count=2 * depth + ceil(half / piece) - 1,
            reduced_bytes=piece,
        )
    ]


def _whole_tree(task: Task) -> list[Step]:
    """Send the whole buffer up one tree, level by level, and down again."""
    depth = max(tree_depths(task.members))
    size = task.size_bytes
    up = [
        Step(pattern=Pattern(Form.CLIMB, level), size_bytes=size, reduced_bytes=size)
        for level in range(depth, 0, -1)
    ]
    down = [
        Step(
            pattern=Pattern(Form.DESCEND, level),
            size_bytes=size,
            # ASTRA-sim's figures: inner members wait as for a reduction on the way down too.
            reduced_bytes=size if level < depth else 0,
        )
        for level in range(1, depth + 1)
    ]
    return [*up, *down]


def _doublings(members: int) -> list[int]:
    return [1 << level for level in range((members - 1).bit_length())]


def _binomial_broadcast(task: Task) -> list[Step]:
    return [
        Step(pattern=Pattern(Form.SPREAD, reach), size_bytes=task.size_bytes)
        for reach in _doublings(task.members)
    ]


def _binomial_reduce(task: Task) -> list[Step]:
    size = task.size_bytes
    return [
        Step(pattern=Pattern(Form.COLLECT, reach), size_bytes=size, reduced_bytes=size)
        for reach in reversed(_doublings(task.members))
    ]


def _dissemination(task: Task) -> list[Step]:
    return [Step(pattern=shift(reach), size_bytes=0) for reach in _doublings(task.members)]


def _in_switch(task: Task) -> list[Step]:
    # Everyone sends its buffer to the switch once, and gets the result once.
    return [Step(pattern=shift(1), size_bytes=task.size_bytes)]


def _in_switch_all_gather(task: Task) -> list[Step]:
    # The wire down to a member carries what all others have.
    peers = task.members - 1
    return [Step(pattern=shift(1), size_bytes=task.size_bytes * peers)]


_RULES: Mapping[tuple[str, str], Rule] = {
    ("all_reduce", "ring"): rings.ring_all_reduce,
    ("all_reduce", "bidirectionalRing"): rings.both_rings_all_reduce,
    ("all_reduce", "direct"): _direct_all_reduce,
    ("all_reduce", "halvingDoubling"): _halving_all_reduce,
    ("all_reduce", "doubleBinaryTree"): _tree_all_reduce,
    ("all_reduce", "inSwitch"): _in_switch,
    ("reduce_scatter", "ring"): rings.ring_reduce_scatter,
    ("reduce_scatter", "bidirectionalRing"): rings.both_rings_reduce_scatter,
    ("reduce_scatter", "direct"): _direct_reduce_scatter,
    ("reduce_scatter", "halvingDoubling"): _halving,
    ("reduce_scatter", "inSwitch"): _in_switch,
    ("all_gather", "ring"): rings.ring_all_gather,
    ("all_gather", "bidirectionalRing"): rings.both_rings_all_gather,
    ("all_gather", "direct"): _direct_all_gather,
    ("all_gather", "halvingDoubling"): _doubling,
    ("all_gather", "inSwitch"): _in_switch_all_gather,
    ("all_to_all", "direct"): _direct_all_to_all,
    ("all_to_all", "ring"): rings.ring_all_to_all,
    ("broadcast", "ring"): rings.pipelined_path,
    ("broadcast", "binomialTree"): _binomial_broadcast,
    ("broadcast", "inSwitch"): _in_switch,
    ("reduce", "ring"): rings.pipelined_reduction,
    ("reduce", "binomialTree"): _binomial_reduce,
    ("reduce", "inSwitch"): _in_switch,
    ("gather", "direct"): _direct_gather,
    ("scatter", "direct"): _direct_scatter,
    ("barrier", "dissemination"): _dissemination,
}
ALGORITHMS = tuple(sorted({algorithm for _, algorithm in _RULES} | {"hierarchical"}))
HIERARCHICAL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""The collectives that can run along one dimension after the other."""


def kinds_of(algorithm: str) -> tuple[str, ...]:
    """Return the collectives that an algorithm can run.

    >>> kinds_of("doubleBinaryTree")
    ('all_reduce',)
    """
    if algorithm == "hierarchical":
        return HIERARCHICAL
    return tuple(kind for kind, of in _RULES if of == algorithm)
