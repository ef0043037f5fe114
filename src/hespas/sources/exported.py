"""The result of an export: StableHLO, sharded or partitioned."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from hespas.models.part import Part
from hespas.xla.partition.partition import DEFAULT_LIMITS, partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A program as StableHLO text; ``notes`` say what was done to it on the way.

    ``is_partitioned`` says that it is already what one of several devices runs. ``tokens``
    are those of a step, ``model_flops`` what the model needs for one, over all devices; None where
    that is not known.
    """

    text: bytes
    name: str
    devices: int
    notes: tuple[str, ...] = ()
    is_partitioned: bool = False
    tokens: int | None = None
    model_flops: float | None = None


def partitioned(exported: Exported) -> Exported:
    """Return the program of one device, partitioned if it is not yet.

    Raises as `hespas.xla.partition.partition.partition` does.
    """
    if exported.devices == 1 or exported.is_partitioned:
        return exported
    made = partition(exported.text, name=exported.name, limits=DEFAULT_LIMITS)
    return Exported(
        text=made.text,
        name=exported.name,
        devices=made.devices,
        notes=(*exported.notes, made.assumption),
        is_partitioned=True,
        tokens=exported.tokens,
        model_flops=exported.model_flops,
    )


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to export: a model with settings, or where a function or an artifact stands.

    Of a model with a ``part``, that alone.
    Functions are imported from ``path``, in ``directory``, on so many virtual ``devices``, and
    lowered for ``platform``.
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
    """The program is exported for ``devices``; ``notes`` say what was done to it on the way."""

    devices: int = 1
    notes: list[str] = []
