"""Read ranks' computing times as a variation of devices.

The input is a CSV with the columns ``rank``, ``step``, ``seconds``. The time is that in which a
rank computes, without waiting for others: with the wait, all ranks of a synchronous step take
equally long. Deviations are robust: the distance of the quartiles over 1.349, that of a normal
distribution. Ranks beyond five deviations are few slow devices rather than its tail.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, quantiles

from hespas.base.table import read_table
from hespas.errors import MeasurementError
from hespas.hardware.variation import SlowDevices, Variation

_HEADER = ("rank", "step", "seconds")
_QUARTILES = 1.349
_SLOW = 5.0
_LEAST_RANKS, _LEAST_STEPS = 8, 4


def read_ranks(path: Path) -> Variation:
    """Return the variation of the ranks that a CSV lists.

    Raises `MeasurementError` for fewer than 8 ranks, and for ranks with fewer than 4 steps.
    """
    by_rank = _times(path)
    medians = {rank: median(times.values()) for rank, times in by_rank.items()}
    typical = median(medians.values())
    factors = [own / typical for own in medians.values()]
    deviation = _deviation(factors)
    slow = [factor for factor in factors if factor > 1.0 + _SLOW * deviation]
    step_medians = {
        step: median(
            times[step] / medians[rank] for rank, times in by_rank.items() if step in times
        )
        for step in {step for times in by_rank.values() for step in times}
    }
    jitter = median(
        _deviation([time / medians[rank] / step_medians[step] for step, time in times.items()])
        for rank, times in by_rank.items()
    )
    steps = len(step_medians)
    return Variation(
        source=f"{path.name}: {len(factors)} ranks, {steps} steps",
        device_sigma=deviation,
        step_sigma=jitter,
        slow=SlowDevices(share=len(slow) / len(factors), factor=mean(slow)) if slow else None,
    )


def _times(path: Path) -> dict[str, dict[str, float]]:
    by_rank: dict[str, dict[str, float]] = defaultdict(dict)
    table = read_table(path, needed=_HEADER, renamed=str.lower, error=MeasurementError)
    for line in table.lines:
        rank, step = line.text("rank"), line.text("step")
        if step in by_rank[rank]:
            raise MeasurementError(
                f"step {step} of rank {rank} is there twice",
                location=line.location,
                hint="keep one",
            )
        by_rank[rank][step] = line.amount("seconds")
    short_rank = next((rank for rank, own in by_rank.items() if len(own) < _LEAST_STEPS), None)
    if len(by_rank) < _LEAST_RANKS or short_rank is not None:
        count = (
            f"{len(by_rank)} ranks" if short_rank is None else f"rank {short_rank} has few steps"
        )
        raise MeasurementError(
            f"{count}: too little to say how much ranks differ",
            location=str(path),
            hint=f"give {_LEAST_RANKS} ranks and {_LEAST_STEPS} steps of each, or more",
        )
    return by_rank


def _deviation(values: Sequence[float]) -> float:
    low, _, high = quantiles(values, n=4)
    return (high - low) / _QUARTILES
