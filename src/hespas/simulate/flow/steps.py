"""The steps of collective algorithms, and what an algorithm is told."""

from __future__ import annotations

from dataclasses import dataclass

from hespas.simulate.flow.patterns import Pattern


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What an algorithm has to do.

    ``window`` limits how many peers a direct one serves at once. ``pipeline_bytes`` is the piece
    in which trees hand data on (None: whole buffers).
    """

    members: int
    size_bytes: int
    window: int | None = None
    pipeline_bytes: int | None = None
