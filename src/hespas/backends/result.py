"""Hold the result of another simulator: figures of devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from hespas.base.frozen import frozen


@frozen
class DeviceFigures:
    """A device's end and times (ns), None if not reported."""

    finish_ns: int
    compute_ns: int | None = None
    communication_ns: int | None = None
    exposed_communication_ns: int
    overlap_ns: int | None = None


@frozen
class ExternalResult:
    """The figures of every device from another simulator.

    ``step_ns`` is the step time if only that is reported. ``notes`` list what the translation
    lost; ``log`` is the simulator's own.
    """

    engine: str
    devices: Mapping[int, DeviceFigures]
    notes: tuple[str, ...] = ()
    log: Path | None = None
    step_ns: int | None = None

    @property
    def finish_ns(self) -> int:
        """When the last device ends: the duration of the step."""
        ends = [figures.finish_ns for figures in self.devices.values()]
        return max(ends) if self.step_ns is None else self.step_ns

    def as_json(self) -> dict[str, object]:
        """Return the JSON object of ``hespas simulate``, with equal keys.

        Figures that the simulator doesn't give are absent.
        """
        return {
            "step_time_ns": self.finish_ns,
            "devices": {
                str(device): {name: ns for name, ns in asdict(figures).items() if ns is not None}
                for device, figures in sorted(self.devices.items())
            },
            "engine": self.engine,
            "notes": list(self.notes),
        }
