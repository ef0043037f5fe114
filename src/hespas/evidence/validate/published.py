"""Published steps of all kinds, and one's own: rows of a table, each with what it takes to predict.

The packaged table (`TABLE`) holds facts that others published, each with its source. Its steps are
recomputed by `hespas.evidence.validate.every`; nothing is fitted to them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path

from hespas.base.config_files import read_text
from hespas.base.suggest import suggestion
from hespas.errors import MeasurementError
from hespas.evidence.calibrate.lines import at_line, check_columns
from hespas.hardware.presets import PRESETS_DIRECTORY, load_device
from hespas.hardware.sized import find_system

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
"""The names of numbers of devices, and the largest of each."""
_BYTE_ORDER_MARK = "\ufeff"
_TIMES = "step_s, or tflops_per_device and model_tflop_per_device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published step: what ran where, how long it took, and who says so.

    ``workload`` is a model of the zoo, ``maxtext:CONFIG`` or a program's file, with its
    ``options`` and flags of XLA. ``missing`` says why it can't be predicted, where that is known
    beforehand; ``framework_year`` is when the software was of that ran. ``published_s`` is known
    to within half of ``resolution_s``.
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

    @property
    def name(self) -> str:
        """The model or the file; of a recipe, its family."""
        return self.family if self.workload.startswith("maxtext:") else Path(self.workload).name

    @property
    def scale(self) -> str:
        """How many devices there are, in words."""
        return next(name for name, most in SCALES if most is None or self.devices <= most)

    @property
    def groups(self) -> tuple[str, ...]:
        """The names by which it is chosen: its family, part and scale."""
        return (self.family, self.node, self.scale)


def read_rows(path: Path = TABLE) -> tuple[Row, ...]:
    """Read a table of published or measured steps: CSV with a header, of `COLUMNS`.

    Raises `MeasurementError`, with the line, for a table that lacks a column, a cell that can't be
    read, and a node or a system there isn't.

    >>> first = read_rows()[0]
    >>> first.workload, first.node, first.devices, first.scale
    ('llama3-100m', 'A100_SXM_40GB', 4, 'one node')
    """
    reader = csv.DictReader(read_text(path).removeprefix(_BYTE_ORDER_MARK).splitlines())
    try:
        names = tuple(reader.fieldnames or ())
        _check_header(names, f"{path}:1")
        return tuple(_row(cells, f"{path}:{reader.line_num}") for cells in reader)
    except csv.Error as error:
        raise MeasurementError(f"is no CSV: {error}", location=str(path)) from None


def chosen(rows: Iterable[Row], groups: Iterable[str]) -> tuple[Row, ...]:
    """Return the rows in any of the groups: families, parts, scales; all where none is named.

    The beginning of a name will do, in any case. Raises `MeasurementError` for a group without a
    row.

    >>> len(chosen(read_rows(), ["resnet"]))
    2
    """
    every = tuple(rows)
    known = {name.casefold(): name for row in every for name in row.groups}
    names: set[str] = set()
    for group in groups:
        meant = {name for folded, name in known.items() if folded.startswith(group.casefold())}
        if not meant or not group:
            raise MeasurementError(
                f"no published step is in the group {group!r}",
                hint=suggestion(group, known.values()),
            )
        names |= meant
    return tuple(row for row in every if not names or names & set(row.groups))


def _check_header(names: tuple[str, ...], location: str) -> None:
    check_columns(names, location)
    unknown = next((name for name in names if name not in COLUMNS), None)
    needed = ("workload", "system")
    missing = next((name for name in needed if name not in names), None)
    if missing is None and not {"step_s", "tflops_per_device"} & set(names):
        missing = "step_s"
    if unknown is not None or missing is not None:
        fault = f"has a column {unknown!r}" if unknown else f"has no column {missing!r}"
        raise MeasurementError(
            f"the table {fault}", location=location, hint=f"its columns are {', '.join(COLUMNS)}"
        )


def _row(cells: Mapping[str, str | None], location: str) -> Row:
    given = {name: (text or "").strip() for name, text in cells.items() if name in COLUMNS}
    if None in cells or not given.get("workload") or not given.get("system"):
        raise MeasurementError(
            "the line has too few or too many fields", location=location, hint="give one a column"
        )
    missing = given.get("missing", "")
    workload, named = given["workload"], given["system"]
    named = _beside(named, location)
    node, devices = _where({**given, "system": named}, location)
    year = given.get("framework_year", "")
    return Row(
        family=given.get("family") or Path(workload).name,
        workload=workload,
        options=_pairs(given.get("options", ""), "options", location),
        xla_flags=_pairs(given.get("xla_flags", ""), "xla_flags", location),
        node=node,
        system=named,
        devices=devices,
        framework_year=int(_number(year, "framework_year", location)) if year else None,
        published_s=_published_s(given, location),
        resolution_s=_number(given.get("resolution_s") or "0", "resolution_s", location, least=0.0),
        missing=missing,
        source=given.get("source", ""),
        note=given.get("note", ""),
        location=location,
    )


def _beside(system: str, location: str) -> str:
    """Return the path of a system that is described beside the table, or else its name."""
    described = Path(location.rpartition(":")[0]).parent / system
    return str(described) if described.is_dir() else system


def _where(given: Mapping[str, str], location: str) -> tuple[str, int]:
    """Return the node and the number of devices; those of the system where they aren't given.

    A system of a number of devices that is given is looked at when its step is predicted.
    """
    node, count = given.get("node", ""), given.get("devices", "")
    if node and count:
        return node, int(_number(count, "devices", location))
    with at_line(location):
        system = find_system(given["system"])
        named = node or system.part or ""
        if not named:
            raise MeasurementError(
                f"the system {given['system']} has no part of its own", hint="give the node"
            )
        load_device(named)
    return named, prod(each.npus_count for each in system.dimensions)


def _published_s(given: Mapping[str, str], location: str) -> float:
    step, rate, work = (
        given.get(name, "") for name in ("step_s", "tflops_per_device", "model_tflop_per_device")
    )
    if bool(step) == bool(rate) or bool(rate) != bool(work):
        raise MeasurementError(
            "the step has no time, or two", location=location, hint=f"give {_TIMES}"
        )
    if step:
        return _number(step, "step_s", location)
    done = _number(work, "model_tflop_per_device", location)
    return done / _number(rate, "tflops_per_device", location)


def _pairs(text: str, name: str, location: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(";"))):
        key, equals, value = part.partition("=")
        if not equals or key in pairs:
            fault = "stands twice" if equals else "has no value"
            raise MeasurementError(
                f"{name}: {part!r} {fault}", location=location, hint="write NAME=VALUE;NAME=VALUE"
            )
        pairs[key.strip()] = value.strip()
    return pairs


def _number(text: str, name: str, location: str, *, least: float = 1e-12) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value) or value < least:
        raise MeasurementError(
            f"{name} is {text!r}", location=location, hint="give a number above 0"
        )
    return value
