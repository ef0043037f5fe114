"""A prediction of a step as text: `SECTIONS` lists its parts, each from the figures to lines.

A part without lines is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hespas.base.units import format_amount, format_quantity, format_time
from hespas.prediction.explain.changes import Change
from hespas.prediction.figures.assumptions import assumptions_of_step
from hespas.prediction.figures.breakdown import NO_NAME_ROW
from hespas.prediction.figures.communication import communication_rows
from hespas.prediction.figures.schema import CommunicationRow, ExplainRow, RunReport, StageRow
from hespas.prediction.figures.step import explain_rows
from hespas.prediction.result import Prediction
from hespas.report.assumptions import step_assumption_lines, wrapped
from hespas.report.headline import headline_lines, peak_text, share_text

_ROUNDING = 1e-3
_FREE_PIECES = (
    "  more than the limit: in ASTRA-sim's network the pieces of a collective, and several at a "
    "time,\n  each have links to themselves"
)
_MOST_COMMUNICATION = 8


def communication_lines(rows: Sequence[CommunicationRow]) -> list[str]:
    """Return the table of communication, compact; nothing where there is none."""
    if not rows:
        return []
    is_one = len({row.dimension for row in rows if row.dimension}) < 2
    waits = any(row.waiting_s for row in rows)
    named = [(row, _name(row, is_one=is_one)) for row in rows[:_MOST_COMMUNICATION]]
    width = max(30, *(2 + len(name) for _, name in named))
    head = f"{'Communication, by axis':<{width}}"
    times = ("transfer", "waiting", "exposed") if waits else ("time", "exposed")
    columns = "".join(f"  {each:>9}" for each in times)
    lines = [f"{head}{columns}  {'count':>6}  {'bytes':>9}  {'reached':>10}"]
    lines += [_communication_line(row, name, width, waits=waits) for row, name in named]
    rest = rows[_MOST_COMMUNICATION:]
    if rest:
        name = f"{len(rest)} other {'row' if len(rest) == 1 else 'rows'}"
        lines.append(f"  {name:<{width - 2}}{_times(rest, waits=waits)}")
    waiting = next((row for row in rows if row.waits and row.exposed_s > 0), None)
    if waiting is not None:
        lines.append(f"  longest waited for: {waiting.kind} {waiting.axis}, by {waiting.waits}")
    if any(_exceeds(row) for row in rows):
        lines.append(_FREE_PIECES)
    return lines


def _exceeds(row: CommunicationRow) -> bool:
    reached, limit = row.bytes_per_s, row.limit_bytes_per_s
    return reached is not None and limit is not None and reached > limit * (1 + _ROUNDING)


def _name(row: CommunicationRow, *, is_one: bool) -> str:
    """Return kind and axis, with the dimensions of the network where rows use several."""
    where = "" if is_one or not row.dimension else f", dimension {row.dimension}"
    return f"{row.kind} {row.axis}{where}".strip()


def _times(rows: Sequence[CommunicationRow], *, waits: bool) -> str:
    """Return the columns of times: in flight and exposed; waiting apart where any row waits."""
    time_s, exposed_s = sum(row.time_s for row in rows), sum(row.exposed_s for row in rows)
    waiting_s = sum(row.waiting_s or 0.0 for row in rows)
    shown = (time_s - waiting_s, waiting_s, exposed_s) if waits else (time_s, exposed_s)
    return "".join(f"  {format_time(each):>9}" for each in shown)


def _communication_line(row: CommunicationRow, name: str, width: int, *, waits: bool) -> str:
    count = f"{row.count}" if row.count else ""
    size = format_quantity(row.bytes, "B") if row.count else ""
    reached = "" if row.bytes_per_s is None else format_quantity(row.bytes_per_s, "B/s", ".3g")
    text = (
        f"  {name:<{width - 2}}{_times([row], waits=waits)}  {count:>6}  {size:>9}  {reached:>10}"
    )
    if row.bytes_per_s is not None and row.limit_bytes_per_s:
        text += f" of {format_quantity(row.limit_bytes_per_s, 'B/s', '.3g')}"
    return text.rstrip()


_MOST_ROWS = 10


# Rows.


# Text.


def kind_lines(report: RunReport) -> list[str]:
    """Return the table by kind of kernel."""
    rows = [
        (row.kind, row.time_s, share_text(row.time_s, report.compute_s), f"{row.count:.6g}")
        for row in report.kinds
        if row.time_s > 0
    ]
    shown, rest = rows[:_MOST_ROWS], rows[_MOST_ROWS:]
    if rest:
        time_s = sum(row[1] for row in rest)
        share = share_text(time_s, report.compute_s)
        shown.append((_others(len(rest), "kind"), time_s, share, ""))
    return _share_table("The computation, by kind of kernel", "count", shown)


def phase_lines(report: RunReport) -> list[str]:
    """Return the table by phase; what it lacks where the program has no names."""
    if all(row.phase == NO_NAME_ROW for row in report.phases):
        return _NO_NAMES if report.phases and report.compute_s > 0 else []
    rows = [_exposed_row(row.phase, row.time_s, row.exposed_s, report) for row in report.phases]
    return _share_table("By phase", _EXPOSED, rows)


def layer_lines(report: RunReport) -> list[str]:
    """Return the table by module: the longest ones."""
    if all(row.path == NO_NAME_ROW for row in report.layers):
        return []
    rows = [_exposed_row(row.path, row.time_s, row.exposed_s, report) for row in report.layers]
    shown, rest = rows[:_MOST_ROWS], report.layers[_MOST_ROWS:]
    if rest:
        time_s, exposed_s = sum(row.time_s for row in rest), sum(row.exposed_s for row in rest)
        shown.append(_exposed_row(_others(len(rest), "module"), time_s, exposed_s, report))
    return _share_table("By module", _EXPOSED, shown)


_EXPOSED = "exposed"
_NO_NAMES = [
    "By phase and module: the program has no names; lowered.as_text(debug_info=True) keeps them"
]
_Row = tuple[str, float, str, str]


def _exposed_row(name: str, time_s: float, exposed_s: float, report: RunReport) -> _Row:
    share = share_text(time_s, report.compute_s)
    return name, time_s, share, format_time(exposed_s) if exposed_s else ""


def _others(count: int, what: str) -> str:
    return f"{count} other {what}{'s' if count > 1 else ''}"


def _share_table(title: str, last: str, rows: list[_Row]) -> list[str]:
    if not rows:
        return []
    width = max([32, len(title), *(len(name) for name, *_ in rows)])
    lines = [f"{title:<{width + 2}}{'time':>12}{'share':>10}{last:>12}"]
    for name, time_s, share, text in rows:
        lines.append(f"  {name:<{width}}{format_time(time_s):>12}{share:>10}{text:>12}".rstrip())
    return lines


_DAY_S = 86400.0
_SHARES = {
    "saving": "saving checkpoints",
    "lost": "work thrown away",
    "starting": "starting again",
    "loading": "loading checkpoints",
    "waiting": "waiting for nodes",
}


def goodput_lines(report: RunReport) -> list[str]:
    """Return the section of the text, empty where a long run is not asked for."""
    found = report.goodput
    if found is None:
        return []
    lost = [
        f"{100 * share:.1f} % {name}"
        for field, name in _SHARES.items()
        if (share := getattr(found, field)) >= 5e-4
    ]
    rows = [
        ("Goodput", f"{100 * found.productive:.1f} %   {', '.join(lost)}".rstrip()),
        ("A failure every", _long(found.failure_interval_s)),
        (
            "Checkpoint",
            (
                f"{format_quantity(found.checkpoint_bytes, 'B')} in "
                f"{_long(found.checkpoint_s)}, every {_long(found.checkpoint_interval_s)}"
            ),
        ),
    ]
    if found.tokens_per_day is not None:
        rows.append(("A day", f"{format_amount(found.tokens_per_day).strip()} tokens"))
    else:
        rows.append(("A day", f"{format_amount(found.steps_per_day).strip()} steps"))
    if found.days is not None:
        cost = "" if found.usd is None else f", {format_amount(found.usd).strip()} USD"
        rows.append(("The whole run", f"{found.days:.4g} days{cost}"))
    return [
        "A long run, with failures:",
        *(f"  {name:<22}{text}" for name, text in rows),
        *(wrapped(f"  - {text}", "    ") for text in found.assumptions),
    ]


def _long(time_s: float) -> str:
    """Return a time as people say long ones.

    >>> _long(11_137), _long(75), _long(2.5)
    ('3.09 h', '1.25 min', '2.5 s')
    """
    for unit, size in (("days", 2 * _DAY_S), ("h", 3600.0), ("min", 60.0)):
        if time_s >= size:
            per = _DAY_S if unit == "days" else size
            return f"{time_s / per:.3g} {unit}"
    return format_time(time_s)


_SHOWN_CHANGES = 3
_LEAST_GAIN = 0.0005
"""Gains below this print as 0.0 %."""


def main_change_lines(report: RunReport) -> list[str]:
    """Return the lines under ``hespas run`` for the changes that gain most; none without gains."""
    gaining = [each for each in report.explain if each.gain >= _LEAST_GAIN][:_SHOWN_CHANGES]
    return _change_table("What would change it most", gaining) if gaining else []


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
        *_change_table("If this changed, and nothing else", explain_rows(changes)),
        "",
        *_note_lines(changes),
        *([*communication, ""] if communication else []),
        *step_assumption_lines(groups, prediction.warnings, verbose=verbose),
    ])  # fmt: skip


def _change_table(heading: str, rows: Sequence[ExplainRow]) -> list[str]:
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


_HEAD = (
    f"  {'stage':>5}  {'layers':>6}  {'forward':>9}  {'backward':>9}  {'computes':>9}"
    f"  {'exposed':>9}  {'waits':>9}  {'memory':>9}  {'in flight':>9}"
)


def stage_lines(report: RunReport) -> list[str]:
    """Return the table of stages; nothing for a step of one program."""
    found = report.pipeline
    if found is None:
        return []
    ideal = "" if found.ideal_bubble is None else f", {100 * found.ideal_bubble:.1f} % if all equal"
    each = "sequence" if found.micro_batch == 1 else "sequences"
    title = (
        f"Pipeline: {len(found.stages)} stages, {found.schedule}, {found.micro_batches} "
        f"micro-batches of {found.micro_batch} {each}; bubble {100 * found.bubble:.1f} %{ideal}"
    )
    return [title, _HEAD, *map(_line, found.stages)]


def _line(row: StageRow) -> str:
    waits_s = row.waiting_s + row.sums_s + row.end_s
    memory = format_quantity(row.peak_memory_bytes, "B")
    too_large = "  does not fit" if row.fits is False else ""
    return (
        f"  {row.stage:>5}  {row.layers:>6}  {format_time(row.forward_s):>9}  "
        f"{format_time(row.backward_s):>9}  {format_time(row.compute_s):>9}  "
        f"{format_time(row.exposed_communication_s):>9}  {format_time(waits_s):>9}  "
        f"{memory:>9}  {row.in_flight:>9}{too_large}"
    )


def run_text(report: RunReport, *, verbose: bool = False) -> str:
    """Return a report as lines of text, every figure with its unit.

    Of the assumptions it has those that decide most, or all if it is ``verbose``.
    """
    found = [lines for section in SECTIONS if (lines := section(report))]
    groups, warnings = report.assumption_groups, report.warnings
    found.append(step_assumption_lines(groups, warnings, verbose=verbose))
    return "\n\n".join("\n".join(lines) for lines in found)


def _work(report: RunReport) -> list[str]:
    bandwidth = report.peak_bytes_per_s
    rows = [
        (
            "Arithmetic",
            format_quantity(report.flops, "FLOP"),
            report.flops_utilisation,
            peak_text(report),
        ),
        (
            "Memory traffic",
            format_quantity(report.memory_traffic_bytes, "B"),
            report.memory_utilisation,
            "" if bandwidth is None else format_quantity(bandwidth, "B/s"),
        ),
    ]
    lines = [
        f"  {name:<22}{figure:>12}   {_of_peak(share, peak)}".rstrip()
        for name, figure, share, peak in rows
    ]
    return [f"Per device, in the {format_time(report.compute_s)} in which it computes:", *lines]


def _of_peak(share: float | None, peak: str) -> str:
    return "" if share is None else f"{100 * share:.1f} % of {peak or 'peak'}"


SECTIONS: tuple[Callable[[RunReport], list[str]], ...] = (
    headline_lines,
    stage_lines,
    kind_lines,
    phase_lines,
    layer_lines,
    lambda report: communication_lines(report.communication),
    _work,
    main_change_lines,
    goodput_lines,
)
"""The parts of the text before the assumptions, in order."""
