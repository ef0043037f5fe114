"""A row of a study's table: a candidate, what became of it, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from hespas.study.goal import Goal, ordered


class Status(Enum):
    """What became of a candidate; one that is ``waiting`` is not in the table yet."""

    DONE = "done"
    SCREENED = "screened"
    PRUNED = "pruned"
    FAILED = "failed"
    WAITING = "waiting"


COLUMNS = (
    "step_time_s",
    "tokens_per_s_per_device",
    "peak_memory_bytes",
    "memory_capacity_bytes",
    "devices",
    "tokens_per_s",
    "samples_per_s",
    "mfu",
    "compute_s",
    "communication_s",
    "exposed_communication_s",
    "energy_j",
    "energy_j_per_token",
    "usd_per_step",
    "usd_per_mtoken",
    "goodput",
    "tokens_per_day",
    "usd_per_day",
    "days",
    "usd",
    "screened_step_time_s",
    "screened_peak_memory_bytes",
    "least_step_time_s",
    "least_memory_bytes",
    "memory_limit_slop_factor",
)
"""The figures of a row, in the order of tables; ``least`` are bounds, ``screened`` those that the
model of the compiler gave before the compiler did. The last is the value of XLA's flag that a
candidate needs where it may be raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A candidate in a study's table. ``evaluation`` is the key of what its figures are from."""

    number: int
    candidate: dict[str, object]
    status: Status = Status.WAITING
    reason: str = ""
    fidelity: str = ""
    figures: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    evaluation: str = ""

    @property
    def fits(self) -> bool | None:
        """Whether the step's memory is there; None where that is not known."""
        peak = self.figures.get("peak_memory_bytes")
        capacity = self.figures.get("memory_capacity_bytes")
        return None if peak is None or capacity is None else peak <= capacity

    def to_dict(self) -> dict[str, object]:
        """Return it as ``hespas study table --json`` writes it."""
        return {
            "candidate": self.candidate,
            "status": self.status.value,
            "reason": self.reason or None,
            "fidelity": self.fidelity or None,
            "fits": self.fits,
            **{name: self.figures.get(name) for name in COLUMNS},
        }


def in_order(rows: Sequence[Row], goal: Goal) -> list[Row]:
    """Return the rows in the order of a goal: those done, screened, pruned and failed."""
    found: list[Row] = []
    for status in (Status.DONE, Status.SCREENED):
        found += ordered([row for row in rows if row.status is status], goal, _figures)
    for status in (Status.PRUNED, Status.FAILED):
        found += [row for row in rows if row.status is status]
    return found


def _figures(row: Row) -> Mapping[str, float | None]:
    return row.figures
