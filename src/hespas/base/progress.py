"""Log the beginnings and ends of long stages.

To show progress, add a handler to the logger ``hespas.base.progress`` and set its level to
INFO, or to DEBUG for steps on the way. Each record holds a `Report` as ``report``. A stage that
needs no work, such as a compilation that is in the cache, has no records.

>>> records = []
>>> class Shown(logging.Handler):
...     def emit(self, record):
...         records.append((record.report.stage.value, record.report.event.value))
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
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from threading import Lock
from time import perf_counter

from hespas.base.frozen import frozen

LOG = logging.getLogger("hespas.base.progress")


class Stage(Enum):
    """A stage that may be long enough for progress reports."""

    EXPORT = "export"
    PARTITION = "partition"
    COMPILE = "compile"
    ESTIMATE = "estimate"
    SIMULATE = "simulate"
    VALIDATE = "validate"
    MEASURE = "measure"


class Event(Enum):
    """An event of a stage; errors are failures."""

    BEGIN = "begin"
    ADVANCE = "advance"
    END = "end"
    FAIL = "fail"


@frozen
class Report:
    """An event of a stage.

    ``subject`` is what it works on. Stages of equal ``kind`` and similar ``size`` take about
    equal times; a size of 0 means unknown. ``done`` of ``total`` parts are done, if it has parts.
    ``seconds`` is its duration, None before its end.
    """

    stage: Stage
    event: Event
    subject: str
    kind: str
    size: int
    total: int
    done: int = 0
    seconds: float | None = None


@contextmanager
def stage(
    which: Stage, subject: str = "", *, kind: str = "", size: int = 0, total: int = 0
) -> Generator[Callable[[int], None]]:
    """Log the beginning and end, or failure, of a stage.

    The arguments are fields of `Report`. Yields a function that any thread calls with the number of
    further parts done.
    """
    name = f"{which.value} {subject}".rstrip()
    start_s = perf_counter()
    begun = Report(
        stage=which, event=Event.BEGIN, subject=subject, kind=kind, size=size, total=total
    )
    _log(logging.INFO, f"{name} begins", begun)
    try:
        yield _advance(name, begun)
    except BaseException:
        _log_end(f"{name} failed", begun, Event.FAIL, perf_counter() - start_s)
        raise
    _log_end(f"{name} ended", begun, Event.END, perf_counter() - start_s)


def _advance(name: str, begun: Report) -> Callable[[int], None]:
    """Return a function that counts parts and logs every hundredth."""
    lock = Lock()
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        with lock:
            before, done = done, done + more
            now = done
        if before * 100 // begun.total < now * 100 // begun.total:
            report = replace(begun, event=Event.ADVANCE, done=now)
            _log(logging.DEBUG, f"{name}: {now} of {begun.total}", report)

    return advance if begun.total and LOG.isEnabledFor(logging.DEBUG) else _ignore


def _ignore(more: int) -> None:
    """Ignore counts that are not logged."""


def _log_end(text: str, begun: Report, event: Event, seconds: float) -> None:
    ended = replace(begun, event=event, seconds=seconds)
    _log(logging.INFO, f"{text} after {seconds:.3f} s", ended)


def _log(level: int, text: str, report: Report) -> None:
    if LOG.isEnabledFor(level):
        LOG.log(level, text, extra={"report": report})
