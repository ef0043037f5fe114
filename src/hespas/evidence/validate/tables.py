"""What ``hespas validate`` reports, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence

from hespas.base.units import format_time
from hespas.evidence.validate.comparison import Point, median_errors, speed_ups, summary
from hespas.evidence.validate.recompute import FLOOR_METHOD, Recomputed


def points_of(recomputed: Sequence[Recomputed], method: str) -> tuple[Point, ...]:
    """Return the points of one method."""
    return tuple(
        Point(measured=each.measured, predicted_s=each.predictions[method].step_time_s)
        for each in recomputed
    )


def validation_text(recomputed: Sequence[Recomputed], method: str) -> str:
    """Return the tables: steps, their errors in sum, and speed-ups between systems."""
    methods = tuple(dict.fromkeys((method, FLOOR_METHOD)))
    widths = _widths(recomputed)
    lines = [
        _head(methods, widths),
        *(_row(each, methods, widths) for each in recomputed),
        "",
        f"Network model: {', '.join(_models(recomputed, method))}",
        *(_summary_line(name, points_of(recomputed, name)) for name in methods),
        *_speed_up_lines(points_of(recomputed, method), widths[0]),
        *_assumptions(recomputed, method),
    ]
    return "\n".join(lines)


def _models(recomputed: Sequence[Recomputed], method: str) -> list[str]:
    """Return the names of the network models that were used, each once."""
    timelines = (each.predictions[method].timeline for each in recomputed)
    return list(dict.fromkeys(each.model for each in timelines if each is not None))


def _widths(recomputed: Sequence[Recomputed]) -> tuple[int, int]:
    """Return how wide the columns of workloads and systems are."""
    workloads = (len(each.measured.workload) for each in recomputed)
    systems = (len(each.measured.where) for each in recomputed)
    return max(17, *workloads) + 1, max(21, *systems) + 1


def _head(methods: Sequence[str], widths: tuple[int, int]) -> str:
    titles = "".join(f"{name:>12}{'error':>9}" for name in (*methods, "profiled"))
    return f"{'workload':<{widths[0]}}{'system':<{widths[1]}}{'published':>10}{titles}"


def _row(each: Recomputed, methods: Sequence[str], widths: tuple[int, int]) -> str:
    step = each.measured
    named = f"{step.workload:<{widths[0]}}{step.where:<{widths[1]}}"
    cells = [f"{named}{format_time(step.step_s):>10}"]
    for name in methods:
        predicted_s = each.predictions[name].step_time_s
        cells.append(f"{format_time(predicted_s):>12}{_percent(predicted_s / step.step_s - 1):>9}")
    profiled_s = step.profiled_compute_s
    if profiled_s is not None:
        cells.append(f"{format_time(profiled_s):>12}{_percent(profiled_s / step.step_s - 1):>9}")
    return "".join(cells)


def _summary_line(name: str, points: Sequence[Point]) -> str:
    total = summary(points)
    return (
        f"{name}: mean absolute error {100 * total.mean_error:.1f} %, largest "
        f"{100 * total.largest_error:.1f} %; beyond the rounding of what was measured "
        f"{100 * total.mean_error_beyond_rounding:.1f} % and "
        f"{100 * total.largest_error_beyond_rounding:.1f} %"
    )


def _speed_up_lines(points: Sequence[Point], width: int) -> list[str]:
    compared = speed_ups(points)
    middle = median_errors(compared)
    if middle is None:
        return []
    error, beyond = (f"{100 * each:.1f} %" for each in middle)
    lines = [
        f"{each.workload:<{width}}{each.faster.where} over {each.slower.where}: measured "
        f"{each.measured:.2f}, predicted {each.predicted:.2f}, {_percent(each.error)}"
        for each in compared
    ]
    summed = f"speed-ups: median absolute error {error}; beyond the rounding of what was measured "
    return ["", *lines, f"{summed}{beyond}"]


def _assumptions(recomputed: Sequence[Recomputed], method: str) -> list[str]:
    predictions = (each.predictions[method] for each in recomputed)
    notes = dict.fromkeys(text for each in predictions for text in each.assumptions)
    return ["", "Assumed:", *(f"  - {text}" for text in notes)]


def _percent(error: float) -> str:
    return f"{100 * error:+.1f} %"


def validation_json(recomputed: Sequence[Recomputed], method: str) -> dict[str, object]:
    """Return the same as an object, times in seconds and errors as fractions."""
    points = points_of(recomputed, method)
    compared = speed_ups(points)
    middle = median_errors(compared)
    return {
        "method": method,
        "steps": [
            {
                "workload": each.measured.workload,
                "options": dict(each.measured.options),
                "node": each.measured.node,
                "system": each.measured.system,
                "measured_s": each.measured.step_s,
                "resolution_s": each.measured.resolution_s,
                "profiled_compute_s": each.measured.profiled_compute_s,
                "predicted_s": {
                    name: prediction.step_time_s for name, prediction in each.predictions.items()
                },
                "error": point.error,
                "error_beyond_rounding": point.error_beyond_rounding,
            }
            for each, point in zip(recomputed, points, strict=True)
        ],
        "mean_absolute_error": summary(points).mean_error,
        "speed_ups": [
            {
                "workload": each.workload,
                "slower": each.slower.system,
                "slower_node": each.slower.node,
                "faster": each.faster.system,
                "faster_node": each.faster.node,
                "measured": each.measured,
                "predicted": each.predicted,
                "error": each.error,
                "error_beyond_rounding": each.error_beyond_rounding,
            }
            for each in compared
        ],
        "median_speed_up_error": None if middle is None else middle[0],
        "median_speed_up_error_beyond_rounding": None if middle is None else middle[1],
    }
