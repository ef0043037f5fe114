"""What goes to a worker, and what comes back: plain values, written as JSON."""

from __future__ import annotations

from enum import Enum

import msgspec


class Phase(Enum):
    """How a candidate is predicted: by a model of the compiler, by the compiler, or otherwise.

    The values name fidelities of a prediction.
    """

    SCREEN = "fused"
    COMPILE = "compiled"
    EXPORTED = "exported"
    AS_FOUND = "auto"


class Ending(Enum):
    """How an evaluation ended."""

    DONE = "done"
    FAILED = "failed"
    EXHAUSTED = "exhausted"
    """Its worker or another program ended, as for want of memory: another run tries it again."""
    REFUSED = "refused"
    """The machine can't: it has other versions or files than the study was made with, or no room.

    That is no property of the candidate, and is not kept.
    """


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation. ``key`` is made of everything that decides its outcome.

    One that ``may_stay`` needs no other process for JAX, nor JAX for anything else; its worker
    keeps JAX for the next. ``versions`` are those that the key is made with. A worker elsewhere
    makes the key anew, as ``is_checked`` asks for, and refuses the task if its own differs.
    """

    key: str
    candidate: dict[str, object]
    phase: Phase
    with_report: bool = False
    versions: dict[str, str] = {}
    may_stay: bool = False
    is_checked: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a task: figures by name, or the reason why there are none.

    ``report`` is what ``hespas run --json`` writes, where the task asks for it. ``elapsed_s``,
    ``cpu_s`` and ``peak_memory_bytes`` are those of the evaluation. ``cached`` are files of the
    user's caches that a task used which is checked (`hespas.study.caches`).
    """

    ending: Ending
    figures: dict[str, float | int | None] = {}
    fidelity: str = ""
    reason: str = ""
    report: str = ""
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    cached: list[str] = []


class Brought(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome, with files of the caches of the machine that it was made on, by their names."""

    outcome: Outcome
    files: dict[str, bytes] = {}


def failed(reason: str, *, elapsed_s: float) -> Outcome:
    """Return the outcome of a task that can't be done."""
    return Outcome(ending=Ending.FAILED, reason=reason, elapsed_s=elapsed_s)


def exhausted(reason: str, *, elapsed_s: float = 0.0) -> Outcome:
    """Return the outcome of a task that this machine could not do now."""
    return Outcome(ending=Ending.EXHAUSTED, reason=reason, elapsed_s=elapsed_s)
