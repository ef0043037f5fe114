"""A study's table as text: what differs between candidates, and the figures of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from hespas.base.units import format_amount, format_energy, format_quantity, format_time
from hespas.program.program import SLOP_FLAG
from hespas.study.goal import Goal
from hespas.study.keys import Scalar, scalar_text
from hespas.study.rows import Row, Status

_MOST_ROWS = 30
_SHOWN: Mapping[str, str] = {
    "step_time_s": "step",
    "tokens_per_s_per_device": "tokens/s/device",
    "mfu": "MFU",
    "peak_memory_bytes": "memory",
}
_TITLES = {
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "usd_per_step": "USD/step",
    "usd_per_mtoken": "USD/Mtoken",
    "energy_j": "energy",
    "energy_j_per_token": "energy/token",
    "compute_s": "compute",
    "communication_s": "communication",
    "exposed_communication_s": "exposed",
    "devices": "devices",
    "goodput": "goodput",
    "tokens_per_day": "tokens/day",
    "usd_per_day": "USD/day",
    "days": "days",
    "usd": "USD",
}


def candidate_text(candidate: Mapping[str, object], keys: Sequence[str] = ()) -> str:
    """Return a candidate in a line: the values of ``keys``, or all.

    >>> candidate_text({"model": "llama3-8b", "mesh": {"fsdp": 4, "tp": 2}, "remat": "full"})
    'llama3-8b, fsdp=4,tp=2, remat=full'
    """
    parts: list[str] = []
    for key, value in candidate.items():
        if keys and key not in keys:
            continue
        if isinstance(value, Mapping):
            named = cast("Mapping[str, Scalar]", value)
            parts.append(",".join(f"{name}={size}" for name, size in named.items()))
        elif key in {"model", "cluster"}:
            parts.append(str(value))
        else:
            parts.append(f"{key}={scalar_text(cast('Scalar', value))}")
    return ", ".join(parts)


def pinned_text(rows: Sequence[Row]) -> str:
    """Return what all candidates have in common."""
    keys = [key for key in _keys(rows) if key not in _varying(rows)]
    return candidate_text(rows[0].candidate, keys) if rows and keys else ""


def _keys(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row.candidate))


def _varying(rows: Sequence[Row]) -> list[str]:
    found: list[str] = []
    for key in _keys(rows):
        values = [row.candidate.get(key) for row in rows]
        if any(value != values[0] for value in values):
            found.append(key)
    return found


def table_text(rows: Sequence[Row], goal: Goal, *, most: int = _MOST_ROWS) -> str:
    """Return the table in lines, best first; rows beyond ``most`` are counted."""
    varying = _varying(rows) or _keys(rows)
    figures = dict(_SHOWN)
    for name, _ in goal.metrics:
        figures.setdefault(name, _TITLES.get(name, name))
    known = [each for each in figures if any(row.figures.get(each) is not None for row in rows)]
    head = ["", *varying, "status", *(figures[name] for name in known), ""]
    shown = rows[:most]
    lines = [head]
    for number, row in enumerate(shown, start=1):
        cells = [_cell(row.candidate.get(key)) for key in varying]
        values = [_figure(name, row) for name in known]
        lines.append([str(number), *cells, _status(row), *values, _remark(row)])
    left = len(varying) + 2
    text = _aligned(lines, left=left)
    if len(rows) > most:
        text.append(f"and {len(rows) - most} more")
    return "\n".join(text)


def _status(row: Row) -> str:
    return row.fidelity if row.status is Status.DONE else row.status.value


def _remark(row: Row) -> str:
    if row.reason:
        return row.reason
    factor = row.figures.get("memory_limit_slop_factor")
    raised = "" if factor is None else f"{SLOP_FLAG}={factor:g}"
    return raised if row.fits is not False else "does not fit"


def _cell(value: object) -> str:
    if isinstance(value, Mapping):
        named = cast("Mapping[str, Scalar]", value)
        return ",".join(f"{name}={size}" for name, size in named.items() if size != 1) or "1"
    return "" if value is None else scalar_text(cast("Scalar", value))


def _figure(name: str, row: Row) -> str:
    value = row.figures.get(name)
    if value is None:
        return ""
    return figure_text(name, value)


def figure_text(name: str, value: float) -> str:
    """Return a figure with its unit.

    >>> figure_text("step_time_s", 0.25), figure_text("mfu", 0.4217), figure_text("devices", 8)
    ('250 ms', '42.2 %', '8')
    """
    match name:
        case "mfu" | "goodput":
            text = f"{100 * value:.1f} %"
        case "devices":
            text = str(round(value))
        case _ if name.endswith("_bytes"):
            text = format_quantity(value, "B")
        case _ if name.endswith("_s") and not name.endswith("per_s"):
            text = format_time(value)
        case _ if name.startswith("energy"):
            text = format_energy(value)
        case "usd" | "usd_per_day":
            text = format_amount(value).strip()
        case "days":
            text = f"{value:.1f}"
        case _ if name.startswith("usd"):
            text = f"{value:.4g}"
        case _:
            text = format_amount(value).strip()
    return text


def _aligned(lines: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """Return lines in columns: text to the left, figures to the right, remarks as they are."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    found: list[str] = []
    for line in lines:
        cells: list[str] = []
        for column, (cell, width) in enumerate(zip(line, widths, strict=True)):
            is_number = (column == 0 and left > 1) or left <= column < len(line) - 1
            cells.append(cell.rjust(width) if is_number else cell.ljust(width))
        found.append("  ".join(cells).rstrip())
    return found


def counts_text(rows: Sequence[Row]) -> str:
    """Return how many candidates have become what.

    >>> counts_text([Row(number=0, candidate={}), Row(number=1, candidate={}, status=Status.DONE)])
    '1 done, 1 waiting'
    """
    counts = {status: sum(row.status is status for row in rows) for status in Status}
    return ", ".join(f"{count} {status.value}" for status, count in counts.items() if count)


def compared_text(first: Row, second: Row) -> str:
    """Return two rows beside each other: what differs of the candidates, and all figures."""
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
        lines.append([name, _given(name, a), _given(name, b), ratio])
    return "\n".join(_aligned([[*line, ""] for line in lines], left=1))


def _given(name: str, value: float | None) -> str:
    return "" if value is None else figure_text(name, value)
