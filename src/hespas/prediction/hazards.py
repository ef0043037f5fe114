"""The hazards of a long run.

They are causes with their rates, unequal nodes, infant mortality, and retries. A file (YAML or
JSON) or a preset's name describes them; `Hazards` has them for a number of devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import ceil, inf
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from hespas.base.decode import decode, preset_path, read_document
from hespas.base.figures import Count, CountOrZero, NotNegative, Positive, Text
from hespas.base.frozen import frozen
from hespas.base.units import DAY_S, HOUR_S
from hespas.errors import ConfigError
from hespas.hardware.presets import PRESETS_DIRECTORY

PRESETS = PRESETS_DIRECTORY / "hazards"

Share = Annotated[float, Meta(gt=0, lt=1)]


class Per(Enum):
    """The unit that a cause's rate is of."""

    DEVICE = "device"
    NODE = "node"
    GROUP = "group"
    RUN = "run"


class CauseEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cause of failures: ``interval_h`` between events, or ``events`` counted.

    ``nodes`` are away for a repair after an event, and are the size of a group. Devices wait for
    ``detection_s`` until the failure is noticed; a silent one is found by the next validation,
    every ``validation_h`` of training, which takes ``validation_s``. A planned stop saves first.
    """

    name: Text
    interval_h: Positive | None = None
    events: NotNegative | None = None
    per: Per = Per.DEVICE
    nodes: CountOrZero | None = None
    detection_s: NotNegative = 0.0
    restart_s: NotNegative | None = None
    validation_h: Positive | None = None
    validation_s: NotNegative = 0.0
    planned: bool = False


class Observed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The devices and days in which ``events`` were counted."""

    devices: Count
    days: Positive


class Unequal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A few nodes that cause most of the failures."""

    nodes: Share
    failures: Share


class Infant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Early failures: ``factor`` times as many, fading over ``days``."""

    factor: Annotated[float, Meta(ge=1)]
    days: Positive


