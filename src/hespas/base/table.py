"""Read CSV tables: lines of named cells with locations."""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite, nan
from pathlib import Path
from re import Match, Pattern

from hespas.base.decode import read_text
from hespas.base.figures import whole_number
from hespas.base.frozen import frozen
from hespas.errors import HespasError

_BYTE_ORDER_MARK = "\ufeff"
_LEAST = 1e-12


@frozen
class Line:
    """A line's cells by column, and its number.

    ``error`` is the kind of error that a wrong cell raises.
    """

    cells: Mapping[str, str]
    path: Path
    number: int
    error: type[HespasError]

    @property
    def location(self) -> str:
        """The file and line, as errors name them."""
        return f"{self.path}:{self.number}"

    def text(self, name: str) -> str:
        """Return a cell; empty for a column that isn't there."""
        return self.cells.get(name, "")

    def amount(self, name: str, *, least: float = _LEAST, hint: str = "") -> float:
        """Return a finite number above 0, or from ``least`` on."""
        value = _number(self.text(name))
        if not isfinite(value) or value < least:
            bound = "above 0" if least == _LEAST else f"of {least:g} or more"
            raise self._cell_error(name, hint or f"give a number {bound}")
        return value

    def whole(self, name: str, *, least: int = 1) -> int:
        """Return a whole number from ``least`` on."""
        number = whole_number(self.text(name))
        if number is None or number < least:
            raise self._cell_error(name, f"give a whole number of {least} or more")
        return number

    def _cell_error(self, name: str, hint: str) -> HespasError:
        message = f"{name} is {self.text(name)[:40]!r}"
        return self.error(message, location=self.location, hint=hint)


@frozen
class Table:
    """A table's columns, header location and lines (one pass)."""

    names: tuple[str, ...]
    location: str
    lines: Iterator[Line]

    def column(self, form: Pattern[str]) -> tuple[str, Match[str]] | None:
        """Return the only column whose name matches, if any."""
        matches = [(name, match) for name in self.names if (match := form.fullmatch(name))]
        return matches[0] if len(matches) == 1 else None


def read_table(
    path: Path,
    *,
    needed: Sequence[str],
    columns: Collection[str] | None = None,
    header: str = "",
    renamed: Callable[[str], str] = str,
    error: type[HespasError],
) -> Table:
    """Read a CSV table with a header.

    Comments (#) may precede it. ``columns`` are all that there may be, without any limit by
    default; ``header`` is an example for errors, and ``renamed`` maps names in the file to those of
    columns. Raises an ``error`` with ``file:line`` for a file without a header, for a column that
    is needed and missing, unknown, or named twice, and for a line with too many cells or without a
    needed one.
    """
    lines = read_text(path).removeprefix(_BYTE_ORDER_MARK).splitlines()
    allowed = columns or needed
    hint = f"the first line must be the header: {header or ','.join(allowed)}"
    skipped = next(
        (number for number, line in enumerate(lines) if line.strip() and line[0] != "#"), None
    )
    if skipped is None:
        raise error("the file is empty", location=str(path), hint=hint)
    reader = csv.reader(lines[skipped:])
    location = f"{path}:{skipped + 1}"
    try:
        cells = [cell.strip() for cell in next(reader)]
    except csv.Error as fault:
        raise error(f"is no CSV: {fault}", location=str(path)) from None
    if any(isfinite(_number(cell)) for cell in cells):
        raise error("there is no header", location=location, hint=hint)
    names = tuple(map(renamed, cells))
    missing = [name for name in needed if name not in names]
    unknown = [name for name in names if columns is not None and name not in columns]
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        message = f"the header has two columns {twice[0]!r}"
        raise error(message, location=location, hint="drop or rename one")
    if missing or unknown:
        fault = f"has no column {missing[0]!r}" if missing else f"has a column {unknown[0]!r}"
        hint = f"known columns: {header or ', '.join(allowed)}"
        raise error(f"the table {fault}", location=location, hint=hint)
    blank = Line(cells={}, path=path, number=skipped + 1, error=error)
    return Table(names=names, location=location, lines=_lines(reader, blank, names, needed))


def _lines(
    reader: Iterator[list[str]], before: Line, names: Sequence[str], needed: Sequence[str]
) -> Iterator[Line]:
    """Yield the lines that follow the one of the header."""
    line = before
    try:
        for number, row in enumerate(reader, start=before.number + 1):
            if not any(row):
                continue
            cells = {name: cell.strip() for name, cell in zip(names, row, strict=False)}
            line = replace(before, cells=cells, number=number)
            if len(row) > len(names) or any(not cells.get(name) for name in needed):
                raise line.error(
                    f"the line has {len(row)} cells under {len(names)} columns, or lacks one",
                    location=line.location,
                    hint=f"give {', '.join(needed)}, and one cell for each column",
                )
            yield line
    except csv.Error as fault:
        raise line.error(f"is no CSV: {fault}", location=line.location) from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return nan
