"""Published power of machines with GPUs while they trained, which the repository keeps."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from hespas.hardware.presets import PRESETS_DIRECTORY

READINGS = PRESETS_DIRECTORY / "published" / "training_power.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerReading:
    """The mean power of one of some machines with eight GPUs during a run.

    ``limit_w`` is the power limit of one of its GPUs. ``switch_w`` is that of the switches between
    machines; None where it was not measured.
    """

    source: str
    part: str
    workload: str
    machines: int
    limit_w: float
    machine_w: float
    switch_w: float | None


def read_readings() -> tuple[PowerReading, ...]:
    """Return all readings.

    >>> len(read_readings()), {each.part for each in read_readings()} == {"H100", "B200"}
    (12, True)
    """
    with READINGS.open(encoding="utf-8", newline="") as file:
        return tuple(
            PowerReading(
                source=row["source"],
                part=row["part"],
                workload=row["workload"],
                machines=int(row["machines"]),
                limit_w=float(row["limit_w"]),
                machine_w=float(row["machine_w"]),
                switch_w=float(row["switch_w"]) if row["switch_w"] else None,
            )
            for row in csv.DictReader(file)
        )