class Retries(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Restarts, which succeed with the probability ``success``.

    A failed one takes ``interval_s``.
    """

    success: Annotated[float, Meta(gt=0, le=1)]
    interval_s: Positive


class HazardsFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of hazards; ``source`` is that of its figures."""

    source: Text
    causes: Annotated[list[CauseEntry], Meta(min_length=1)]
    node_devices: Count | None = None
    observed: Observed | None = None
    unequal: Unequal | None = None
    infant: Infant | None = None
    retries: Retries | None = None


@frozen
class Cause:
    """A cause on a whole run.

    ``interval_s`` is the mean time between its events.

    ``nodes`` are away afterwards; ``restart_s`` None is the run's own.
    """

    name: str
    interval_s: float
    nodes: int = 1
    detection_s: float = 0.0
    restart_s: float | None = None
    validation_every_s: float | None = None
    validation_s: float = 0.0
    planned: bool = False


@frozen
class Hazards:
    """All that interrupts a run on ``nodes`` nodes; see `HazardsFile`."""

    causes: Sequence[Cause]
    nodes: int
    unequal: Unequal | None = None
    infant: Infant | None = None
    retries: Retries | None = None

    @property
    def interval_s(self) -> float:
        """The mean time between interruptions, without infant mortality."""
        rate = sum(1.0 / cause.interval_s for cause in self.causes)
        return 1.0 / rate if rate else inf


def read_hazards(name: str | Path) -> HazardsFile:
    """Read the hazards of a preset or file.

    Raises `ConfigError` for what is neither.

    >>> len(read_hazards("H100_Llama3").causes)
    19
    """
    location = str(name)
    data = read_document(preset_path(name, PRESETS, option_name="hazards"))
    file = decode(data, HazardsFile, location=location)
    for index, cause in enumerate(file.causes):
        _check(cause, file, f"{location}: $.causes[{index}]")
    _check_together(file, location)
    return file


def _check_together(file: HazardsFile, location: str) -> None:
    """Check what the causes of a file have in common."""
    names, unequal = [cause.name for cause in file.causes], file.unequal
    repeated = next((name for name in names if names.count(name) > 1), None)
    problem = hint = ""
    if repeated is not None:
        problem, hint = f"two causes are named {repeated!r}", "rename one"
    elif all(cause.events == 0 for cause in file.causes):
        problem, hint = "nothing fails", "give a cause events, or interval_h"
    elif file.observed is not None and all(cause.events is None for cause in file.causes):
        problem, hint = "$.observed has no effect: no cause has events", "drop it"
    elif unequal is not None and unequal.failures < unequal.nodes:
        shares = f"{unequal.nodes:g} of the nodes cause {unequal.failures:g} of the failures"
        problem, hint = f"$.unequal: {shares}", "give the nodes that fail more than the others"
    elif unequal is not None and all(_nodes_away(cause) != 1 for cause in file.causes):
        problem, hint = "$.unequal has no effect: no cause is of one node", "drop it"
    if problem:
        raise ConfigError(problem, location=location, hint=hint)


def _nodes_away(cause: CauseEntry) -> int:
    """Return the nodes that are in repair after an event."""
    return cause.nodes if cause.nodes is not None else int(cause.per is not Per.RUN)


def _check(cause: CauseEntry, file: HazardsFile, location: str) -> None:
    problem = hint = ""
    if (cause.interval_h is None) == (cause.events is None):
        problem, hint = "a rate is missing or given twice", "give one of interval_h and events"
    elif cause.events is not None and file.observed is None:
        problem, hint = "events have no time", "add observed: {devices: 16384, days: 54}"
    elif cause.events is not None and cause.per not in {Per.DEVICE, Per.RUN}:
        problem, hint = f"events are counted per {cause.per.value}", "give interval_h"
    elif cause.per is Per.GROUP and not cause.nodes:
        problem, hint = "a group has no size", "add nodes: 32"
    elif cause.validation_s and cause.validation_h is None:
        problem, hint = "validation_s has no effect without validation_h", "add validation_h: 24"
    elif cause.planned and (cause.detection_s or cause.validation_h is not None):
        problem, hint = "a planned stop needs no detection", "drop detection_s and validation_h"
    if problem:
        raise ConfigError(f"cause {cause.name!r}: {problem}", location=location, hint=hint)


def hazards_of(file: HazardsFile, *, devices: int, node_devices: int | None) -> Hazards:
    """Return the hazards of a run's devices.

    ``node_devices`` are those of a node where the file does not say it; `ConfigError` where neither
    does.

    >>> run = hazards_of(read_hazards("H100_Llama3"), devices=16_384, node_devices=None)
    >>> round(run.interval_s / 3600, 2), run.nodes
    (2.78, 2048)
    """
    size = file.node_devices or node_devices
    if size is None:
        raise ConfigError(
            "how many devices a node has is not known",
            location=file.source,
            hint="add node_devices: 8",
        )
    nodes = ceil(devices / size)
    return Hazards(
        causes=tuple(
            _cause(entry, file.observed, devices=devices, nodes=nodes)
            for entry in file.causes
            if entry.events != 0
        ),
        nodes=nodes,
        unequal=file.unequal,
        infant=file.infant,
        retries=file.retries,
    )


def _cause(entry: CauseEntry, observed: Observed | None, *, devices: int, nodes: int) -> Cause:
    away = _nodes_away(entry)
    match entry.per:
        case Per.DEVICE:
            struck = devices
        case Per.NODE:
            struck = nodes
        case Per.GROUP:
            struck = ceil(nodes / max(1, away))
        case Per.RUN:
            struck = 1
    if entry.interval_h is not None:
        interval_s = entry.interval_h * HOUR_S
    elif observed is None or not entry.events:
        raise AssertionError("read_hazards checks it")
    else:
        counted = observed.devices if entry.per is Per.DEVICE else 1
        interval_s = counted * observed.days * DAY_S / entry.events
    every_h = entry.validation_h
    return Cause(
        name=entry.name,
        interval_s=interval_s / struck,
        nodes=min(away, nodes),
        detection_s=entry.detection_s,
        restart_s=entry.restart_s,
        validation_every_s=None if every_h is None else every_h * HOUR_S,
        validation_s=entry.validation_s,
        planned=entry.planned,
    )
