"""How far a study is: a few lines on a terminal that stay up to date, plain lines elsewhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from time import monotonic
from types import TracebackType
from typing import Self, TextIO

from hespas.cli.progress import time_text
from hespas.study.rows import Row, Status, candidate_text, counts_text, figure_text

_DRAW_EVERY_S = 0.3
_SAY_EVERY_S = 10.0
_UP_AND_CLEAR = "\x1b[{}F\x1b[J"


class StudyProgress:
    """Listens to a study's run and writes to a stream how far it is."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = _is_terminal(stream)
        self._start_s = monotonic()
        self._said_s = self._start_s
        self._at_start: int | None = None
        self._drawn = 0
        self.rows: Sequence[Row] = ()

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove what stands on the terminal."""
        self.close()

    def __call__(self, rows: Sequence[Row]) -> None:
        """Take note of the rows as they are now."""
        self.rows = rows
        if self._at_start is None:
            self._at_start = self._left()
        every_s = _DRAW_EVERY_S if self._is_terminal else _SAY_EVERY_S
        if monotonic() - self._said_s >= every_s:
            self._said_s = monotonic()
            self._write(self.lines())

    def lines(self) -> list[str]:
        """Return how far the study is: counts, what pruned, rate and time left, the best so far."""
        elapsed_s, left = monotonic() - self._start_s, self._left()
        made = (self._at_start or 0) - left
        rate = f", {60 * made / elapsed_s:.0f} a minute" if made and elapsed_s > 1 else ""
        rest = f", {time_text(left * elapsed_s / made)} left" if made and left else ""
        lines = [f"{counts_text(self.rows)}; {time_text(elapsed_s)}{rate}{rest}"]
        if pruned := self._pruned():
            lines.append(f"pruned by {pruned}")
        return [*lines, *self._best()]

    def _left(self) -> int:
        return sum(row.status is Status.WAITING for row in self.rows)

    def _pruned(self) -> str:
        reasons = [_bound(row.reason) for row in self.rows if row.status is Status.PRUNED]
        return ", ".join(f"{name} {reasons.count(name)}" for name in dict.fromkeys(reasons))

    def _best(self) -> list[str]:
        """Return the fastest candidate so far, whatever the goal: a sign of life."""
        timed = [
            (row.figures.get("step_time_s") or 0.0, row)
            for row in self.rows
            if row.status in {Status.DONE, Status.SCREENED} and row.fits is not False
        ]
        if not timed:
            return []
        step_s, row = min(timed, key=lambda pair: pair[0])
        text = candidate_text(row.candidate)
        return [f"fastest that fits: {figure_text('step_time_s', step_s)}, {text}"]

    def _write(self, lines: Sequence[str]) -> None:
        if not self._is_terminal:
            self._stream.write(f"{lines[0]}\n")
            self._stream.flush()
            return
        self._clear()
        width = shutil.get_terminal_size().columns - 1
        self._stream.write("".join(f"{line[:width]}\n" for line in lines))
        self._stream.flush()
        self._drawn = len(lines)

    def _clear(self) -> None:
        if self._drawn:
            self._stream.write(_UP_AND_CLEAR.format(self._drawn))
            self._stream.flush()
            self._drawn = 0

    def close(self) -> None:
        """Remove what stands on the terminal."""
        self._clear()


def _bound(reason: str) -> str:
    """Return which bound a reason is of.

    >>> _bound("memory: at least 90 GB of 80 GB a device"), _bound("heads = 9 cannot be divided")
    ('memory', 'divisibility')
    """
    name, colon, _ = reason.partition(": ")
    return (
        name
        if colon and name in {"memory", "time", "budget", "where", "sampling"}
        else "divisibility"
    )


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):
        return False
