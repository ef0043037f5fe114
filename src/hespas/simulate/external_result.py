"""What another simulator says of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFigures:
    """When a device ends and what its time went to, in ns; None where the simulator doesn't say."""

    finish_ns: int
    exposed_communication_ns: int
    compute_ns: int | None = None
    communication_ns: int | None = None
    overlap_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalResult:
    """The figures of every device, by number; ``whole_ns`` where only that of all is said.

    ``notes`` say what was lost in translation; ``log`` is the simulator's own, None where there is
    none.
    """

    engine: str
    devices: Mapping[int, DeviceFigures]
    notes: tuple[str, ...] = ()
    log: Path | None = None
    whole_ns: int | None = None

    @property
    def finish_ns(self) -> int:
        """When the last device ends: the duration of the step."""
        ends = [figures.finish_ns for figures in self.devices.values()]
        return max(ends) if self.whole_ns is None else self.whole_ns

    def as_json(self) -> dict[str, object]:
        """Return what ``hespas simulate`` prints: the same keys as for hespas' own models.

        ``engine`` and ``notes`` come beside; figures that the simulator doesn't give are absent.
        """
        names = (
            "finish_ns",
            "compute_ns",
            "communication_ns",
            "exposed_communication_ns",
            "overlap_ns",
        )
        devices: dict[str, object] = {}
        for device, figures in sorted(self.devices.items()):
            given = {name: getattr(figures, name) for name in names}
            devices[str(device)] = {name: ns for name, ns in given.items() if ns is not None}
        return {
            "step_time_ns": self.finish_ns,
            "devices": devices,
            "engine": self.engine,
            "notes": list(self.notes),
        }
