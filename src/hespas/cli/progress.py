"""What takes long says so: one line on a terminal, with the time it took so far.

A handler of the logger ``hespas.base.progress`` writes the line to standard error, keeps it up to
date and removes it when the stage ends. Nothing is written where standard error is no terminal, or
where the log goes there.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from threading import Event as Signal
from threading import RLock, Thread
from time import perf_counter
from typing import TextIO, cast

from hespas.base.progress import LOG, Event, Report, Stage
from hespas.cli.durations import Durations, default_durations

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
    """Show the stages from now on, and remember how long they take.

    ``log_is_shown`` says that standard error has lines of the log already.
    """
    for old in [each for each in LOG.handlers if isinstance(each, ProgressLine)]:
        LOG.removeHandler(old)
    stream = None if log_is_shown or not _is_terminal(sys.stderr) else sys.stderr
    LOG.addHandler(ProgressLine(stream=stream, durations=default_durations()))
    LOG.setLevel(logging.INFO if stream is None else logging.DEBUG)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # closed, or replaced by something else
        return False


class ProgressLine(logging.Handler):
    """Shows the innermost stage that is under way, and the parts of those around it.

    ``stream`` is the terminal, or None to show nothing and only remember how long stages take.
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
        """Take note of what happened to a stage."""
        report = cast("Report | None", getattr(record, "report", None))
        if report is None:
            return
        match report.event:
            case Event.BEGIN:
                self._begin(report)
            case Event.ADVANCE:
                with self._guard:
                    running = [each for each in self._running if each.report.what == report.what]
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
        around = [text for each in self._running[:-1] if (text := each.around)]
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
    """A stage under way: since when, and what similar ones took."""

    def __init__(self, report: Report, durations: Durations) -> None:
        self.report = report
        self._durations = durations
        self._similar_s: tuple[float, ...] | None = None
        self._start_s = perf_counter()

    @property
    def around(self) -> str:
        """What is shown of it while a stage in it runs: how far it is."""
        report = self.report
        return f"{report.done} of {report.total} done" if report.total else ""

    @property
    def text(self) -> str:
        """What it does, for how long, and how long others took."""
        report = self.report
        if self._similar_s is None:
            self._similar_s = self._durations.of_similar(report) if report.size else ()
        what = f"{_DOING[report.stage]} {report.what}".rstrip()
        far = f", {report.done * 100 // report.total} %" if report.total else ""
        return f"{what}: {time_text(perf_counter() - self._start_s)}{far}{_like(self._similar_s)}"


def _like(similar_s: tuple[float, ...]) -> str:
    if not similar_s:
        return ""
    low, high = time_text(min(similar_s)), time_text(max(similar_s))
    if len(similar_s) == 1:
        return f" (a similar one took {low})"
    return f" (similar ones took {low})" if low == high else f" (similar ones took {low} to {high})"


def time_text(seconds: float) -> str:
    """Return a time in whole seconds, as people say it.

    >>> time_text(7.6), time_text(93)
    ('7 s', '1 min 33 s')
    """
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
