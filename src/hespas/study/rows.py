"""Rows of a study's table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from hespas.base.files import replaced_file, write_file
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.compile.options import SLOP_FLAG
from hespas.errors import ConfigError, ExtraMissingError
from hespas.study.goal import FIGURES, Goal, figure_text, ordered
from hespas.study.keys import MESH, Scalar, scalar_text


class Status(Enum):
    """The status of a candidate; tables lack ``waiting`` ones."""

    DONE = "done"
    SCREENED = "screened"
    PRUNED = "pruned"
    FAILED = "failed"
    WAITING = "waiting"


@frozen
class Row:
    """A candidate's row; ``evaluation`` is its figures' key."""

    number: int
    candidate: dict[str, object]
    status: Status = Status.WAITING
    reason: str = ""
    fidelity: str = ""
    figures: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    evaluation: str = ""

    @property
    def fits(self) -> bool | None:
        """Whether the step fits into the memory, if known."""
        peak = self.figures.get("peak_memory_bytes")
        capacity = self.figures.get("memory_capacity_bytes")
        return None if peak is None or capacity is None else peak <= capacity

    def to_dict(self) -> dict[str, object]:
        """Return the row as ``hespas study table --json`` writes it."""
        return {
            "candidate": self.candidate,
            "status": self.status.value,
            "reason": self.reason or None,
            "fidelity": self.fidelity or None,
            "fits": self.fits,
            **{name: self.figures.get(name) for name in FIGURES},
        }


def in_order(rows: Sequence[Row], goal: Goal) -> list[Row]:
    """Return rows by status, then by the goal."""
    sorted_rows: list[Row] = []
    for status in (Status.DONE, Status.SCREENED):
        same_status = [row for row in rows if row.status is status]
        sorted_rows += ordered(same_status, goal, lambda row: row.figures)
    for status in (Status.PRUNED, Status.FAILED):
        sorted_rows += [row for row in rows if row.status is status]
    return sorted_rows


def flat(row: Row) -> dict[str, object]:
    """Return a row with a column for each candidate's key.

    >>> from hespas.study.rows import Status
    >>> row = Row(number=0, candidate={"model": "llama3-8b", "mesh": {"tp": 2}}, status=Status.DONE)
    >>> {name: value for name, value in flat(row).items() if value is not None}
    {'candidate.model': 'llama3-8b', 'candidate.mesh.tp': 2, 'status': 'done'}
    """
    columns = row.to_dict()
    columns.pop("candidate")
    return {**_flatten("candidate", row.candidate), **columns}


def _flatten(prefix: str, values: Mapping[str, object]) -> dict[str, object]:
    columns: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            columns |= _flatten(f"{prefix}.{name}", cast("Mapping[str, object]", value))
        else:
            columns[f"{prefix}.{name}"] = value
    return columns


def table_json(rows: Sequence[Row]) -> dict[str, object]:
    """Return the table as ``hespas study table --json`` writes it."""
    return {"rows": [row.to_dict() for row in rows]}


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Write the table to a file.

    Its suffix decides the format.

    Raises `ConfigError`, `ExtraMissingError` (Parquet without pyarrow) and `OutputError`.
    """
    if path.suffix not in _WRITERS:
        raise ConfigError(
            f"there is no table of the kind {path.suffix or 'without an ending'!r}",
            location=str(path),
            hint=suggestion(path.suffix, _WRITERS),
        )
    _WRITERS[path.suffix](rows, path)


def _columns(rows: Sequence[Row]) -> tuple[list[str], list[dict[str, object]]]:
    flat_rows = [flat(row) for row in rows]
    names = dict.fromkeys(
        name for row in flat_rows for name in row if name.startswith("candidate.")
    )
    names |= dict.fromkeys(flat_rows[0] if flat_rows else ())
    return list(names), flat_rows


def _write_csv(rows: Sequence[Row], path: Path) -> None:
    names, dictionaries = _columns(rows)
    written = io.StringIO()
    table = csv.DictWriter(written, names, lineterminator="\n")
    table.writeheader()
    table.writerows(dictionaries)
    write_file(path, written.getvalue().encode())


def _write_lines(rows: Sequence[Row], path: Path) -> None:
    lines = (json.dumps(row.to_dict(), ensure_ascii=False) + "\n" for row in rows)
    write_file(path, "".join(lines).encode())


def _write_parquet(rows: Sequence[Row], path: Path) -> None:
    try:
        # pyarrow is an extra: few users write Parquet.
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError as error:
        raise ExtraMissingError("writing Parquet", extra="parquet") from error
    names, flat_rows = _columns(rows)
    columns = {name: _of_one_type([row.get(name) for row in flat_rows]) for name in names}
    with replaced_file(path) as temporary:
        parquet.write_table(arrow.table(columns), temporary)


def _of_one_type(values: list[object]) -> list[object]:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [float(value) if isinstance(value, int) else value for value in values]
    if len(kinds) < 2 and kinds <= {str, int, float, bool}:
        return values
    return [None if value is None else str(value) for value in values]


