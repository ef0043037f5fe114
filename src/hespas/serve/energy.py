"""The energy of devices that serve, and of those that wait."""

from __future__ import annotations

from collections.abc import Sequence

from hespas.serve.activity import Activity
from hespas.serve.load import PICOSECONDS
from hespas.serve.step_times import interpolated
from hespas.serve.surface import Surface


def energy_of(
    surface: Surface, activities: Sequence[Activity], devices: Sequence[int], duration_s: float
) -> float | None:
    """Return the energy that replicas of ``devices`` draw over the run.

    Each kind of iteration draws the power of its mean tokens, and devices that wait draw
    ``idle_w``. None where power is not known.
    """
    if surface.power_w is None:
        return None
    total_j = 0.0
    for activity, count in zip(activities, devices, strict=True):
        working_s = activity.working_ps / PICOSECONDS
        total_j += count * surface.idle_w * max(0.0, duration_s - working_s)
        total_j += count * _working_w(surface.power_w, activity, surface.parts) * working_s
    return total_j


def _working_w(table_w: Sequence[tuple[int, float]], activity: Activity, parts: int) -> float:
    """Return the mean power of a device while its replica works; 0 where it never does."""
    most = table_w[-1][0]
    energy_ps = elapsed_ps = 0.0
    for kind in (activity.decodes, activity.prompts):
        if kind.elapsed_ps:
            tokens = kind.tokens_ps / kind.elapsed_ps / parts
            power_w = interpolated(table_w, min(most, max(1, round(tokens))))
            energy_ps += power_w * kind.elapsed_ps
            elapsed_ps += kind.elapsed_ps
    return energy_ps / elapsed_ps if elapsed_ps else 0.0
