"""Collective algorithms as steps: how many bytes each message has, and how often it is sent.

The algorithms are those of `hespas.collectives`. A schedule's rounds become steps: in a step all
messages go at once, and the next step begins when all have arrived. Sizes are of one member's input
(see `hespas.tasks.graph.CollectiveTask.size_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from hespas.collectives import algorithms as collective_algorithms
from hespas.collectives.algorithms import ALGORITHMS, binary_tree_all_reduce
from hespas.collectives.patterns import Form, Pattern, messages_per_member, tree_depths
from hespas.collectives.schedule import HIERARCHICAL, Operation, Schedule
from hespas.program.collectives import CollectiveKind
from hespas.simulate.flow import choices

AROUND = "bidirectional-ring"
"""The algorithm of rings along the axes of a torus."""
_MOST_DIRECT = 64
"""Larger groups don't keep connections between all pairs, except for all-to-all."""


def collective_of(kind: str) -> CollectiveKind:
    """Return the collective of a kind such as ``all_reduce``."""
    return CollectiveKind[kind.upper()]


def kinds_of(algorithm: str) -> tuple[str, ...]:
    """Return the kinds of collectives that an algorithm can run.

    >>> kinds_of("double-binary-tree")
    ('all_reduce',)
    """
    match algorithm:
        case choices.HIERARCHICAL:
            able = HIERARCHICAL
        case choices.MULTI_AXIS | choices.HAMILTONIAN:
            able = tuple(ALGORITHMS[AROUND].rounds)
        case _:
            able = tuple(ALGORITHMS[algorithm].rounds)
    return tuple([collective.text for collective in able])


def algorithms_for(kind: str, members: int) -> tuple[str, ...]:
    """Return the algorithms to choose from for a collective among so many members.

    >>> algorithms_for("all_to_all", 6)
    ('direct', 'ring')
    """
    able = collective_algorithms.algorithms_for(collective_of(kind), members)
    return tuple([
        one.name
        for one in able
        if members <= _MOST_DIRECT or one.name != "direct" or kind == "all_to_all"
    ])  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """``count`` equal steps, one after the other.

    ``reduced_bytes`` is what a member reduces after each; ``messages`` how many it sends, each of
    which costs it the overhead of a step; ``hops`` how many members a byte passes in a pipeline.
    """

    pattern: Pattern
    size_bytes: int
    count: int = 1
    reduced_bytes: int = 0
    messages: int = 1
    hops: int = 1


def steps_of(
    kind: str,
    algorithm: str,
    *,
    members: int,
    size_bytes: int,
    window: int | None = None,
    pipeline_bytes: int | None = None,
) -> list[Step]:
    """Return the steps of a collective.

    ``window`` limits to how many others a direct algorithm sends at once. ``pipeline_bytes`` is the
    piece in which double binary trees hand data on; None stands for whole buffers. Raises
    `AlgorithmError` where the algorithm can't run the collective.

    >>> steps = steps_of("all_reduce", "ring", members=4, size_bytes=1000)
    >>> [(step.count, step.size_bytes, step.reduced_bytes) for step in steps]
    [(3, 250, 250), (3, 250, 0)]
    """
    schedule = ALGORITHMS[algorithm].schedule(collective_of(kind), members)
    if algorithm == "double-binary-tree":
        if pipeline_bytes is not None:
            return [_pipelined_trees(members, size_bytes, pipeline_bytes)]
        # ASTRA-sim's form of it, where each buffer goes by one of the trees.
        schedule = binary_tree_all_reduce(members)
    return list(_steps(schedule.windowed(window), size_bytes))


def _steps(schedule: Schedule, size_bytes: int) -> Iterator[Step]:
    """Yield the rounds of a schedule as steps."""
    for rounds in schedule.rounds:
        is_reduction = rounds.operation is Operation.REDUCE
        if rounds.pattern.form is Form.PATH:
            # A pipeline of so small pieces that the latency counts for the first alone.
            yield Step(
                pattern=rounds.pattern,
                size_bytes=size_bytes,
                reduced_bytes=size_bytes if is_reduction else 0,
                hops=rounds.depth,
            )
            continue
        reduced_bytes = 0
        if is_reduction or _waits_like_a_reduction(schedule, rounds.pattern):
            parts = rounds.size_parts * schedule.channels
            reduced_bytes = size_bytes * parts // schedule.input_parts
        if rounds.pattern == Pattern(Form.EXCHANGE, 1):
            # ASTRA-sim reduces what is sent next; nothing follows the first exchange's share.
            reduced_bytes = 0
        yield Step(
            pattern=rounds.pattern,
            size_bytes=schedule.message_bytes(rounds, size_bytes),
            count=rounds.count,
            reduced_bytes=reduced_bytes,
            messages=messages_per_member(rounds.pattern, schedule.members),
        )


def _waits_like_a_reduction(schedule: Schedule, pattern: Pattern) -> bool:
    """Return whether members wait as for a reduction although they only hand data on.

    In ASTRA-sim the inner members of a binary tree do, on the way down.
    """
    return pattern.form is Form.DESCEND and pattern.first < max(tree_depths(schedule.members))


def _pipelined_trees(members: int, size_bytes: int, pipeline_bytes: int) -> Step:
    """Return two binary trees, each with half of the data, in pieces that follow each other."""
    half_bytes = ceil(size_bytes / 2)
    piece_bytes = max(1, min(pipeline_bytes, half_bytes))
    depth = max(tree_depths(members))
    return Step(
        pattern=Pattern(Form.BOTH_TREES),
        size_bytes=piece_bytes,
        count=2 * depth + ceil(half_bytes / piece_bytes) - 1,
        reduced_bytes=piece_bytes,
    )
