"""Algorithms that hand data on from neighbour to neighbour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from hespas.simulate.flow.patterns import Form, Pattern, shift
from hespas.simulate.flow.steps import Step, Task


def ring_all_reduce(task: Task) -> list[Step]:
    """Scatter and reduce around the ring, then gather around it."""
    return [*ring_reduce_scatter(task), *_ring_gather(task, task.size_bytes // task.members)]


def ring_reduce_scatter(task: Task) -> list[Step]:
    """Hand a share to the next, which adds its own, n - 1 times."""
    each = task.size_bytes // task.members
    return [Step(pattern=shift(1), size_bytes=each, count=task.members - 1, reduced_bytes=each)]


def ring_all_gather(task: Task) -> list[Step]:
    """Hand what came from one neighbour to the other, n - 1 times."""
    return _ring_gather(task, task.size_bytes)


def _ring_gather(task: Task, share_bytes: int) -> list[Step]:
    return [Step(pattern=shift(1), size_bytes=share_bytes, count=task.members - 1)]


def _both_ways(steps: Sequence[Step]) -> list[Step]:
    # Half of everything goes around the other way.
    return [
        replace(
            step,
            pattern=Pattern(Form.NEIGHBOURS),
            size_bytes=ceil(step.size_bytes / 2),
            messages=2,
        )
        for step in steps
    ]


def both_rings_all_reduce(task: Task) -> list[Step]:
    """Do as `ring_all_reduce` does, half of the data around each way."""
    return _both_ways(ring_all_reduce(task))


def both_rings_reduce_scatter(task: Task) -> list[Step]:
    """Do as `ring_reduce_scatter` does, half of the data around each way."""
    return _both_ways(ring_reduce_scatter(task))


def both_rings_all_gather(task: Task) -> list[Step]:
    """Do as `ring_all_gather` does, half of the data around each way."""
    return _both_ways(ring_all_gather(task))


def ring_all_to_all(task: Task) -> list[Step]:
    """Hand data for the k-th neighbour on k times: 1 + 2 + ... + (n - 1) steps."""
    n = task.members
    return [Step(pattern=shift(1), size_bytes=task.size_bytes // n, count=n * (n - 1) // 2)]


def pipelined_path(task: Task) -> list[Step]:
    """Send pieces so small that only the first one's way counts: latencies, and the size once."""
    return [Step(pattern=Pattern(Form.PATH), size_bytes=task.size_bytes, hops=task.members - 1)]


def pipelined_reduction(task: Task) -> list[Step]:
    """Do the same, each member reducing what it hands on."""
    (step,) = pipelined_path(task)
    return [
        Step(
            pattern=step.pattern,
            size_bytes=task.size_bytes,
            hops=step.hops,
            reduced_bytes=task.size_bytes,
        )
    ]
