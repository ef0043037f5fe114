"""Compare two results of ``hespas run``, part by part.

The parts of a step add up to it, so that their differences add up to the difference of the steps;
the rows of each table add up to the difference of its part, with a row for the rest that the table
lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from hespas.base.decode import read_json
from hespas.base.units import format_quantity, format_time
from hespas.errors import ConfigError
from hespas.prediction.figures.schema import SCHEMA_VERSION, RunReport
from hespas.report.text import others_text, table_lines

_REMAINDER = "not in the table"
_FILE = "run.json"
_RUN_AGAIN = "run both again with this hespas: hespas run ... --json FILE"
_LEAST_S = 5e-13
"""Half a picosecond, below which two times are equal."""
_ROUNDED = 1e-6
"""The share of a total that rows miss by rounding."""


class TimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A time in both results, with the difference.

    ``share`` is the difference over the first step.
    """

    name: str
    a_s: float
    b_s: float
    difference_s: float
    share: float


class FigureRow(msgspec.Struct, frozen=True, kw_only=True):
    """A figure or setting in both results, null if unset."""

    name: str
    a: Any
    b: Any


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between two results, ``a`` and ``b``, largest first.

    ``parts`` add up to the difference of the steps; ``phases``, ``layers`` and ``kinds`` each to
    that of ``compute``, ``communication`` to that of exposed communication. ``missing`` lists the
    tables that could not be compared, ``work`` says how much steps of other work compute.
    ``fail_above`` is the user's limit, as a share of the step of ``a``, and ``fails`` says whether
    ``b`` takes longer than that; both are null without a limit.
    """

    schema_version: int
    a: str
    b: str
    step: TimeRow
    parts: list[TimeRow]
    phases: list[TimeRow]
    layers: list[TimeRow]
    kinds: list[TimeRow]
    communication: list[TimeRow]
    figures: list[FigureRow]
    settings: list[FigureRow]
    missing: list[str]
    work: str = ""
    fail_above: float | None = None
    fails: bool | None = None


def with_limit(comparison: Comparison, limit: float) -> Comparison:
    """Return a comparison with its verdict under a limit.

    It fails if the step of ``b`` exceeds that of ``a`` by more than a share of it.

    >>> row = _row("step", 1.0, 1.04, 1.0)
    >>> empty = dict.fromkeys(("parts", "phases", "layers", "kinds", "communication"), [])
    >>> both = Comparison(schema_version=1, a="a", b="b", step=row, figures=[], settings=[],
    ...                   missing=[], **empty)
    >>> with_limit(both, 0.03).fails, with_limit(both, 0.05).fails
    (True, False)
    """
    step = comparison.step
    fails = step.difference_s > limit * step.a_s
    return msgspec.structs.replace(comparison, fail_above=limit, fails=fails)


def read_report(path: Path) -> RunReport:
    """Read a result of ``hespas run --json``.

    ``path`` may be a directory with run.json. Raises `ConfigError` for another file or schema
    version, and for a file that lacks a key.
    """
    file = path / _FILE if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise ConfigError(
            f"the directory has no {_FILE}",
            location=str(path),
            hint=f"write one: hespas run ... --json {file}",
        )
    data = read_json(file)
    if not isinstance(data, dict) or not {"step_time_s", "compute_s"} <= data.keys():
        raise ConfigError(
            "this is no result of a run",
            location=str(file),
            hint="give a file of hespas run --json",
        )
    members = cast("dict[str, object]", data)
    version = members.get("schema_version")
    if version != SCHEMA_VERSION:
        present = "no schema version" if version is None else f"schema version {version}"
        raise ConfigError(
            f"the result has {present}, this hespas reads {SCHEMA_VERSION}",
            location=str(file),
            hint=_RUN_AGAIN,
        )
    try:
        return msgspec.convert(members, RunReport)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"this is no result of a run: {error}", location=str(file), hint=_RUN_AGAIN
        ) from None


def compared(a: RunReport, b: RunReport, *, names: tuple[str, str]) -> Comparison:
    """Return the differences between two results."""
    step_s = a.step_time_s
    parts = {
        "compute": (a.compute_s, b.compute_s),
        "exposed communication": (a.exposed_communication_s, b.exposed_communication_s),
        "stragglers": (a.straggler_s, b.straggler_s),
    }
    if a.stage_wait_s or b.stage_wait_s:
        parts["waiting for stages"] = (a.stage_wait_s, b.stage_wait_s)
    if a.exposed_host_transfer_s or b.exposed_host_transfer_s:
        parts["exposed host transfers"] = (a.exposed_host_transfer_s, b.exposed_host_transfer_s)
    if a.launch_wait_s or b.launch_wait_s:
        parts["waiting for launches"] = (a.launch_wait_s, b.launch_wait_s)
    missing: list[str] = []
    rows: dict[str, list[TimeRow]] = {}
    for name, times_of in _TABLES.items():
        a_times, b_times = times_of(a), times_of(b)
        waits_s = (_waits_s(a), _waits_s(b))
        total = waits_s if name == "communication" else parts["compute"]
        rows[name] = _rows(a_times, b_times, step_s, total) if a_times and b_times else []
        if bool(a_times) != bool(b_times):
            missing.append(f"{name}: not compared, {names[0 if b_times else 1]} has none")
    return Comparison(
        schema_version=SCHEMA_VERSION,
        a=names[0],
        b=names[1],
        step=_row("step", a.step_time_s, b.step_time_s, step_s),
        parts=_sort_rows(_row(name, *times, step_s) for name, times in parts.items()),
        phases=rows["phases"],
        layers=rows["layers"],
        kinds=rows["kinds"],
        communication=rows["communication"],
        figures=_figures(a, b),
        settings=_settings(a, b),
        missing=missing,
        work=_work(a, b),
    )


def _work(a: RunReport, b: RunReport) -> str:
    """Say that steps compute different numbers of tokens or samples."""
    for name, a_rate, b_rate in (
        ("tokens", a.tokens_per_s, b.tokens_per_s),
        (a.samples, a.samples_per_s, b.samples_per_s),
    ):
        if not a_rate or not b_rate:
            continue
        a_count, b_count = round(a_rate * a.step_time_s), round(b_rate * b.step_time_s)
        if a_count == b_count:
            return ""
        change = b_rate / a_rate - 1
        rate = f"{100 * abs(change):.3g} % {'more' if change > 0 else 'fewer'}"
        rate = "as many" if abs(change) < _LEAST_SHARE else rate
        counts = f"{a_count:,} {name} of a, {b_count:,} of b"
        return f"the steps are not of the same work: {counts}; b makes {rate} {name}/s"
    return ""


def _kinds(result: RunReport) -> dict[str, float]:
    if result.kinds:
        return {row.kind: row.time_s for row in result.kinds}
    return {kind: row.time_s for kind, row in result.per_op.items()}


def _communication(result: RunReport) -> dict[str, float]:
    exposed: dict[str, float] = {}
    for row in result.communication:
        name = " ".join(text for text in (row.kind, row.axis, row.dimension) if text)
        exposed[name] = exposed.get(name, 0.0) + row.exposed_s
    return exposed


_TABLES: Mapping[str, Callable[[RunReport], dict[str, float]]] = {
    "phases": lambda result: {row.phase: row.time_s for row in result.phases},
    "layers": lambda result: {row.path: row.time_s for row in result.layers},
    "kinds": _kinds,
    "communication": _communication,
}


def _rows(
    a: Mapping[str, float], b: Mapping[str, float], step_s: float, total_s: tuple[float, float]
) -> list[TimeRow]:
    rows = [
        _row(name, a.get(name, 0.0), b.get(name, 0.0), step_s) for name in dict.fromkeys([*a, *b])
    ]
    a_s, b_s = (all_s - sum(times.values()) for all_s, times in zip(total_s, (a, b), strict=True))
    if max(abs(a_s), abs(b_s)) > max(_LEAST_S, _ROUNDED * max(total_s)):
        rows.append(_row(_REMAINDER, a_s, b_s, step_s))
    return _sort_rows(rows)


def _row(name: str, a_s: float, b_s: float, step_s: float) -> TimeRow:
    difference_s = b_s - a_s
    share = difference_s / step_s if step_s > 0 else 0.0
    return TimeRow(name=name, a_s=a_s, b_s=b_s, difference_s=difference_s, share=share)


def _sort_rows(rows: Iterable[TimeRow]) -> list[TimeRow]:
    return sorted(rows, key=lambda row: (-abs(row.difference_s), row.name))


_FIGURES = (
    "devices",
    "tokens_per_s",
    "mfu",
    "hardware_utilisation",
    "model_flops",
    "peak_type",
    "peak_flops_per_s",
    "communication_s",
    "flops",
    "memory_traffic_bytes",
    "energy_j",
    "peak_memory_bytes",
    "memory_capacity_bytes",
)
_UNITS = {"_bytes": "B", "_j": "J", "flops": "FLOP", "flops_per_s": "FLOP/s"}
"""The unit of a figure, by the end of its name."""
_SETTINGS = ("program", "node", "system", "method", "fidelity")


def _waits_s(report: RunReport) -> float:
    """Return what the rows of communication add up to."""
    return report.exposed_communication_s + report.stage_wait_s


def _figures(a: RunReport, b: RunReport) -> list[FigureRow]:
    values = [(name, getattr(a, name), getattr(b, name)) for name in _FIGURES]
    values += [
        (f"bound.{name}", getattr(a.bound, name), getattr(b.bound, name))
        for name in a.bound.__struct_fields__
    ]
    return [FigureRow(name=name, a=x, b=y) for name, x, y in values if x != y]


def _settings(a: RunReport, b: RunReport) -> list[FigureRow]:
    """Return the settings that differ, each once."""
    settings = [(name, getattr(a, name), getattr(b, name)) for name in _SETTINGS]
    shown_settings = {f"option {name}": (a_value, b_value) for name, a_value, b_value in settings}
    for prefix, a_value, b_value in (
        ("option", a.options, b.options),
        ("version of", a.versions, b.versions),
    ):
        keys = sorted({*a_value, *b_value})
        settings += [(f"{prefix} {key}", a_value.get(key), b_value.get(key)) for key in keys]
    return [
        FigureRow(name=name, a=a_value, b=b_value)
        for name, a_value, b_value in settings
        if a_value != b_value and shown_settings.get(name) != (a_value, b_value)
    ]


_SHOWN = 10
_LEAST_SHARE = 0.0005


def comparison_text(comparison: Comparison) -> str:
    """Return a comparison as tables, largest differences first."""
    tables = (
        ("The step", [comparison.step, *comparison.parts]),
        ("Computation, by phase", comparison.phases),
        ("Computation, by layer", comparison.layers),
        ("Computation, by kind", comparison.kinds),
        ("Exposed communication", comparison.communication),
    )
    sections = [
        [f"a: {comparison.a}", f"b: {comparison.b}"],
        [comparison.work] if comparison.work else [],
        *(_table(name, rows) for name, rows in tables if rows),
        _pairs("Figures that differ", comparison.figures),
        _pairs("What was asked for that differs", comparison.settings),
        comparison.missing,
        _verdict(comparison),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _verdict(comparison: Comparison) -> list[str]:
    limit, step = comparison.fail_above, comparison.step
    if limit is None:
        return []
    change = "longer" if step.difference_s >= 0 else "shorter"
    difference = f"the step of b is {100 * abs(step.share):.3g} % {change} than that of a"
    outcome = "more than" if comparison.fails else "not longer by more than"
    return [
        f"{'fails' if comparison.fails else 'passes'}: {difference}, {outcome} {100 * limit:g} %"
    ]


def _table(heading: str, rows: Sequence[TimeRow]) -> list[str]:
    rows_with_time = [row for row in rows if row.a_s or row.b_s]
    shown_rows, other_rows = rows_with_time[:_SHOWN], rows_with_time[_SHOWN:]
    if other_rows:
        a_s, b_s = sum(row.a_s for row in other_rows), sum(row.b_s for row in other_rows)
        share = sum(row.share for row in other_rows)
        name = others_text(len(other_rows))
        shown_rows.append(TimeRow(name=name, a_s=a_s, b_s=b_s, difference_s=b_s - a_s, share=share))
    shares = [row.share if abs(row.share) >= _LEAST_SHARE else None for row in shown_rows]
    cells = [
        (
            *(row.name, format_time(row.a_s), format_time(row.b_s), signed_time(row.difference_s)),
            "0.0 %" if share is None else f"{100 * share:+.1f} %",
        )
        for row, share in zip(shown_rows, shares, strict=True)
    ]
    return table_lines(heading, {"a": 12, "b": 12, "difference": 14, "of step a": 12}, cells)


def signed_time(difference_s: float) -> str:
    """Return a difference of times as text, with its sign."""
    if abs(difference_s) < _LEAST_S:
        return "0 s"
    return f"{'+' if difference_s > 0 else ''}{format_time(difference_s)}"


def _pairs(heading: str, rows: Sequence[FigureRow]) -> list[str]:
    if not rows:
        return []
    width = max(24, *(len(row.name) for row in rows))
    lines = [
        f"  {row.name:<{width}}{_figure(row.name, row.a):>16}  ->  {_figure(row.name, row.b)}"
        for row in rows
    ]
    return [heading, *lines]


def _figure(name: str, value: object) -> str:
    if value is None:
        return "default" if name.startswith("option ") else "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name in {"mfu", "hardware_utilisation"} or name.startswith("bound."):
        return f"{100 * value:.1f} %"
    if name == "communication_s":
        return format_time(value)
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    return format_quantity(value, unit) if unit else f"{value:.6g}"
