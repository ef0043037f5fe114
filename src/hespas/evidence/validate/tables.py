"""Report the results of ``hespas validate`` as text and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import inf
from statistics import mean, median

from hespas.base.frozen import frozen
from hespas.base.units import format_time
from hespas.evidence.validate.every import PredictedRow
from hespas.evidence.validate.measurements import MeasuredStep, Row
from hespas.evidence.validate.recompute import FLOOR_METHOD, Recomputed


def points_of(recomputed: Sequence[Recomputed], method: str) -> tuple[Point, ...]:
    """Return the points of one method."""
    return tuple(
        Point(measured=step.measured, predicted_s=step.predictions[method].step_time_s)
        for step in recomputed
    )


def validation_text(recomputed: Sequence[Recomputed], method: str) -> str:
    """Return steps, their mean errors, and speed-ups as tables."""
    methods = tuple(dict.fromkeys((method, FLOOR_METHOD)))
    widths = (
        max(17, *(len(step.measured.workload) for step in recomputed)) + 1,
        max(21, *(len(step.measured.where) for step in recomputed)) + 1,
    )
    titles = "".join(f"{name:>12}{'error':>9}" for name in (*methods, "profiled"))
    predictions = [step.predictions[method] for step in recomputed]
    timelines = (prediction.timeline for prediction in predictions)
    models = dict.fromkeys(timeline.model for timeline in timelines if timeline is not None)
    notes = dict.fromkeys(text for prediction in predictions for text in prediction.assumptions)
    lines = [
        f"{'workload':<{widths[0]}}{'system':<{widths[1]}}{'published':>10}{titles}",
        *(_step_line(step, methods, widths) for step in recomputed),
        "",
        f"Network model: {', '.join(models)}",
        *(_summary_line(name, points_of(recomputed, name)) for name in methods),
        *_speed_up_lines(points_of(recomputed, method), widths[0]),
        *("", "Assumed:", *(f"  - {text}" for text in notes)),
    ]
    return "\n".join(lines)


def _step_line(recomputed: Recomputed, methods: Sequence[str], widths: tuple[int, int]) -> str:
    step = recomputed.measured
    names = f"{step.workload:<{widths[0]}}{step.where:<{widths[1]}}"
    times_s = [recomputed.predictions[name].step_time_s for name in methods]
    if step.profiled_compute_s is not None:
        times_s.append(step.profiled_compute_s)
    cells = [
        f"{format_time(time_s):>12}{_percent(time_s / step.step_s - 1):>9}" for time_s in times_s
    ]
    return "".join([f"{names}{format_time(step.step_s):>10}", *cells])


def _summary_line(name: str, points: Sequence[Point]) -> str:
    errors, beyond = error_sizes(points)
    return (
        f"{name}: mean absolute error {100 * mean(errors):.1f} %, largest "
        f"{100 * max(errors):.1f} %; beyond the rounding of what was measured "
        f"{100 * mean(beyond):.1f} % and {100 * max(beyond):.1f} %"
    )


def error_sizes(compared: Sequence[Point | SpeedUp]) -> tuple[list[float], list[float]]:
    """Return the sizes of errors, and of those beyond the rounding of what was measured."""
    errors = [abs(own.error) for own in compared]
    return errors, [abs(own.error_beyond_rounding) for own in compared]


def _speed_up_lines(points: Sequence[Point], width: int) -> list[str]:
    compared = speed_ups(points)
    if not compared:
        return []
    error, beyond = (f"{100 * median(sizes):.1f} %" for sizes in error_sizes(compared))
    lines = [
        f"{pair.workload:<{width}}{pair.faster.where} over {pair.slower.where}: measured "
        f"{pair.measured:.2f}, predicted {pair.predicted:.2f}, {_percent(pair.error)}"
        for pair in compared
    ]
    summed = f"speed-ups: median absolute error {error}; beyond the rounding of what was measured "
    return ["", *lines, f"{summed}{beyond}"]


def validation_json(recomputed: Sequence[Recomputed], method: str) -> dict[str, object]:
    """Return the tables as an object, in seconds and fractions."""
    points = points_of(recomputed, method)
    compared = speed_ups(points)
    middle = [median(sizes) if sizes else None for sizes in error_sizes(compared)]
    return {
        "method": method,
        "steps": [
            {
                "workload": step.measured.workload,
                "options": dict(step.measured.options),
                "node": step.measured.node,
                "system": step.measured.system,
                "measured_s": step.measured.step_s,
                "resolution_s": step.measured.resolution_s,
                "profiled_compute_s": step.measured.profiled_compute_s,
                "predicted_s": {
                    name: prediction.step_time_s for name, prediction in step.predictions.items()
                },
                "error": point.error,
                "error_beyond_rounding": point.error_beyond_rounding,
            }
            for step, point in zip(recomputed, points, strict=True)
        ],
        "mean_absolute_error": mean(error_sizes(points)[0]),
        "speed_ups": [
            {
                "workload": speed_up.workload,
                "slower": speed_up.slower.system,
                "slower_node": speed_up.slower.node,
                "faster": speed_up.faster.system,
                "faster_node": speed_up.faster.node,
                "measured": speed_up.measured,
                "predicted": speed_up.predicted,
                "error": speed_up.error,
                "error_beyond_rounding": speed_up.error_beyond_rounding,
            }
            for speed_up in compared
        ],
        "median_speed_up_error": middle[0],
        "median_speed_up_error_beyond_rounding": middle[1],
    }


@frozen
class Point:
    """A measured step and the time that a method predicts."""

    measured: MeasuredStep
    predicted_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one; negative is too fast."""
        return self.predicted_s / self.measured.step_s - 1

    @property
    def error_beyond_rounding(self) -> float:
        """The error beyond the measured time's rounding; 0 within it."""
        low, high = self.measured.interval_s
        return self.predicted_s / min(max(self.predicted_s, low), high) - 1