_WRITERS: Mapping[str, Callable[[Sequence[Row], Path], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_lines,
    ".parquet": _write_parquet,
}
_FIRST = 5


@frozen
class Ranking:
    """The ranks of candidates by the screen and the compiler.

    ``holds_best``: the compiled best is among the screen's best five. ``correlation`` is
    Spearman's; None for fewer than three.
    """

    compiled: int
    holds_best: bool
    correlation: float | None
    largest_error: float


def ranking(rows: Sequence[Row], goal: Goal) -> Ranking | None:
    """Return how the screen ranked several compiled candidates."""
    pairs = [
        (screened, compiled)
        for row in rows
        if row.status is Status.DONE
        and (screened := row.figures.get("screened_step_time_s")) is not None
        and (compiled := row.figures.get("step_time_s")) is not None
    ]
    if len(pairs) < 2 or not goal.is_single:
        return None
    best = min(range(len(pairs)), key=lambda index: pairs[index][1])
    order = sorted(range(len(pairs)), key=lambda index: pairs[index][0])
    return Ranking(
        compiled=len(pairs),
        holds_best=best in order[:_FIRST],
        correlation=_spearman(pairs) if len(pairs) > 2 else None,
        largest_error=max(abs(screened / compiled - 1) for screened, compiled in pairs),
    )


def _spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    first, second = (_ranks([pair[side] for pair in pairs]) for side in (0, 1))
    middle = (len(pairs) - 1) / 2
    spreads = [sum((rank - middle) ** 2 for rank in ranks) for ranks in (first, second)]
    if not all(spreads):
        return None
    together = sum((a - middle) * (b - middle) for a, b in zip(first, second, strict=True))
    return together / (spreads[0] * spreads[1]) ** 0.5


def _ranks(values: Sequence[float]) -> list[float]:
    """Return each value's rank; equal values share the mean.

    >>> _ranks([3.0, 1.0, 3.0])
    [1.5, 0.0, 1.5]
    """
    ordered = sorted(values)
    return [
        sum(index for index, peer in enumerate(ordered) if peer == value) / ordered.count(value)
        for value in values
    ]


def ranking_text(ranks: Ranking) -> str:
    """Return a ranking in words."""
    holds = "hold" if ranks.holds_best else "do not hold"
    text = f"the screen's best five {holds} the compiled best of {ranks.compiled}"
    if ranks.correlation is not None:
        text += f"; correlation of the ranks {ranks.correlation:.2f}"
    return f"{text}; screened times are at most {100 * ranks.largest_error:.0f} % off"


_MOST_ROWS = 30
_SHOWN = ("step_time_s", "tokens_per_s_per_device", "mfu", "peak_memory_bytes")


def divided(axes: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a mesh's axes of more than one device."""
    return {name: size for name, size in axes.items() if size != 1}


def candidate_text(candidate: Mapping[str, object], keys: Sequence[str] = ()) -> str:
    """Return a candidate's values in a line.

    They are those of ``keys``, or all.

    >>> candidate_text({"model": "llama3-8b", "mesh": {"fsdp": 4, "tp": 2}, "remat": "full"})
    'llama3-8b, fsdp=4,tp=2, remat=full'
    """
    parts: list[str] = []
    for key, value in candidate.items():
        if keys and key not in keys:
            continue
        if isinstance(value, Mapping):
            entries = cast("Mapping[str, Scalar]", value)
            if key == MESH:
                entries = divided(entries) or entries
            parts.append(",".join(f"{name}={size}" for name, size in entries.items()))
        elif key in {"model", "cluster"}:
            parts.append(str(value))
        else:
            parts.append(f"{key}={scalar_text(cast('Scalar', value))}")
    return ", ".join(parts)


def pinned_text(rows: Sequence[Row]) -> str:
    """Return the values that all candidates share."""
    keys = [key for key in _keys(rows) if key not in varying_keys(rows)]
    return candidate_text(rows[0].candidate, keys) if rows and keys else ""


def _keys(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row.candidate))


def varying_keys(rows: Sequence[Row]) -> list[str]:
    """Return the keys in which candidates differ."""
    return [
        key
        for key in _keys(rows)
        if any(row.candidate.get(key) != rows[0].candidate.get(key) for row in rows)
    ]


def table_text(rows: Sequence[Row], goal: Goal, *, most: int = _MOST_ROWS) -> str:
    """Return the table in lines, best first.

    Rows beyond ``most`` are counted.
    """
    varying = varying_keys(rows) or _keys(rows)
    names = dict.fromkeys((*_SHOWN, *(name for name, _ in goal.metrics)))
    columns = [
        column for column in names if any(row.figures.get(column) is not None for row in rows)
    ]
    head = ["", *varying, "status", *(FIGURES[name].title for name in columns), ""]
    shown_rows = rows[:most]
    lines = [head]
    for number, row in enumerate(shown_rows, start=1):
        cells = [_cell(row.candidate.get(key)) for key in varying]
        values = [figure_text(name, row.figures.get(name)) for name in columns]
        status = row.fidelity if row.status is Status.DONE else row.status.value
        lines.append([str(number), *cells, status, *values, _remark(row)])
    text = _align(lines, texts=len(varying) + 2)
    if len(rows) > most:
        text.append(f"and {len(rows) - most} more")
    return "\n".join(text)


def _remark(row: Row) -> str:
    if row.reason:
        return row.reason
    factor = row.figures.get("memory_limit_slop_factor")
    raised = "" if factor is None else f"{SLOP_FLAG}={factor:g}"
    return raised if row.fits is not False else "does not fit"


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        axes = cast("Mapping[str, Scalar]", value)
        return ",".join(f"{name}={size}" for name, size in divided(axes).items()) or "1"
    return "" if value is None else scalar_text(cast("Scalar", value))


def _align(lines: Sequence[Sequence[str]], *, texts: int) -> list[str]:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rows: list[str] = []
    for line in lines:
        cells: list[str] = []
        for column, (cell, width) in enumerate(zip(line, widths, strict=True)):
            is_number = (column == 0 and texts > 1) or texts <= column < len(line) - 1
            cells.append(cell.rjust(width) if is_number else cell.ljust(width))
        rows.append("  ".join(cells).rstrip())
    return rows


def counts_text(rows: Sequence[Row]) -> str:
    """Return the number of candidates of each status.

    >>> counts_text([Row(number=0, candidate={}), Row(number=1, candidate={}, status=Status.DONE)])
    '1 done, 1 waiting'
    """
    counts = {status: sum(row.status is status for row in rows) for status in Status}
    return ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)


