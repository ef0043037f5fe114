"""What ``hespas validate --all`` reports, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import mean

from hespas.base.units import format_time
from hespas.evidence.validate.every import PredictedRow

_GROUPINGS: dict[str, Callable[[PredictedRow], str]] = {
    "family": lambda each: each.row.family,
    "part": lambda each: each.row.node,
    "scale": lambda each: each.row.scale,
    "framework_year": lambda each: str(each.row.framework_year or "not known"),
    "held_by": lambda each: "" if each.answer is None else each.answer.held_by,
}
_WIDTHS = (24, 14, 8, 5, 10, 10, 8, 10, 9, 8)


def every_json(predicted: Sequence[PredictedRow]) -> dict[str, object]:
    """Return rows and their errors by group as an object: times in seconds, errors as fractions.

    ``predicted_s``, ``error`` and ``exposed_s`` of a row without a prediction are null, and its
    ``reason`` says why.
    """
    return {
        "rows": [_row_json(each) for each in predicted],
        "summary": {
            name: {group: _errors(rows) for group, rows in _grouped(predicted, of).items()}
            for name, of in _GROUPINGS.items()
        },
        "all": _errors(predicted),
    }


def _row_json(each: PredictedRow) -> dict[str, object]:
    row, answer = each.row, each.answer
    return {
        "family": row.family,
        "part": row.node,
        "devices": row.devices,
        "published_s": row.published_s,
        "predicted_s": None if answer is None else answer.predicted_s,
        "error": each.error,
        "exposed_s": None if answer is None else answer.exposed_s,
        "framework_year": row.framework_year,
        "held_by": None if answer is None else answer.held_by,
        "reason": each.reason,
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
        "cpu_s": each.cpu_s,
        "memory_bytes": each.memory_bytes,
        "source": row.source,
        "note": row.note,
        "assumptions": [] if answer is None else list(answer.assumptions),
    }


def _grouped(
    predicted: Iterable[PredictedRow], of: Callable[[PredictedRow], str]
) -> dict[str, list[PredictedRow]]:
    """Return the rows that have a prediction, by what a function says of them, sorted."""
    groups: dict[str, list[PredictedRow]] = {}
    for each in predicted:
        if each.answer is not None:
            groups.setdefault(of(each), []).append(each)
    return dict(sorted(groups.items()))


def _errors(predicted: Iterable[PredictedRow]) -> dict[str, object]:
    errors = [each.error for each in predicted if each.error is not None]
    return {
        "predicted": len(errors),
        "mean_absolute_error": mean(map(abs, errors)) if errors else None,
        "mean_error": mean(errors) if errors else None,
        "largest_error": max(errors, key=abs) if errors else None,
    }


def every_text(predicted: Sequence[PredictedRow]) -> str:
    """Return tables: the rows of each family, errors by group, and what is not predicted."""
    families = _grouped(predicted, _GROUPINGS["family"])
    head = _cells(
        "step", "part", "devices", "year", "published", "predicted", "error", "exposed",
        "held by", "CPU",
    )  # fmt: skip
    lines = [head]
    for rows in families.values():
        lines += [_row_line(each) for each in rows]
    lines += ["", *_group_lines(predicted)]
    return "\n".join([*lines, *_reason_lines(predicted)])


def _cells(*texts: str) -> str:
    """Return texts in columns: the first two to the left, the others to the right."""
    placed = [
        f"{text:<{width}}" if at < 2 else f"{text:>{width}}"
        for at, (text, width) in enumerate(zip(texts, _WIDTHS, strict=True))
    ]
    return " ".join(placed).rstrip()


def _row_line(each: PredictedRow) -> str:
    row, answer = each.row, each.answer
    assert answer is not None  # noqa: S101 - only rows with a prediction are shown so
    return _cells(
        row.name,
        row.node,
        str(row.devices),
        str(row.framework_year or ""),
        format_time(row.published_s),
        format_time(answer.predicted_s),
        _percent(each.error),
        format_time(answer.exposed_s),
        answer.held_by,
        f"{each.cpu_s / 60:.1f} min",
    )


def _percent(error: float | None) -> str:
    return "" if error is None else f"{100 * error:+.1f} %"


def _group_lines(predicted: Sequence[PredictedRow]) -> list[str]:
    lines: list[str] = []
    for name, of in _GROUPINGS.items():
        groups = _grouped(predicted, of)
        lines += [
            f"{name.replace('_', ' ')} {group}: {_summed(rows)}" for group, rows in groups.items()
        ]
    return [*lines, f"all: {_summed(predicted)}"]


def _summed(predicted: Sequence[PredictedRow]) -> str:
    errors = [each.error for each in predicted if each.error is not None]
    if not errors:
        return "none is predicted"
    largest = max(errors, key=abs)
    return (
        f"{len(errors)} step{'s' if len(errors) > 1 else ''}, mean absolute error "
        f"{100 * mean(map(abs, errors)):.1f} %, "
        f"largest {_percent(largest)}"
    )


def _reason_lines(predicted: Sequence[PredictedRow]) -> list[str]:
    """Return what is not predicted, and what is not compiled, by the reason."""
    lines: list[str] = []
    for title, wanted in (
        ("Not predicted:", [each for each in predicted if each.answer is None]),
        ("Not compiled:", [each for each in predicted if each.answer and each.reason]),
    ):
        by_reason: dict[str, list[str]] = {}
        for each in wanted:
            what = f"{each.row.name} on {each.row.devices} x {each.row.node}"
            by_reason.setdefault(each.reason, []).append(what)
        lines += ["", title] if wanted else []
        lines += [f"  - {reason}: {', '.join(what)}" for reason, what in by_reason.items()]
    return lines
