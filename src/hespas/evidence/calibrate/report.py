"""What a calibration fitted and how well: for people, as JSON, and as a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hespas.evidence.calibrate.nccl_tests import CollectiveRun
from hespas.evidence.calibrate.plot import Panel
from hespas.evidence.calibrate.samples import FactorFit, Sample, worst
from hespas.hardware.links import Link

METHOD_NOTE = (
    "The factors are for --method measured, the default for compiled programs; the roofline, the "
    "default for all others, knows no calibration."
)
LINK_NOTE = (
    "The link is for --model hespas; astra-sim, the default of hespas run, knows no measured "
    "collectives."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was fitted: factors of a node, collectives of a link, and the presets they start from.

    ``system`` is the directory of a system whose first dimension the link is. ``sources`` are the
    files of the measurements, ``bases`` the paths that the presets were given by.
    """

    node: str
    link: Link | None
    system: Path | None
    factors: Sequence[FactorFit]
    runs: Sequence[CollectiveRun]
    sources: Sequence[str]
    bases: Sequence[Path] = ()


def report_json(calibration: Calibration) -> dict[str, Any]:
    """Return the fits and their residuals as JSON values."""
    return {
        "node": calibration.node,
        "link": None if calibration.link is None else calibration.link.name,
        "sources": list(calibration.sources),
        "factors": [_factor_json(fit) for fit in calibration.factors],
        "collectives": [_run_json(run) for run in calibration.runs],
    }


def _factor_json(fit: FactorFit) -> dict[str, Any]:
    return {
        "name": fit.name,
        "factor": fit.factor,
        "notes": list(fit.notes),
        "warnings": list(fit.warnings),
        "points": [
            {
                "what": sample.case.label,
                "place": sample.case.location,
                "measured_s": sample.case.measured_s,
                "predicted_s": sample.predicted_s,
                "fitted_s": sample.fitted_s,
                "error": sample.error_after,
            }
            for sample in fit.samples
        ],
    }


def _run_json(run: CollectiveRun) -> dict[str, Any]:
    return {
        "kind": run.kind,
        "gpus": run.gpus,
        "notes": list(run.notes),
        "points": [
            {
                "size_bytes": point.size_bytes,
                "place": point.location,
                "measured_s": point.time_s,
                "error": error,
                "left_out_error": left_out,
            }
            for point, error, left_out in zip(
                run.points, run.errors, run.left_out_errors, strict=True
            )
        ],
    }


def report_text(calibration: Calibration) -> str:
    """Return the fits and their residuals for people."""
    lines = [line for fit in calibration.factors for line in _factor_lines(fit)]
    lines += [line for run in calibration.runs for line in _run_lines(run)]
    caveats = [METHOD_NOTE] if calibration.factors else []
    caveats += [LINK_NOTE] if calibration.runs else []
    return "\n".join([*lines, *caveats])


def _factor_lines(fit: FactorFit) -> list[str]:
    largest = max(abs(sample.error_after) for sample in fit.samples)
    text = (
        f"{fit.name}: x {fit.factor}, {_counted(len(fit.samples), 'measurement')}; median error "
        f"{_percent(fit.median_error_before)} before, {_percent(fit.median_error_after)} after, "
        f"worst {_percent(largest)}"
    )
    return [
        text,
        *(_sample_line(sample) for sample in worst(fit.samples)),
        *(f"  note: {note}" for note in fit.notes),
        *(f"  warning: {warning}" for warning in fit.warnings),
    ]


def _sample_line(sample: Sample) -> str:
    case = sample.case
    return (
        f"  {case.label} ({case.location}): {_signed(sample.error)} before, "
        f"{_signed(sample.error_after)} after"
    )


def _run_lines(run: CollectiveRun) -> list[str]:
    errors = [abs(error) for error in run.errors]
    text = (
        f"{run.kind} among {run.gpus}: {_counted(len(run.pieces), 'piece')} for "
        f"{_counted(len(errors), 'measurement')}; "
    )
    left_out = [abs(error) for error in run.left_out_errors if error is not None]
    if not left_out:
        text += "too few sizes to tell the error"
    else:
        text += (
            f"median error {_percent(median(errors))}, worst {_percent(max(errors))}; of sizes "
            f"left out of the fit {_percent(median(left_out))}, worst {_percent(max(left_out))}"
        )
    return [text, *(f"  note: {note}" for note in run.notes)]


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _signed(value: float) -> str:
    return f"{round(100 * value, 1) + 0.0:+.1f} %"


def panels(calibration: Calibration) -> list[Panel]:
    """Return a panel for each fit."""
    panels = [_factor_panel(fit) for fit in calibration.factors]
    return panels + [_run_panel(run) for run in calibration.runs]


def _factor_panel(fit: FactorFit) -> Panel:
    points = [(each.case.measured_s, each.fitted_s) for each in fit.samples]
    ends = [value for point in points for value in point]
    return Panel(
        title=f"{fit.name}: x {fit.factor}",
        x_name="measured (s)",
        y_name="predicted (s)",
        points=points,
        line=[(min(ends), min(ends)), (max(ends), max(ends))],
    )


def _run_panel(run: CollectiveRun) -> Panel:
    points = sorted((float(point.size_bytes), point.time_s) for point in run.points)
    fitted = {
        size: time * (1 + e) for (size, time), e in zip(points, _sorted_errors(run), strict=True)
    }
    return Panel(
        title=f"{run.kind} among {run.gpus}",
        x_name="size (bytes)",
        y_name="time (s)",
        points=points,
        line=sorted(fitted.items()),
    )


def _sorted_errors(run: CollectiveRun) -> list[float]:
    pairs = zip(run.points, run.errors, strict=True)
    return [
        error for _, error in sorted(pairs, key=lambda pair: (pair[0].size_bytes, pair[0].time_s))
    ]
