"""The result of an export: StableHLO, sharded or partitioned."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from hespas.base.frozen import frozen
from hespas.models.model import Part
from hespas.xla.partition.partition import DEFAULT_LIMITS, partition


@frozen
class Workload:
    """A program to read or compile."""

    name: str
    content: bytes
    notes: tuple[str, ...] = ()


@frozen
class Exported(Workload):
    """A program as StableHLO text.

    ``is_partitioned`` says that it is already the program of one of several devices.
    """

    devices: int
    is_partitioned: bool = False


def partitioned(exported: Exported) -> Exported:
    """Return the program of one device.

    Raises as `hespas.xla.partition.partition.partition` does.
    """
    if exported.devices == 1 or exported.is_partitioned:
        return exported
    result = partition(exported.content, name=exported.name, limits=DEFAULT_LIMITS)
    return replace(
        exported,
        content=result.text,
        devices=result.devices,
        notes=(*exported.notes, result.assumption),
        is_partitioned=True,
    )


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request to export a model, function or artifact.

    With a ``part``, that part of the model alone is exported. Functions are imported from ``path``,
    in ``directory``, on ``devices`` virtual devices, and lowered for ``platform``.
    """

    name: str
    model: bool = False
    artifact: bool = False
    settings: dict[str, str] = {}
    part: Part | None = None
    devices: int | None = None
    directory: str = "."
    path: list[str] = []
    platform: str = "cpu"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The exported program's devices, and notes on changes."""

    devices: int = 1
    notes: list[str] = []
