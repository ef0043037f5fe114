"""Show the progress of a running study."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from time import monotonic
from types import TracebackType
from typing import Self, TextIO

from hespas.cli.progress import is_terminal, time_text
from hespas.study.goal import figure_text
from hespas.study.rows import (
    Row,
    Status,
    candidate_text,
    counts_text,
    pruned_text,
)

_DRAW_EVERY_S = 0.3
_SAY_EVERY_S = 10.0
_UP_AND_CLEAR = "\x1b[{}F\x1b[J"


class StudyProgress:
    """Writes the progress of a study's run to a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = is_terminal(stream)
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
        """Remove the lines from the terminal."""
        self.close()

    def __call__(self, rows: Sequence[Row]) -> None:
        """Update the progress with the current rows."""
        self.rows = rows
        if self._at_start is None:
            self._at_start = self._waiting()
        every_s = _DRAW_EVERY_S if self._is_terminal else _SAY_EVERY_S
        if monotonic() - self._said_s >= every_s:
            self._said_s = monotonic()
            self._write(self.lines())

    def lines(self) -> list[str]:
        """Return the progress in lines."""
        elapsed_s, waiting = monotonic() - self._start_s, self._waiting()
        predicted = (self._at_start or 0) - waiting
        rate = f", {60 * predicted / elapsed_s:.0f} a minute" if predicted and elapsed_s > 1 else ""
        remaining = (
            f", {time_text(waiting * elapsed_s / predicted)} left" if predicted and waiting else ""
        )
        lines = [f"{counts_text(self.rows)}; {time_text(elapsed_s)}{rate}{remaining}"]
        if pruned := pruned_text(self.rows):
            lines.append(pruned)
        return [*lines, *self._best()]

    def _waiting(self) -> int:
        return sum(row.status is Status.WAITING for row in self.rows)

    def _best(self) -> list[str]:
        """Return the fastest candidate so far, whatever the goal."""
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
        """Remove the lines from the terminal."""
        self._clear()
