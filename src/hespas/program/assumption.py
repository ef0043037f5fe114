"""Subjects of assumptions, and what they decide.

Assumptions are sentences, which programs, estimates, systems and timelines hold. One that decides
more than time begins with its subject, as in ``memory: weights are held in f32``: `SUBJECTS` says
what the subjects decide. For any other sentence, its source may imply the subject; otherwise its
share of the step is unknown.
"""

from __future__ import annotations

from enum import Enum, auto

from hespas.base.frozen import frozen


class Part(Enum):
    """A part of a step's time that an assumption decides."""

    STEP = auto()
    COMPUTATION = auto()
    EXPOSED_COMMUNICATION = auto()
    EXPOSED_HOST_TRANSFERS = auto()
    LAUNCH_WAITS = auto()
    SLOWED_COMPUTATION = auto()
    NOTED_OPERATIONS = auto()
    """The operations that the estimate attaches the assumption to."""


@frozen
class Subject:
    """The consequences of an assumption: time, memory fit, hidden communication.

    ``part`` is the part of the step's time, None if its share is unknown. ``fits`` says that it
    decides whether the step fits in memory, ``hidden`` whether a transfer is hidden.
    """

    part: Part | None = None
    fits: bool = False
    hidden: bool = False


UNKNOWN = Subject()
OF_COMPUTATION = Subject(part=Part.COMPUTATION)
OF_COMMUNICATION = Subject(part=Part.EXPOSED_COMMUNICATION)

SUBJECTS = {
    "attention is ": Subject(fits=True),
    "cluster: ": OF_COMMUNICATION,
    "communication: ": OF_COMMUNICATION,
    "computation: ": OF_COMPUTATION,
    "contention: ": Subject(part=Part.SLOWED_COMPUTATION),
    "experts: ": Subject(part=Part.COMPUTATION, fits=True),
    "host launches: ": Subject(part=Part.LAUNCH_WAITS),
    "host: ": Subject(part=Part.EXPOSED_HOST_TRANSFERS, hidden=True),
    "kernels are those": Subject(part=Part.COMPUTATION, fits=True, hidden=True),
    "measured: ": Subject(part=Part.NOTED_OPERATIONS),
    "memory: ": Subject(fits=True),
    "network: ": Subject(part=Part.EXPOSED_COMMUNICATION, hidden=True),
    "overlap: ": Subject(part=Part.EXPOSED_COMMUNICATION, hidden=True),
    "pipeline: sums of gradients": Subject(fits=True),
    "the batch is ": Subject(part=Part.STEP, fits=True),
    "the mesh is ": Subject(part=Part.STEP, fits=True),
    "the model is ": Subject(part=Part.STEP, fits=True),
    "the program is as XLA ": OF_COMPUTATION,
    "the program is not compiled first: ": OF_COMPUTATION,
}
"""The subject of an assumption by the sentence's first words."""


@frozen
class Assumed:
    """An assumption with its subject."""

    text: str
    subject: Subject


def assumed(text: str, otherwise: Subject = UNKNOWN) -> Assumed:
    """Return an assumption with its subject, else ``otherwise``.

    >>> assumed("memory: weights are held in f32").subject.fits
    True
    >>> assumed("NVLink is fast", OF_COMMUNICATION).subject.part.name
    'EXPOSED_COMMUNICATION'
    """
    subjects = (subject for start, subject in SUBJECTS.items() if text.startswith(start))
    return Assumed(text=text, subject=next(subjects, otherwise))
