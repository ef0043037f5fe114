"""A schedule as text: a line for each stage, with its passes in order.

``F3`` is the forward pass of micro-batch 3, ``B3`` its backward pass, ``W3`` the gradients of its
weights, where a schedule has them apart. ``F3.1`` is that of chunk 1 of the stage. What stands
before a colon names the stage and is not read; ``#`` begins a comment.
"""

from __future__ import annotations

import re
from pathlib import Path

from hespas.base.limits import MOST_DIGITS
from hespas.errors import ConfigError
from hespas.tasks.pipelining.order import check_schedule
from hespas.tasks.pipelining.schedule import Action, Pass, Schedule

_PASS = re.compile(rf"([FBW])(\d{{1,{MOST_DIGITS}}})(?:\.(\d{{1,{MOST_DIGITS}}}))?")


def read_schedule(text: str, *, name: str) -> Schedule:
    r"""Return the schedule that a text has.

    Raises `ConfigError` with the line for what is no pass, and for a schedule that can't run.

    >>> schedule = read_schedule("0: F0 F1 B0 B1\n1: F0 B0 F1 B1", name="mine")
    >>> schedule.stages, schedule.micro_batches, schedule.chunks
    (2, 2, 1)
    """
    order: list[tuple[Action, ...]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        kept = line.partition("#")[0]
        named, colon, listed = kept.partition(":")
        words = (listed if colon else named).split()
        if words:
            order.append(tuple(_action(word, f"{name}:{number}") for word in words))
    if not order:
        raise ConfigError("no stage has a pass", location=name, hint="write a line for each stage")
    actions = [action for each in order for action in each]
    schedule = Schedule(
        name=name,
        micro_batches=1 + max(action.micro_batch for action in actions),
        chunks=1 + max(action.chunk for action in actions),
        order=tuple(order),
    )
    if schedule.micro_batches * schedule.chunks > len(actions):
        raise ConfigError(
            f"micro-batch {schedule.micro_batches - 1} is named, but there are {len(actions)} "
            "passes in all",
            location=name,
            hint="number micro-batches and chunks from 0 on",
        )
    check_schedule(schedule, location=name)
    return schedule


def _action(word: str, location: str) -> Action:
    match = _PASS.fullmatch(word)
    if match is None:
        raise ConfigError(
            f"{word[:40]!r} is no pass", location=location, hint="write F0, B0 or W0, or F0.1"
        )
    return Action(Pass(match[1]), int(match[2]), int(match[3] or 0))


def schedule_text(schedule: Schedule) -> str:
    """Return a schedule as text, as `read_schedule` reads it.

    >>> from hespas.tasks.pipelining.generate import schedule_named
    >>> print(schedule_text(schedule_named("gpipe", stages=2, micro_batches=2)), end="")
    0: F0 F1 B1 B0
    1: F0 F1 B1 B0
    """
    lines = [f"{stage}: {' '.join(map(str, each))}" for stage, each in enumerate(schedule.order)]
    return "\n".join(lines) + "\n"


def load_schedule(path: Path) -> Schedule:
    """Return the schedule of a file; `ConfigError` for one that can't be read or can't run."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", location=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError("is no text", location=str(path), hint="give UTF-8") from error
    return read_schedule(text, name=str(path))
