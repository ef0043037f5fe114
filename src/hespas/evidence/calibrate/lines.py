"""Lines of a user's CSV, each with its location, and errors that name it."""

from __future__ import annotations

import csv
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from hespas.base.config_files import read_text
from hespas.errors import ExtraMissingError, HespasError, MeasurementError, ToolError

_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The cells of a line, and ``file:line``."""

    cells: tuple[str, ...]
    location: str


def csv_lines(path: Path, *, header: str) -> tuple[Line, ...]:
    """Return the lines of a CSV that aren't blank; the first is a header such as ``header``.

    Excel's mark at the start of UTF-8 is no part of it. Raises `MeasurementError` for a file
    without lines, or whose first is a measurement.
    """
    text = read_text(path).removeprefix(_BYTE_ORDER_MARK)
    try:
        rows = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise MeasurementError(f"is no CSV: {error}", location=str(path)) from None
    lines = tuple(
        Line(cells=tuple(cell.strip() for cell in row), location=f"{path}:{number}")
        for number, row in enumerate(rows, start=1)
        if any(cell.strip() for cell in row)
    )
    hint = f"the first line must be the header: {header}"
    if not lines:
        raise MeasurementError("the file is empty", location=str(path), hint=hint)
    if any(_is_number(cell) for cell in lines[0].cells):
        raise MeasurementError("there is no header", location=lines[0].location, hint=hint)
    return lines


def check_columns(names: Sequence[str], location: str) -> None:
    """Raise `MeasurementError` where two columns have one name: which counts is not known.

    >>> check_columns(["m", "n", "m"], "gemm.csv:1")
    Traceback (most recent call last):
    hespas.errors.MeasurementError: gemm.csv:1: the header has two columns 'm'; drop or rename one
    """
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise MeasurementError(
            f"the header has two columns {twice!r}", location=location, hint="drop or rename one"
        )


def time_of(text: str, *, unit_s: float, location: str) -> float:
    """Return seconds; `MeasurementError` for what is no time above 0.

    >>> time_of("28", unit_s=1e-3, location="gemm.csv:2")
    0.028
    """
    time_s = float(text) * unit_s if _is_number(text) else 0.0
    if not isfinite(time_s) or time_s <= 0:
        raise MeasurementError(
            f"{text!r} is no time", location=location, hint="give a number above 0"
        )
    return time_s


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@contextmanager
def at_line(location: str) -> Generator[None]:
    """Let errors about what a line names show the line.

    What isn't installed is no fault of the line's.

    >>> with at_line("steps.csv:2"):
    ...     raise MeasurementError("cannot be read", location="a.hlo", hint="check the path")
    Traceback (most recent call last):
    hespas.errors.MeasurementError: steps.csv:2: a.hlo: cannot be read; check the path
    """
    try:
        yield
    except ExtraMissingError:
        raise
    except HespasError as error:
        if error.location == location:
            raise
        message = (
            f"{error.location}: {error.marked_message}" if error.location else error.marked_message
        )
        kind = ToolError if isinstance(error, ToolError) else MeasurementError
        raise kind(message, location=location, hint=error.marked_hint) from error