@frozen
class SpeedUp:
    """A workload's speed-up between two systems, measured and predicted.

    ``slower`` and ``faster`` are the measured steps.
    """

    workload: str
    slower: MeasuredStep
    faster: MeasuredStep
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1

    @property
    def error_beyond_rounding(self) -> float:
        """The error to the nearest ratio that rounds as measured."""
        slower, faster = self.slower.interval_s, self.faster.interval_s
        low = slower[0] / faster[1]
        high = slower[1] / faster[0] if faster[0] > 0 else inf
        return self.predicted / min(max(self.predicted, low), high) - 1


def speed_ups(points: Iterable[Point]) -> tuple[SpeedUp, ...]:
    """Compare every two systems with the same workload."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        step = point.measured
        groups.setdefault((step.workload, repr(sorted(step.options.items()))), []).append(point)
    return tuple(
        _speed_up(first, second)
        for group in groups.values()
        for first, second in combinations(group, 2)
        if first.measured.system != second.measured.system
    )


def _speed_up(first: Point, second: Point) -> SpeedUp:
    slower, faster = sorted((first, second), key=lambda point: -point.measured.step_s)
    return SpeedUp(
        workload=slower.measured.workload,
        slower=slower.measured,
        faster=faster.measured,
        measured=slower.measured.step_s / faster.measured.step_s,
        predicted=slower.predicted_s / faster.predicted_s,
    )


_GROUPINGS: dict[str, Callable[[PredictedRow], str]] = {
    "family": lambda predicted: predicted.row.family,
    "part": lambda predicted: predicted.row.node,
    "scale": lambda predicted: predicted.row.scale,
    "framework_year": lambda predicted: str(predicted.row.framework_year or "not known"),
    "held_by": lambda predicted: "" if predicted.answer is None else predicted.answer.held_by,
    "source": lambda predicted: _source_and_year(predicted.row),
}
"""Groupings of rows by a property; empty ones make no group."""


def _source_and_year(row: Row) -> str:
    return f"{row.publisher} {row.framework_year or ''}".strip() if row.publisher else ""


_WIDTHS = (24, 14, 8, 5, 10, 10, 8, 10, 9, 8)


def every_json(predicted: Sequence[PredictedRow]) -> dict[str, object]:
    """Return rows and their errors by group, as JSON values.

    Times are in seconds, errors are fractions. ``predicted_s``, ``error`` and ``exposed_s`` of a
    row without a prediction are null, and its ``reason`` says why.
    """
    return {
        "rows": [_row_json(row) for row in predicted],
        "summary": {
            name: {
                group: _errors(rows) for group, rows in _group_rows(predicted, property_of).items()
            }
            for name, property_of in _GROUPINGS.items()
        },
        "all": _errors(predicted),
    }


def _row_json(predicted: PredictedRow) -> dict[str, object]:
    row, answer = predicted.row, predicted.answer
    return {
        "family": row.family,
        "part": row.node,
        "devices": row.devices,
        "published_s": row.published_s,
        "publisher": row.publisher,
        "published_peak_bytes": row.published_peak_bytes,
        "memory_error": predicted.memory_error,
        "predicted_s": None if answer is None else answer.predicted_s,
        "error": predicted.error,
        "exposed_s": None if answer is None else answer.exposed_s,
        "framework_year": row.framework_year,
        "held_by": None if answer is None else answer.held_by,
        "reason": predicted.reason,
        "workload": row.workload,
        "options": dict(row.options),
        "xla_flags": dict(row.xla_flags),
        "system": row.system,
        "scale": row.scale,
        "resolution_s": row.resolution_s,
        "compute_s": None if answer is None else answer.compute_s,
        "bound": {} if answer is None else dict(answer.bound),
        "kinds_s": {} if answer is None else dict(answer.kinds),
        "peak_memory_bytes": None if answer is None else answer.peak_bytes,
        "cpu_s": predicted.cpu_s,
        "memory_bytes": predicted.memory_bytes,
        "source": row.source,
        "note": row.note,
        "assumptions": [] if answer is None else list(answer.assumptions),
    }


def _group_rows(
    predicted: Iterable[PredictedRow], property_of: Callable[[PredictedRow], str]
) -> dict[str, list[PredictedRow]]:
    """Return the predicted rows by a property, sorted."""
    groups: dict[str, list[PredictedRow]] = {}
    for row in predicted:
        if row.answer is not None:
            groups.setdefault(property_of(row), []).append(row)
    return dict(sorted(groups.items()))


def _errors(predicted: Iterable[PredictedRow]) -> dict[str, object]:
    rows = list(predicted)
    errors = [row.error for row in rows if row.error is not None]
    memory = [row.memory_error for row in rows if row.memory_error is not None]
    return {
        "predicted": len(errors),
        "mean_absolute_error": mean(map(abs, errors)) if errors else None,
        "mean_error": mean(errors) if errors else None,
        "largest_error": max(errors, key=abs) if errors else None,
        "mean_absolute_memory_error": mean(map(abs, memory)) if memory else None,
    }


def every_text(predicted: Sequence[PredictedRow]) -> str:
    """Return rows by family, errors, and unpredicted rows as tables."""
    families = _group_rows(predicted, _GROUPINGS["family"])
    head = _cells(
        "step", "part", "devices", "year", "published", "predicted", "error", "exposed",
        "held by", "CPU",
    )  # fmt: skip
    lines = [head]
    for rows in families.values():
        lines += [_row_line(row) for row in rows]
    lines += ["", *_group_lines(predicted)]
    return "\n".join([*lines, *_reason_lines(predicted)])


def _cells(*texts: str) -> str:
    """Return texts in columns, the first two left-aligned."""
    placed = [
        f"{text:<{width}}" if column < 2 else f"{text:>{width}}"
        for column, (text, width) in enumerate(zip(texts, _WIDTHS, strict=True))
    ]
    return " ".join(placed).rstrip()


def _row_line(predicted: PredictedRow) -> str:
    row, answer = predicted.row, predicted.answer
    assert answer is not None  # noqa: S101 - only rows with a prediction are shown so
    return _cells(
        row.name,
        row.node,
        str(row.devices),
        str(row.framework_year or ""),
        format_time(row.published_s),
        format_time(answer.predicted_s),
        _percent(predicted.error),
        format_time(answer.exposed_s),
        answer.held_by,
        f"{predicted.cpu_s / 60:.1f} min",
    )


def _percent(error: float | None) -> str:
    return "" if error is None else f"{100 * error:+.1f} %"


def _group_lines(predicted: Sequence[PredictedRow]) -> list[str]:
    lines: list[str] = []
    for name, property_of in _GROUPINGS.items():
        groups = _group_rows(predicted, property_of)
        lines += [
            f"{name.replace('_', ' ')} {group}: {_error_summary(rows)}"
            for group, rows in groups.items()
            if group
        ]
    return [*lines, f"all: {_error_summary(predicted)}"]


def _error_summary(predicted: Sequence[PredictedRow]) -> str:
    errors = [row.error for row in predicted if row.error is not None]
    if not errors:
        return "none is predicted"
    memory = [abs(row.memory_error) for row in predicted if row.memory_error is not None]
    return (
        f"{len(errors)} step{'s' if len(errors) > 1 else ''}, mean absolute error "
        f"{100 * mean(map(abs, errors)):.1f} %, largest {_percent(max(errors, key=abs))}"
        f"{f'; memory {100 * mean(memory):.1f} %' if memory else ''}"
    )


def _reason_lines(predicted: Sequence[PredictedRow]) -> list[str]:
    """Return the rows not predicted, or not compiled, by reason."""
    lines: list[str] = []
    for title, rows in (
        ("Not predicted:", [row for row in predicted if row.answer is None]),
        ("Not compiled:", [row for row in predicted if row.answer and row.reason]),
    ):
        by_reason: dict[str, list[str]] = {}
        for row in rows:
            name = f"{row.row.name} on {row.row.devices} x {row.row.node}"
            by_reason.setdefault(row.reason, []).append(name)
        lines += ["", title] if rows else []
        lines += [f"  - {reason}: {', '.join(names)}" for reason, names in by_reason.items()]
    return lines
