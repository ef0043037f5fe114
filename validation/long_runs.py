"""Published runs beside long runs that are played through, for docs/evidence/scale.md.

Each run takes its own published inputs; what was not published is hespas' default and listed. The
loss for each interruption that would give the published figure is computed beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hespas.base.units import DAY_S, HOUR_S
from hespas.prediction.goodput import DEFAULT_START_S, FAILURES, LongRun, best_interval_s
from hespas.prediction.hazards import Cause, Hazards, hazards_of, read_hazards
from hespas.prediction.long_run import played

SEEDS = 300
_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """A run; shares are of its time, None where the publication has none.

    ``interval_s`` is between interruptions, None where it is not published; ``borrowed`` says whose
    rate stands in. ``lacking`` are the inputs that were not published.
    """

    name: str
    devices: int
    days: float
    goodput: str
    share: float | None
    source: str
    interval_s: float | None = None
    parameters: float | None = None
    lacking: str = "restart time"
    borrowed: str = ""


RUNS = (
    PublishedRun(
        name="Llama 3.1 405B",
        devices=16_384,
        days=54,
        goodput="> 90 %",
        share=0.90,
        parameters=405e9,
        source="arXiv 2407.21783, section 3.3.4: 466 interruptions in 54 days",
    ),
    PublishedRun(
        name="Llama 3.1, whole run",
        devices=16_000,
        days=54,
        goodput="90 %",
        share=0.90,
        interval_s=2.5 * HOUR_S,
        parameters=405e9,
        source="glennklockwood.com/garden/job-reliability: 2.5 h between interruptions",
    ),
    PublishedRun(
        name="ByteRobust",
        devices=9_600,
        days=90,
        goodput="97 %",
        share=0.97,
        parameters=None,
        lacking="failures, restart time",
        borrowed="Llama 3's failures",
        source="arXiv 2509.16293: three months, checkpoints in memory in every step",
    ),
    PublishedRun(
        name="OPT-175B",
        devices=992,
        days=60,
        goodput="59 %",
        share=0.59,
        interval_s=7.5 * HOUR_S,
        parameters=175e9,
        lacking="restart time (by hand), checkpoint interval",
        source="glennklockwood.com/garden/job-reliability: 7.5 h between interruptions",
    ),
    PublishedRun(
        name="HLAT, automatic restarts",
        devices=4_096,
        days=0,
        goodput="98.81 %",
        share=0.9881,
        lacking="failures, restart time",
        source="glennklockwood.com/garden/job-reliability",
    ),
    PublishedRun(
        name="HLAT, restarts by hand",
        devices=4_096,
        days=0,
        goodput="77.83 %",
        share=0.7783,
        lacking="failures, restart time",
        source="glennklockwood.com/garden/job-reliability",
    ),
    PublishedRun(
        name="Gemini, TPUv4",
        devices=4_096,
        days=0,
        goodput="85 to 97 %",
        share=None,
        lacking="devices, failures, restart time",
        source="glennklockwood.com/garden/job-reliability",
    ),
)
_STORAGE_BYTES_PER_S = 2e12 / 16_000
_STATE_BYTES = 12


def hazards_for(run: PublishedRun) -> Hazards | None:
    """Return what interrupts a run; None where nothing is published that could stand in."""
    nodes = run.devices // _NODE
    if run.interval_s is not None:
        return Hazards(causes=(Cause(name="all", interval_s=run.interval_s),), nodes=nodes)
    if run.borrowed:
        rate = FAILURES["H100"].device_interval_s / run.devices
        return Hazards(causes=(Cause(name="all", interval_s=rate),), nodes=nodes)
    if run.parameters is None:
        return None
    file = read_hazards("H100_Llama3")
    return hazards_of(file, devices=run.devices, node_devices=None)


def rows() -> list[dict[str, Any]]:
    """Return each run with its predicted goodput."""
    return [_row(run) for run in RUNS]


def _row(run: PublishedRun) -> dict[str, Any]:
    hazards = hazards_for(run)
    predicted: float | None = None
    needed_s: float | None = None
    if hazards is not None:
        save_s = 1.0
        if run.parameters is not None:
            save_s = _STATE_BYTES * run.parameters / (_STORAGE_BYTES_PER_S * run.devices)
        between_s = hazards.interval_s
        plan = LongRun(
            failure_interval_s=between_s,
            start_s=DEFAULT_START_S,
            load_s=save_s,
            save_s=save_s,
            interval_s=best_interval_s(failure_interval_s=between_s, save_s=save_s),
        )
        runs = played(plan, hazards, run_s=run.days * DAY_S, seeds=SEEDS, seed=0)
        predicted = float(runs.goodput.mean())
        if run.share is not None:
            needed_s = (1.0 - run.share) * between_s / run.share
    return {
        "run": run.name,
        "devices": run.devices,
        "published": run.goodput,
        "predicted": predicted,
        "interval_s": None if hazards is None else hazards.interval_s,
        "loss_needed_s": needed_s,
        "lacking": run.lacking,
        "borrowed": run.borrowed,
        "source": run.source,
    }


_HEAD = (
    *("run", "devices", "interruption every", "published", "predicted"),
    *("loss an interruption that gives it", "not published"),
)


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table of the runs."""
    lines = [
        f"| {' | '.join(_HEAD)} |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        interval, needed, predicted = row["interval_s"], row["loss_needed_s"], row["predicted"]
        every = "-" if interval is None else f"{interval / HOUR_S:.1f} h"
        share = "-" if predicted is None else f"{100 * predicted:.1f} %"
        loss = "-" if needed is None else f"{needed / 60:.0f} min"
        lacking = row["lacking"] + (f"; {row['borrowed']} here" if row["borrowed"] else "")
        lines.append(
            f"| {row['run']} | {row['devices']:,} | {every} | {row['published']} | {share} "
            f"| {loss} | {lacking} |"
        )
    return lines
