"""A study's table as files: JSON, JSON lines, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from hespas.base.files import replaced_file, write_file
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, ExtraMissingError
from hespas.study.rows import Row


def flat(row: Row) -> dict[str, object]:
    """Return a row with a column for each key of its candidate, as tables need it.

    >>> from hespas.study.rows import Status
    >>> row = Row(number=0, candidate={"model": "llama3-8b", "mesh": {"tp": 2}}, status=Status.DONE)
    >>> {name: value for name, value in flat(row).items() if value is not None}
    {'candidate.model': 'llama3-8b', 'candidate.mesh.tp': 2, 'status': 'done'}
    """
    whole = row.to_dict()
    whole.pop("candidate")
    return {**_named("candidate", row.candidate), **whole}


def _named(prefix: str, values: Mapping[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _named(f"{prefix}.{name}", cast("Mapping[str, object]", value))
        else:
            found[f"{prefix}.{name}"] = value
    return found


def table_json(rows: Sequence[Row]) -> dict[str, object]:
    """Return the table as ``hespas study table --json`` writes it."""
    return {"rows": [row.to_dict() for row in rows]}


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Write the table to a file of the kind that its name ends with.

    Raises `ConfigError` for another ending, `hespas.errors.ExtraMissingError` for Parquet without
    pyarrow, and `hespas.errors.OutputError` for a file that can't be written.
    """
    if path.suffix not in _WRITERS:
        raise ConfigError(
            f"there is no table of the kind {path.suffix or 'without an ending'!r}",
            location=str(path),
            hint=suggestion(path.suffix, _WRITERS),
        )
    _WRITERS[path.suffix](rows, path)


def _columns(rows: Sequence[Row]) -> tuple[list[str], list[dict[str, object]]]:
    """Return the names of columns, those of candidates first, and all rows by name."""
    each = [flat(row) for row in rows]
    names = dict.fromkeys(name for row in each for name in row if name.startswith("candidate."))
    return [*names, *(name for name in (each[0] if each else {}) if name not in names)], each


def _write_csv(rows: Sequence[Row], path: Path) -> None:
    names, each = _columns(rows)
    written = io.StringIO()
    table = csv.DictWriter(written, names, lineterminator="\n")
    table.writeheader()
    table.writerows(each)
    write_file(path, written.getvalue().encode())


def _write_lines(rows: Sequence[Row], path: Path) -> None:
    lines = (json.dumps(row.to_dict(), ensure_ascii=False) + "\n" for row in rows)
    write_file(path, "".join(lines).encode())


def _write_parquet(rows: Sequence[Row], path: Path) -> None:
    try:
        # An extra: few write Parquet.
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError as error:
        raise ExtraMissingError("writing Parquet", extra="parquet") from error
    names, each = _columns(rows)
    columns = {name: [_plain(row.get(name)) for row in each] for name in names}
    mixed = {name: _alike(values) for name, values in columns.items()}
    with replaced_file(path) as temporary:
        parquet.write_table(arrow.table(mixed), temporary)


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _alike(values: list[object]) -> list[object]:
    """Return a column's values in one type: text where they are of several."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        return [
            float(each) if isinstance(each, int) and float in kinds else each for each in values
        ]
    return values if len(kinds) < 2 else [None if each is None else str(each) for each in values]


_WRITERS: Mapping[str, Callable[[Sequence[Row], Path], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_lines,
    ".parquet": _write_parquet,
}
