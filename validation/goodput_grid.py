"""The closed forms of a long run beside runs played through, for docs/how-to/long-run.md.

``PYTHONPATH=src:validation python validation/goodput_grid.py`` prints a table: clusters of 8 to
100,000 devices that fail as H100s do, checkpoints that take seconds to half an hour, saved as often
as is best and a third as often, restarts of one and of twenty minutes, and spares of nodes that are
repaired in a day. Each run is played for 40,000 intervals and 60,000 failures or more, but for
3,000,000 intervals at most. Where there were so many failures, the categories are compared that
take 1 % of the time or more; those that differ by over 1 % are played again, ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import product

from goodput_run import simulated
from hespas.prediction.goodput import FAILURES as RATES
from hespas.prediction.goodput import LongRun, best_interval_s, goodput_of

FAILURES = 60_000
INTERVALS = (40_000, 3_000_000)
_DEVICES = (8, 64, 512, 4096, 16_384, 100_000)
_SAVES_S = (2.0, 60.0, 1800.0)
_SELDOM = (1.0, 3.0)
_STARTS_S = (60.0, 1200.0)
_SPARES = (None, 0, 2, 32)
_REPAIR_S = 86_400.0
_LARGE = 0.01


def main() -> None:
    """Print the largest differences for each size of cluster."""
    print(
        "| devices | runs | progress | apart, at most | runs with so many failures | categories |"
    )
    print("|---|---|---|---|---|---|")
    for devices in _DEVICES:
        shares: list[float] = []
        progress: list[float] = []
        categories: list[float] = []
        for number, run in enumerate(_runs(devices)):
            seed = 1000 * devices + number
            failures = _failures_of_interval(run)
            intervals = int(min(INTERVALS[1], max(INTERVALS[0], FAILURES / failures)))
            apart = _apart(run, intervals=intervals, seed=seed)
            if max(apart.values()) > _LARGE and intervals * failures >= FAILURES - failures:
                apart = _apart(run, intervals=10 * intervals, seed=seed)
            shares.append(goodput_of(run).productive)
            progress.append(apart["productive"])
            if intervals * failures >= FAILURES - failures:
                categories.append(max(apart.values()))
        print(
            f"| {devices:,} | {len(shares)} | {100 * min(shares):.2g} to {100 * max(shares):.1f} % "
            f"| {100 * max(progress):.2f} % | {len(categories)} "
            f"| {100 * max(categories, default=0.0):.1f} % |",
            flush=True,
        )


def _runs(devices: int) -> Iterator[LongRun]:
    between_s = RATES["H100"].device_interval_s / devices
    for save_s, seldom, start_s, spares in product(_SAVES_S, _SELDOM, _STARTS_S, _SPARES):
        interval_s = best_interval_s(failure_interval_s=between_s, save_s=save_s)
        yield LongRun(
            failure_interval_s=between_s,
            start_s=start_s,
            load_s=save_s,
            save_s=save_s,
            interval_s=seldom * interval_s,
            spares=spares,
            repair_s=_REPAIR_S,
        )


def _failures_of_interval(run: LongRun) -> float:
    """Return how often a run fails until an interval is done."""
    expected = goodput_of(run)
    return expected.failures_per_day / 86_400.0 * run.interval_s / expected.productive


def _apart(run: LongRun, *, intervals: int, seed: int) -> dict[str, float]:
    """Return by how much the progress and the large categories differ from the closed forms."""
    expected = asdict(goodput_of(run))
    played = asdict(simulated(run, intervals=intervals, seed=seed))
    return {
        name: abs(share / expected[name] - 1.0)
        for name, share in played.items()
        if name == "productive" or (name != "failures_per_day" and expected[name] >= _LARGE)
    }


if __name__ == "__main__":
    main()
