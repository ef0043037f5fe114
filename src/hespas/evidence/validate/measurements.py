"""Read measured step times from a table."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from io import StringIO
from math import prod
from pathlib import Path

from hespas.base.files import write_file
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.base.table import Line, read_table
from hespas.errors import MeasurementError
from hespas.evidence.calibrate.samples import at_line
from hespas.hardware.presets import PRESETS_DIRECTORY, load_device
from hespas.hardware.sized import find_system

PUBLISHED = PRESETS_DIRECTORY / "published" / "steps.csv"
_NEEDED = ("workload", "node", "system", "step_s")
_COLUMNS = ("workload", "options", "node", "system", "step_s", "resolution_s", "profiled_compute_s")


@frozen
class MeasuredStep:
    """One measured step: workload, node, system and time.

    ``workload`` is a model of the zoo with its ``options``, or a program's file. The step took
    ``step_s`` to within half of ``resolution_s``: a time published to 0.01 s has a resolution of
    0.01. ``profiled_compute_s`` is the sum of its blocks, profiled one by one on the device, if
    that was done.
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
        """The key that measurements of the same thing share."""
        options = ",".join(f"{name}={value}" for name, value in sorted(self.options.items()))
        return (self.workload, options, self.node, self.system)

    @property
    def where(self) -> str:
        """The system, with the node unless its name has that."""
        is_named_after_node = self.system == self.node or self.system.startswith(f"{self.node}_")
        return self.system if is_named_after_node else f"{self.system} of {self.node}"

    @property
    def interval_s(self) -> tuple[float, float]:
        """The shortest and the longest time that rounds to ``step_s``."""
        half = self.resolution_s / 2
        return self.step_s - half, self.step_s + half


def read_steps(path: Path = PUBLISHED) -> tuple[MeasuredStep, ...]:
    """Read a CSV of measured steps, times in seconds.

    The columns ``workload``, ``node``, ``system`` and ``step_s`` are needed; ``options``
    (``mesh=fsdp=4;batch=2``), ``resolution_s`` and ``profiled_compute_s`` are optional. Raises
    `MeasurementError`, with the line, for a missing column, an invalid time, and for two lines that
    contradict each other.

    >>> [step.step_s for step in read_steps() if step.workload == "llama3-100m"]
    [0.09, 0.04]
    """
    table = read_table(path, needed=_NEEDED, columns=_COLUMNS, error=MeasurementError)
    steps = list(map(_step, table.lines))
    _check_agreement(steps, path)
    return tuple(steps)


def add_step(step: MeasuredStep, path: Path) -> None:
    """Add a line to a table of `read_steps`.

    A line about the same thing is replaced: times of one thing that differ contradict each other.
    Raises what `read_steps` raises for the existing table, and `OutputError` if it can't be
    written.
    """
    earlier_steps = read_steps(path) if path.exists() else ()
    steps = [*(earlier for earlier in earlier_steps if earlier.key != step.key), step]
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


def _step(line: Line) -> MeasuredStep:
    def seconds(name: str) -> float:
        return line.amount(name, hint="give a time above 0, in seconds")

    return MeasuredStep(
        workload=line.text("workload"),
        options=_pairs(line, "options"),
        node=line.text("node"),
        system=line.text("system"),
        step_s=seconds("step_s"),
        resolution_s=seconds("resolution_s") if line.text("resolution_s") else 0.0,
        profiled_compute_s=(
            seconds("profiled_compute_s") if line.text("profiled_compute_s") else None
        ),
        line=line.number,
    )


def _check_agreement(steps: Iterable[MeasuredStep], path: Path) -> None:
    """Refuse two times that no single time rounds to."""
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


TABLE = PRESETS_DIRECTORY / "published" / "every_step.csv"
COLUMNS = (
    "family",
    "workload",
    "options",
    "xla_flags",
    "node",
    "system",
    "devices",
    "framework_year",
    "step_s",
    "tflops_per_device",
    "model_tflop_per_device",
    "resolution_s",
    "profiled_compute_s",
    "missing",
    "source",
    "note",
)
"""The columns of a table; ``workload``, ``system`` and a time are needed."""
SCALES = (("one node", 8), ("tens", 64), ("hundreds", 999), ("thousands", None))
"""The names of numbers of devices, and the largest number of each."""
_TIMES = ("step_s", "tflops_per_device", "model_tflop_per_device")


