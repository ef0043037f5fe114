"""What would change a step, as ``hespas explain`` and ``hespas run`` report it: rows and text."""

from __future__ import annotations

from collections.abc import Sequence

from hespas.base.units import format_time
from hespas.prediction.explain.changes import Change
from hespas.prediction.result import Prediction
from hespas.report.assumptions import assumptions_of_step, step_assumption_lines, wrapped
from hespas.report.communication import communication_lines, communication_rows
from hespas.report.schema import ExplainRow, RunReport

_SHOWN_CHANGES = 3
_LEAST_GAIN = 0.0005
"""Gains below this print as 0.0 %."""


def explain_rows(changes: Sequence[Change]) -> list[ExplainRow]:
    """Return the rows of ``explain``: what was changed, the step then, and what that gains of it.

    >>> (row,) = explain_rows([Change(change="link bandwidth doubled", step_time_s=0.9, gain=0.1)])
    >>> row.change, row.gain
    ('link bandwidth doubled', 0.1)
    """
    return [
        ExplainRow(change=each.change, step_time_s=each.step_time_s, gain=each.gain)
        for each in changes
    ]


def main_change_lines(report: RunReport) -> list[str]:
    """Return the lines under ``hespas run`` for the changes that gain most; none without gains."""
    gaining = [each for each in report.explain if each.gain >= _LEAST_GAIN][:_SHOWN_CHANGES]
    return _table("What would change it most", gaining) if gaining else []


def explain_text(
    prediction: Prediction, changes: Sequence[Change], *, verbose: bool = False
) -> str:
    """Return the changes as a table, the largest gain first, communication, and what it rests on.

    Communication is that of the step as predicted, by axis. Of the assumptions there are those
    that decide most, or all if it is ``verbose``.
    """
    system = prediction.system
    where = f"{prediction.devices} x {prediction.device_name}"
    where += f" on {system.name}" if system else ""
    step = format_time(prediction.step_time_s)
    groups = assumptions_of_step(prediction, prediction.estimates.total)
    communication = communication_lines(communication_rows(prediction))
    return "\n".join([
        f"{prediction.graph.program.source}: one step on {where} takes {step}",
        "",
        *_table("If this changed, and nothing else", explain_rows(changes)),
        "",
        *_note_lines(changes),
        *([*communication, ""] if communication else []),
        *step_assumption_lines(groups, prediction.warnings, verbose=verbose),
    ])  # fmt: skip


def _table(heading: str, rows: Sequence[ExplainRow]) -> list[str]:
    width = max([24, len(heading) - 2, *(len(each.change) for each in rows)])
    return [
        f"{heading:<{width + 2}}{'step':>12}{'gain':>10}",
        *(
            f"  {each.change:<{width}}{format_time(each.step_time_s):>12}{_percent(each.gain):>10}"
            for each in rows
        ),
    ]


def _note_lines(changes: Sequence[Change]) -> list[str]:
    notes = [each.note for each in changes if each.note and each.gain >= _LEAST_GAIN]
    return (
        ["What was found:", *(wrapped(f"  - {note}", "    ") for note in notes), ""]
        if notes
        else []
    )


def _percent(gain: float) -> str:
    """Return a gain in per cent; one that rounds to nothing is 0.0, whatever its sign."""
    return f"{100 * gain if abs(gain) >= _LEAST_GAIN else 0.0:.1f} %"
