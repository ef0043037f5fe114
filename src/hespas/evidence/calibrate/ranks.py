"""Read ranks' computing times as a variation of devices.

The input is a CSV with the columns ``rank``, ``step``, and ``seconds`` or a time with another unit.
The time is that in which a rank computes, without waiting for others: with the wait, all ranks of a
synchronous step take equally long. Deviations are robust: the distance of the quartiles over 1.349,
that of a normal distribution. Ranks beyond five deviations are few slow devices rather than its
tail.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, quantiles

import msgspec

from hespas.errors import MeasurementError
from hespas.evidence.calibrate.samples import timed_lines
from hespas.hardware.variation import SlowDevices, Variation

_HEADER = "rank,step,seconds"
_QUARTILES = 1.349
_SLOW = 5.0
_LEAST_RANKS, _LEAST_STEPS = 8, 4
_LEAST_DEVIATION = 1e-3
"""Ranks that differ less wait for each other."""


def read_ranks(path: Path) -> Variation:
    """Return the variation of the ranks that a CSV lists.

    Raises `MeasurementError` for fewer than 8 ranks, for ranks with fewer than 4 steps, for ranks
    that take equally long, and for ranks that differ too much to be of one kind.
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
    if max(deviation, jitter) < _LEAST_DEVIATION:
        raise MeasurementError(
            f"the ranks of a step differ by {100 * max(deviation, jitter):.2g} %, as they do where "
            "each waits for the slowest",
            location=str(path),
            hint="give the time in which a rank computes, without waiting for others",
        )
    found = Variation(
        source=f"{path.name}: {len(factors)} ranks, {len(step_medians)} steps",
        device_sigma=deviation,
        step_sigma=jitter,
        slow=SlowDevices(share=len(slow) / len(factors), factor=mean(slow)) if slow else None,
    )
    try:
        return msgspec.convert(msgspec.to_builtins(found), Variation)
    except msgspec.ValidationError:
        raise MeasurementError(
            f"ranks differ by {100 * deviation:.0f} %, and steps of one by {100 * jitter:.0f} %",
            location=str(path),
            hint="give ranks that compute the same, such as those of one stage of a pipeline",
        ) from None


def _times(path: Path) -> dict[str, dict[str, float]]:
    by_rank: dict[str, dict[str, float]] = defaultdict(dict)
    for line, time_s in timed_lines(path, needed=("rank", "step"), header=_HEADER):
        rank, step = line.text("rank"), line.text("step")
        if step in by_rank[rank]:
            raise MeasurementError(
                f"step {step} of rank {rank} is there twice",
                location=line.location,
                hint="keep one",
            )
        by_rank[rank][step] = time_s
    short_rank = next((rank for rank, own in by_rank.items() if len(own) < _LEAST_STEPS), None)
    if len(by_rank) < _LEAST_RANKS or short_rank is not None:
        count = (
            f"the number of ranks is {len(by_rank)}"
            if short_rank is None
            else f"rank {short_rank} has few steps"
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
