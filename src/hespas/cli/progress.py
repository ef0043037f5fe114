"""Show a long stage's progress in a terminal line.

A handler of the logger ``hespas.base.progress`` writes the line to standard error, keeps it up to
date and removes it when the stage ends. Nothing is written if standard error is no terminal, or if
the log goes there.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event as Signal
from threading import RLock, Thread
from time import perf_counter
from typing import Any, TextIO, cast

from hespas.base.files import write_file
from hespas.base.frozen import frozen
from hespas.base.home import cache_home
from hespas.base.progress import LOG, Event, Report, Stage
from hespas.errors import OutputError

FILE_NAME = "durations.json"
LEAST_S = 1.0
"""Durations below this are not recorded."""
_SIMILAR = 1.5
_MOST_KINDS = 200
_MOST_OF_A_KIND = 20

_ByKind = dict[str, list[tuple[int, float]]]


@frozen
class Durations:
    """The durations of stages by kind, the newest last."""

    file: Path

    def of_similar(self, report: Report) -> tuple[float, ...]:
        """Return the durations of similar work, within half its size."""
        durations = _read(self.file).get(_key(report), [])
        low, high = report.size / _SIMILAR, report.size * _SIMILAR
        return tuple(seconds for size, seconds in durations if low <= size <= high)

    def add(self, report: Report) -> None:
        """Record how long a stage took, if that predicts others."""
        if report.seconds is None or report.seconds < LEAST_S or not report.size:
            return
        durations = _read(self.file)
        newest = (report.size, round(report.seconds, 1))
        of_kind = [*durations.pop(_key(report), []), newest][-_MOST_OF_A_KIND:]
        latest = {**dict([*durations.items()][1 - _MOST_KINDS :]), _key(report): of_kind}
        with suppress(OSError, OutputError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_file(self.file, _lines(latest))


def default_durations() -> Durations:
    """Return the user's record of durations."""
    return Durations(file=cache_home() / FILE_NAME)


def _lines(durations: _ByKind) -> bytes:
    """Return durations as JSON, a kind a line."""
    lines = [f" {json.dumps(kind)}: {json.dumps(entries)}" for kind, entries in durations.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _key(report: Report) -> str:
    return f"{report.stage.value} {report.kind}".rstrip()


def _read(file: Path) -> _ByKind:
    """Read durations; none from a missing or damaged file."""
    try:
        decoded: Any = json.loads(file.read_bytes())
        return {
            str(kind): [(int(size), float(seconds)) for size, seconds in entries]
            for kind, entries in cast("Mapping[str, Any]", decoded).items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


_DOING = {
    Stage.EXPORT: "Exporting",
    Stage.PARTITION: "Partitioning",
    Stage.COMPILE: "Compiling",
    Stage.ESTIMATE: "Estimating",
    Stage.SIMULATE: "Simulating",
    Stage.VALIDATE: "Validating",
    Stage.MEASURE: "Measuring",
}
_FIRST_S = 0.5
_EVERY_S = 0.5
_CLEAR_LINE = "\r\x1b[K"


def show_progress(*, log_is_shown: bool) -> None:
    """Show the stages from now on, and time them.

    ``log_is_shown`` says that standard error has lines of the log already.
    """
    for old in [handler for handler in LOG.handlers if isinstance(handler, ProgressLine)]:
        LOG.removeHandler(old)
    stream = None if log_is_shown or not is_terminal(sys.stderr) else sys.stderr
    LOG.addHandler(ProgressLine(stream=stream, durations=default_durations()))
    LOG.setLevel(logging.INFO if stream is None else logging.DEBUG)


def is_terminal(stream: TextIO) -> bool:
    """Return whether lines of a stream can be written over."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # closed, or replaced by something else
        return False


class ProgressLine(logging.Handler):
    """Shows the innermost stage, and progress of outer ones.

    ``stream`` is the terminal, or None to show nothing and only record how long stages take.
    """

    def __init__(self, *, stream: TextIO | None, durations: Durations) -> None:
        super().__init__()
        self._stream = stream
        self._durations = durations
        self._running: list[_Running] = []
        self._drawn = ""
        self._guard = RLock()
        self._stop: Signal | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Update the line for a stage's report."""
        report = cast("Report | None", getattr(record, "report", None))
        if report is None:
            return
        match report.event:
            case Event.BEGIN:
                self._begin(report)
            case Event.ADVANCE:
                with self._guard:
                    running = [
                        line for line in self._running if line.report.subject == report.subject
                    ]
                    running[-1].report = report
            case Event.END | Event.FAIL:
                self._end(report)

    def _begin(self, report: Report) -> None:
        with self._guard:
            self._running.append(_Running(report, self._durations))
        if self._stream is not None and self._stop is None:
            self._stop = Signal()
            Thread(target=self._keep_drawing, args=(self._stop,), daemon=True).start()

    def _end(self, report: Report) -> None:
        with self._guard:
            self._running.pop()
            self._clear()
            if not self._running and self._stop is not None:
                self._stop.set()
                self._stop = None
        if report.event is Event.END:
            self._durations.add(report)

    def _keep_drawing(self, stop: Signal) -> None:
        wait_s = _FIRST_S
        while not stop.wait(wait_s):
            wait_s = _EVERY_S
            with self._guard:
                if not stop.is_set():
                    self._draw()

    def _draw(self) -> None:
        if self._stream is None:
            return
        around = [text for line in self._running[:-1] if (text := line.around)]
        text = ": ".join([*around, self._running[-1].text])
        width = shutil.get_terminal_size().columns - 1
        shown = text if len(text) <= width else f"{text[: width - 2]}.."
        if shown == self._drawn:
            return
        self._stream.write(_CLEAR_LINE + shown)
        self._stream.flush()
        self._drawn = shown

    def _clear(self) -> None:
        if self._stream is not None and self._drawn:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()
            self._drawn = ""


class _Running:
    """A running stage, and the durations of similar ones."""

    def __init__(self, report: Report, durations: Durations) -> None:
        self.report = report
        self._durations = durations
        self._similar_s: tuple[float, ...] | None = None
        self._start_s = perf_counter()

    @property
    def around(self) -> str:
        """Its progress, shown while an inner stage runs."""
        report = self.report
        return f"{report.done} of {report.total} done" if report.total else ""

    @property
    def text(self) -> str:
        """Its action, elapsed time, and the durations of similar stages."""
        report = self.report
        if self._similar_s is None:
            self._similar_s = self._durations.of_similar(report) if report.size else ()
        work_text = f"{_DOING[report.stage]} {report.subject}".rstrip()
        far = f", {report.done * 100 // report.total} %" if report.total else ""
        similar = _similar_text(self._similar_s)
        return f"{work_text}: {time_text(perf_counter() - self._start_s)}{far}{similar}"


def _similar_text(similar_s: tuple[float, ...]) -> str:
    if not similar_s:
        return ""
    low, high = time_text(min(similar_s)), time_text(max(similar_s))
    if len(similar_s) == 1:
        return f" (a similar one took {low})"
    return f" (similar ones took {low})" if low == high else f" (similar ones took {low} to {high})"


def time_text(seconds: float) -> str:
    """Return a time in whole seconds, in words.

    >>> time_text(7.6), time_text(93)
    ('7 s', '1 min 33 s')
    """
    minutes, remainder = divmod(int(seconds), 60)
    return f"{minutes} min {remainder} s" if minutes else f"{remainder} s"