_PRUNED = {
    "memory": "need more memory than a device has",
    "time": "cannot be as fast as the best",
    "where": "do not satisfy where",
    "budget": "are beyond the budget",
    "sampling": "were not sampled",
}
"""Reasons of pruning, by the first word of a row's reason."""


def pruned_text(rows: Sequence[Row]) -> str:
    """Return the numbers of pruned candidates, by reason.

    >>> reasons = ["memory: at least 90 GB of 80 GB a device", "heads = 9 cannot be divided"]
    >>> rows = [Row(number=0, candidate={}, status=Status.PRUNED, reason=text) for text in reasons]
    >>> pruned_text(rows)
    'Pruned: 1 need more memory than a device has, 1 cannot be run'
    """
    words = [
        _PRUNED.get(row.reason.partition(": ")[0], "cannot be run")
        for row in rows
        if row.status is Status.PRUNED
    ]
    counts = [f"{words.count(word)} {word}" for word in dict.fromkeys(words)]
    return f"Pruned: {', '.join(counts)}" if counts else ""


_EQUAL_WORK = 1.001


def unlike_text(rows: Sequence[Row], goal: Goal) -> str:
    """Say where a goal of whole steps ranks steps of different work.

    >>> from hespas.study.goal import FASTEST
    >>> rows = [
    ...     Row(number=0, candidate={}, figures={"step_time_s": 0.5, "tokens_per_s": rate})
    ...     for rate in (8192, 16384)
    ... ]
    >>> unlike_text(rows, FASTEST)
    'Work: steps of 4,096 to 8,192 tokens are ranked by step_time_s, which few tokens make small; \
compare them by tokens_per_s_per_device'
    """
    of_steps = [name for name, _ in goal.metrics if FIGURES[name].by_work]
    for noun, rate in (("tokens", "tokens_per_s"), ("samples", "samples_per_s")):
        work = sorted(
            (row.figures.get(rate) or 0.0) * (row.figures.get("step_time_s") or 0.0) for row in rows
        )
        work = [amount for amount in work if amount]
        if not of_steps or not work:
            continue
        if work[-1] < work[0] * _EQUAL_WORK:
            return ""
        better = FIGURES[of_steps[0]].by_work if noun == "tokens" else rate
        return (
            f"Work: steps of {round(work[0]):,} to {round(work[-1]):,} {noun} are ranked by "
            f"{of_steps[0]}, which few {noun} make small; compare them by {better}"
        )
    return ""


def compared_text(first: Row, second: Row) -> str:
    """Return two rows' different keys and all figures."""
    keys = list(dict.fromkeys([*first.candidate, *second.candidate]))
    lines = [["", "A", "B", "B / A"]]
    for key in keys:
        a, b = first.candidate.get(key), second.candidate.get(key)
        if a != b:
            lines.append([key, _cell(a), _cell(b), ""])
    lines.append(["fidelity", first.fidelity, second.fidelity, ""])
    for name in dict.fromkeys([*first.figures, *second.figures]):
        a, b = first.figures.get(name), second.figures.get(name)
        ratio = "" if a is None or b is None or not a else f"{b / a:.3f}"
        lines.append([name, figure_text(name, a), figure_text(name, b), ratio])
    return "\n".join(_align([[*line, ""] for line in lines], texts=1))
