"""The stages that take time: their beginnings and ends, as records of the log.

Whoever wants to show progress adds a handler to the logger ``hespas.stages`` and sets its level to
INFO. Each record has ``stage``, a `Stage`; ``event``, an `Event`; and ``seconds``, how long the
stage took, None at its beginning. A stage that needs no work, such as a compilation that is taken
from the cache, has no records.

>>> records = []
>>> class Shown(logging.Handler):
...     def emit(self, record):
...         records.append((record.stage.value, record.event.value))
>>> handler = Shown()
>>> LOG.addHandler(handler)
>>> LOG.setLevel(logging.INFO)
>>> with stage(Stage.COMPILE, "for H100_80GB"):
...     pass
>>> LOG.removeHandler(handler)
>>> LOG.setLevel(logging.NOTSET)
>>> records
[('compile', 'begin'), ('compile', 'end')]
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from enum import Enum
from time import perf_counter

LOG = logging.getLogger("hespas.stages")


class Stage(Enum):
    """A stage that can take longer than a person likes to wait without a word."""

    EXPORT = "export"
    PARTITION = "partition"
    COMPILE = "compile"
    ESTIMATE = "estimate"
    SIMULATE = "simulate"


class Event(Enum):
    """What happened to a stage; one that raises an error has failed."""

    BEGIN = "begin"
    END = "end"
    FAIL = "fail"


@contextmanager
def stage(which: Stage, what: str = "") -> Generator[None]:
    """Log that a stage begins, and that it ends or fails; ``what`` says what it works on."""
    name = f"{which.value} {what}".rstrip()
    start_s = perf_counter()
    _log(f"{name} begins", which, Event.BEGIN, None)
    try:
        yield
    except BaseException:
        _log(f"{name} failed", which, Event.FAIL, perf_counter() - start_s)
        raise
    _log(f"{name} ended", which, Event.END, perf_counter() - start_s)


def _log(text: str, which: Stage, event: Event, seconds: float | None) -> None:
    if not LOG.isEnabledFor(logging.INFO):
        return
    shown = text if seconds is None else f"{text} after {seconds:.3f} s"
    LOG.info(shown, extra={"stage": which, "event": event, "seconds": seconds})
