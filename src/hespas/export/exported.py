"""What an export is: StableHLO, partitioned where it is sharded."""

from __future__ import annotations

from dataclasses import dataclass

from hespas.xla.partition import DEFAULT_LIMITS, partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A program as StableHLO text; ``notes`` say what was done to it on the way."""

    text: bytes
    name: str
    devices: int
    notes: tuple[str, ...] = ()


def partitioned(exported: Exported) -> Exported:
    """Return the program of one device; a program of a single device stays as it is.

    Raises as `hespas.xla.partition.partition` does.
    """
    if exported.devices == 1:
        return exported
    made = partition(exported.text, name=exported.name, limits=DEFAULT_LIMITS)
    return Exported(
        text=made.text,
        name=exported.name,
        devices=made.devices,
        notes=(*exported.notes, made.assumption),
    )