@frozen
class Row:
    """A published step: workload, node, system, time and source.

    ``workload`` is a model of the zoo, ``maxtext:CONFIG`` or a program's file, with its ``options``
    and flags of XLA. ``missing`` says why it can't be predicted, if that is known beforehand;
    ``framework_year`` is the year of the software that ran. ``published_s`` is known to within half
    of ``resolution_s``. A row of a table by ``publisher`` is predicted with one ``fidelity`` alone;
    its ``published_peak_bytes`` are of the fullest device.
    """

    family: str
    workload: str
    options: Mapping[str, str]
    xla_flags: Mapping[str, str]
    node: str
    system: str
    devices: int
    framework_year: int | None
    published_s: float
    resolution_s: float
    missing: str
    source: str
    note: str
    location: str
    fidelity: str = ""
    publisher: str = ""
    published_peak_bytes: int | None = None

    @property
    def name(self) -> str:
        """The model or the file; for a recipe, its family."""
        return self.family if self.workload.startswith("maxtext:") else Path(self.workload).name

    @property
    def scale(self) -> str:
        """The name of the number of devices."""
        return next(name for name, most in SCALES if most is None or self.devices <= most)

    @property
    def groups(self) -> tuple[str, ...]:
        """The names by which users choose it."""
        return tuple(filter(None, (self.family, self.node, self.scale, self.publisher)))


def read_rows(path: Path = TABLE) -> tuple[Row, ...]:
    """Read a CSV of published steps, with `COLUMNS`.

    Raises `MeasurementError`, with the line, for a table that lacks a column, a cell that can't be
    read, and a node or a system there isn't.

    >>> first = read_rows()[0]
    >>> first.workload, first.node, first.devices, first.scale
    ('llama3-100m', 'A100_SXM_40GB', 4, 'one node')
    """
    needed = ("workload", "system")
    table = read_table(path, needed=needed, columns=COLUMNS, error=MeasurementError)
    return tuple(map(_published_row, table.lines))


def chosen(rows: Iterable[Row], groups: Iterable[str]) -> tuple[Row, ...]:
    """Return the rows of any of the groups, or all.

    A prefix of a name is enough, in any case. Raises `MeasurementError` for a group without a row.

    >>> len(chosen(read_rows(), ["resnet"]))
    2
    """
    every = tuple(rows)
    group_names = {name.casefold(): name for row in every for name in row.groups}
    names: set[str] = set()
    for group in groups:
        meant = {
            name for folded, name in group_names.items() if folded.startswith(group.casefold())
        }
        if not meant or not group:
            raise MeasurementError(
                f"no published step is in the group {group!r}",
                hint=suggestion(group, group_names.values()),
            )
        names |= meant
    return tuple(row for row in every if not names or names & set(row.groups))


def _published_row(line: Line) -> Row:
    workload, system = line.text("workload"), _path_beside(line.text("system"), line.path)
    node, devices = _node_and_devices(line, system)
    return Row(
        family=line.text("family") or Path(workload).name,
        workload=workload,
        options=_pairs(line, "options"),
        xla_flags=_pairs(line, "xla_flags"),
        node=node,
        system=system,
        devices=devices,
        framework_year=line.whole("framework_year") if line.text("framework_year") else None,
        published_s=_published_s(line),
        resolution_s=line.amount("resolution_s", least=0.0) if line.text("resolution_s") else 0.0,
        missing=line.text("missing"),
        source=line.text("source"),
        note=line.text("note"),
        location=line.location,
    )


def _path_beside(system: str, table: Path) -> str:
    described = table.parent / system
    return str(described) if described.is_dir() else system


def _node_and_devices(line: Line, system_name: str) -> tuple[str, int]:
    """Return the node and device count, by default the system's.

    A system with a given number of devices is read when its step is predicted.
    """
    node = line.text("node")
    if node and line.text("devices"):
        return node, line.whole("devices")
    with at_line(line.location):
        system = find_system(system_name)
        part = node or system.part or ""
        if not part:
            raise MeasurementError(
                f"the system {system_name} has no part of its own", hint="give the node"
            )
        load_device(part)
    return part, prod(dimension.size for dimension in system.dimensions)


def _published_s(line: Line) -> float:
    step, rate, work = (bool(line.text(name)) for name in _TIMES)
    if step == rate or rate != work:
        raise MeasurementError(
            "the step has no time, or two",
            location=line.location,
            hint=f"give {_TIMES[0]}, or {_TIMES[1]} and {_TIMES[2]}",
        )
    if step:
        return line.amount("step_s")
    return line.amount("model_tflop_per_device") / line.amount("tflops_per_device")


def _pairs(line: Line, name: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in filter(None, (entry.strip() for entry in line.text(name).split(";"))):
        key, equals, value = part.partition("=")
        if not equals or key in pairs:
            fault = "stands twice" if equals else "has no value"
            raise MeasurementError(
                f"{name}: {part!r} {fault}",
                location=line.location,
                hint="write NAME=VALUE;NAME=VALUE",
            )
        pairs[key.strip()] = value.strip()
    return pairs
