"""The closed forms of a long run beside runs played through, for docs/how-to/long-run.md.

``PYTHONPATH=src:validation python validation/goodput_grid.py`` prints a table: clusters of 8 to
100,000 devices that fail as H100s do, checkpoints that take seconds to half an hour, saved as often
as is best and a third as often, restarts of one and of twenty minutes, and spares of nodes that are
repaired in a day. Each run is played until it failed `FAILURES` times, and for 40,000 to 3,000,000
intervals. Categories of 1 % of the time or more are compared where there were so many failures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import product

from hespas.goodput.failures import FAILURES as RATES
from hespas.goodput.model import LongRun, best_interval_s, goodput_of
from hespas.goodput.simulation import simulated

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
    print("| devices | runs | progress | apart, at most | categories of 1 % or more, at most |")
    print("|---|---|---|---|---|")
    whole = 0.0
    for devices in _DEVICES:
        shares: list[float] = []
        productive, category = 0.0, 0.0
        for number, run in enumerate(_runs(devices)):
            found, apart, large = _compared(run, seed=1000 * devices + number)
            shares.append(found)
            productive, category = max(productive, apart), max(category, large)
        whole = max(whole, productive)
        print(
            f"| {devices:,} | {len(shares)} | {100 * min(shares):.1f} to {100 * max(shares):.1f} % "
            f"| {100 * productive:.2f} % | {100 * category:.1f} % |",
            flush=True,
        )
    print(f"\nProgress is never more than {100 * whole:.2f} % apart.")


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


def _compared(run: LongRun, *, seed: int) -> tuple[float, float, float]:
    """Return the progress, its relative difference, and that of the large categories."""
    expected = goodput_of(run)
    # Each interval fails so often until it is done.
    failures = expected.failures_per_day / 86_400.0 * run.interval_s / expected.productive
    least, most = INTERVALS
    played = simulated(run, intervals=int(min(most, max(least, FAILURES / failures))), seed=seed)
    progress = abs(played.productive / expected.productive - 1.0)
    if most * failures < FAILURES:
        return expected.productive, progress, 0.0
    large = [
        abs(share / asdict(expected)[name] - 1.0)
        for name, share in asdict(played).items()
        if name != "failures_per_day" and asdict(expected)[name] >= _LARGE
    ]
    return expected.productive, progress, max(large)


if __name__ == "__main__":
    main()
