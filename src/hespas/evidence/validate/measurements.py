"""Step times that somebody measured, read from a table."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import StringIO
from math import isfinite
from pathlib import Path

from hespas.base.files import write_file
from hespas.errors import MeasurementError
from hespas.evidence.calibrate.lines import check_columns
from hespas.hardware.presets import PRESETS_DIRECTORY

PUBLISHED = PRESETS_DIRECTORY / "published" / "steps.csv"
_NEEDED = ("workload", "node", "system", "step_s")
_OPTIONAL = ("options", "resolution_s", "profiled_compute_s")
_COLUMNS = ("workload", "options", "node", "system", "step_s", "resolution_s", "profiled_compute_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One step: what ran where, and how long it took.

    ``workload`` is a model of the zoo with its ``options``, or a program's file. The step took
    ``step_s`` to within half of ``resolution_s``: what is published to 0.01 s has that of 0.01.
    ``profiled_compute_s`` is the sum of its blocks, profiled one by one on the device, where
    somebody did that.
    """

    workload: str
    options: Mapping[str, str]
    node: str
    system: str
    step_s: float
    resolution_s: float
    profiled_compute_s: float | None
    line: int

    @property
    def key(self) -> tuple[str, ...]:
        """What must be equal of two measurements of the same thing."""
        options = ",".join(f"{name}={value}" for name, value in sorted(self.options.items()))
        return (self.workload, options, self.node, self.system)

    @property
    def where(self) -> str:
        """The system, and the node where it isn't the one that the system is named after."""
        own = self.system == self.node or self.system.startswith(f"{self.node}_")
        return self.system if own else f"{self.system} of {self.node}"

    @property
    def interval_s(self) -> tuple[float, float]:
        """The shortest and the longest time that reads as ``step_s``."""
        half = self.resolution_s / 2
        return self.step_s - half, self.step_s + half


def read_steps(path: Path = PUBLISHED) -> tuple[MeasuredStep, ...]:
    """Read a table of measured steps: CSV with a header, times in seconds.

    The columns ``workload``, ``node``, ``system`` and ``step_s`` are needed; ``options``
    (``mesh=fsdp=4;batch=2``), ``resolution_s`` and ``profiled_compute_s`` may be there. Raises
    `MeasurementError`, with the line, for a table that lacks one, a time that is none, and for
    two lines that contradict each other.

    >>> [step.step_s for step in read_steps() if step.workload == "llama3-100m"]
    [0.09, 0.04]
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # Excel writes a mark
    except (OSError, UnicodeDecodeError) as error:
        raise MeasurementError(
            "cannot be read", location=str(path), hint="check the path"
        ) from error
    reader = csv.DictReader(text.splitlines())
    try:
        _check_header(reader.fieldnames or (), path)
        steps = [_step(row, reader.line_num, path) for row in reader]
    except csv.Error as error:
        raise MeasurementError(f"is no CSV: {error}", location=str(path)) from None
    _check_agreement(steps, path)
    return tuple(steps)


def add_step(step: MeasuredStep, path: Path) -> None:
    """Add a line to a table that `read_steps` reads, or make the table.

    A line about the same thing is replaced: times of one thing that differ contradict each other.
    Raises what `read_steps` raises for what is there, and `OutputError` where it can't be written.
    """
    before = read_steps(path) if path.exists() else ()
    steps = [*(each for each in before if each.key != step.key), step]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(map(_row, steps))
    write_file(path, text.getvalue().encode())


def _row(step: MeasuredStep) -> tuple[str, ...]:
    options = ";".join(f"{name}={value}" for name, value in step.options.items())
    profiled = step.profiled_compute_s
    return (
        step.workload,
        options,
        step.node,
        step.system,
        repr(step.step_s),
        repr(step.resolution_s) if step.resolution_s else "",
        "" if profiled is None else repr(profiled),
    )


def _check_header(names: Iterable[str], path: Path) -> None:
    named = tuple(names)
    check_columns(named, f"{path}:1")
    missing = [name for name in _NEEDED if name not in named]
    unknown = [name for name in named if name not in (*_NEEDED, *_OPTIONAL)]
    if missing or unknown:
        fault = f"has no column {missing[0]!r}" if missing else f"has a column {unknown[0]!r}"
        columns = ", ".join((*_NEEDED, *_OPTIONAL))
        raise MeasurementError(
            f"the table {fault}", location=f"{path}:1", hint=f"its columns are {columns}"
        )


def _step(row: Mapping[str, str | None], line: int, path: Path) -> MeasuredStep:
    location = f"{path}:{line}"
    if None in row or any(not row.get(name) for name in _NEEDED):
        raise MeasurementError(
            "the line has too few or too many fields", location=location, hint="give one a column"
        )
    profiled = row.get("profiled_compute_s")
    resolution = row.get("resolution_s")
    return MeasuredStep(
        workload=row["workload"] or "",
        options=_options(row.get("options") or "", location),
        node=row["node"] or "",
        system=row["system"] or "",
        step_s=_seconds(row["step_s"] or "", "step_s", location),
        resolution_s=_seconds(resolution, "resolution_s", location) if resolution else 0.0,
        profiled_compute_s=_seconds(profiled, "profiled_compute_s", location) if profiled else None,
        line=line,
    )


def _options(text: str, location: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in filter(None, text.split(";")):
        name, equals, value = part.partition("=")
        if not equals or not value:
            raise MeasurementError(
                f"option {part!r} has no value",
                location=location,
                hint="write NAME=VALUE;NAME=VALUE",
            )
        options[name.strip()] = value.strip()
    return options


def _seconds(text: str, name: str, location: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value) or value <= 0:
        raise MeasurementError(
            f"{name} is {text!r}", location=location, hint="give a time above 0, in seconds"
        )
    return value


def _check_agreement(steps: Iterable[MeasuredStep], path: Path) -> None:
    """Refuse two times of one thing that no third time could read as."""
    seen: dict[tuple[str, ...], MeasuredStep] = {}
    for step in steps:
        first = seen.setdefault(step.key, step)
        low = max(first.interval_s[0], step.interval_s[0])
        if low > min(first.interval_s[1], step.interval_s[1]):
            raise MeasurementError(
                f"{step.workload} on {step.system} took {first.step_s:g} s in line {first.line} "
                f"and {step.step_s:g} s in line {step.line}",
                location=f"{path}:{step.line}",
                hint="drop one, or give resolution_s as wide as they differ",
            )
