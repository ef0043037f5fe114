"""Report a step's prediction as text, in `SECTIONS`.

Each part turns the figures into lines. A part without lines is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from hespas.base.units import format_amount, format_quantity, format_time
from hespas.prediction.figures.schema import (
    NO_NAME_ROW,
    CommunicationRow,
    ExplainRow,
    KindRow,
    LayerRow,
    PhaseRow,
    PipelineReport,
    PlayedReport,
    Quantiles,
    RunReport,
    StageRow,
)
from hespas.report.text import (
    headline_lines,
    others_text,
    peak_text,
    share_text,
    step_assumption_lines,
    table_lines,
    wrapped,
)

_MOST_ROWS = 10
_MOST_COMMUNICATION = 8
_MOST_CHANGES = 3
_MOST_HOLDERS = 6
LEAST_GAIN = 0.0005
"""Gains below this print as 0.0 %."""
_ROUNDING = 1e-3
_FREE_PIECES = (
    "  more than the limit: in ASTRA-sim's network the pieces of a collective, and several at a "
    "time,\n  each have links to themselves"
)
_NO_NAMES = [
    "By phase and module: the program has no names; lowered.as_text(debug_info=True) keeps them"
]
_DAY_S = 86400.0
_LOSSES = {
    "saving": "saving checkpoints",
    "lost": "work thrown away",
    "starting": "starting again",
    "loading": "loading checkpoints",
    "waiting": "waiting for nodes",
}


def run_text(report: RunReport, *, verbose: bool = False) -> str:
    """Return a report as text; ``verbose`` shows all assumptions."""
    sections = [lines for section in SECTIONS if (lines := section(report))]
    groups, warnings = report.assumption_groups, report.warnings
    sections.append(step_assumption_lines(groups, warnings, verbose=verbose))
    return "\n\n".join("\n".join(lines) for lines in sections)


def main_change_lines(report: RunReport) -> list[str]:
    """Return the lines of the changes that gain most."""
    gaining = [row for row in report.explain if row.gain >= LEAST_GAIN][:_MOST_CHANGES]
    return change_lines("What would change it most", gaining) if gaining else []


def change_lines(heading: str, rows: Sequence[ExplainRow]) -> list[str]:
    """Return the table of changes, with steps and gains."""
    gains = [row.gain if abs(row.gain) >= LEAST_GAIN else 0.0 for row in rows]
    cells = [
        (row.change, format_time(row.step_time_s), f"{100 * gain:.1f} %")
        for row, gain in zip(rows, gains, strict=True)
    ]
    return table_lines(heading, {"step": 12, "gain": 10}, cells)


def kind_lines(report: RunReport) -> list[str]:
    """Return the table by kind of kernel."""
    kinds = [row for row in report.kinds if row.time_s > 0]
    rows = [_share_cells(row.kind, [row], f"{row.count:.6g}") for row in kinds[:_MOST_ROWS]]
    other_rows = kinds[_MOST_ROWS:]
    if other_rows:
        rows.append(_share_cells(others_text(len(other_rows), "kind"), other_rows, ""))
    return _share_lines("The computation, by kind of kernel", "count", rows)


def phase_lines(report: RunReport) -> list[str]:
    """Return the table by phase, or a remark without names."""
    if all(row.phase == NO_NAME_ROW for row in report.phases):
        return _NO_NAMES if report.phases and report.compute_s > 0 else []
    rows = [_exposed_cells(row.phase, [row]) for row in report.phases]
    return _share_lines("By phase", "exposed", rows)


def layer_lines(report: RunReport) -> list[str]:
    """Return the table of the longest modules."""
    if all(row.path == NO_NAME_ROW for row in report.layers):
        return []
    rows = [_exposed_cells(row.path, [row]) for row in report.layers[:_MOST_ROWS]]
    other_rows = report.layers[_MOST_ROWS:]
    if other_rows:
        rows.append(_exposed_cells(others_text(len(other_rows), "module"), other_rows))
    return _share_lines("By module", "exposed", rows)


_Cells = tuple[str, str, str, str]


def _share_cells(name: str, rows: Sequence[KindRow | PhaseRow | LayerRow], last: str) -> _Cells:
    share = sum(row.share for row in rows)
    return name, format_time(sum(row.time_s for row in rows)), share_text(share, 1.0), last


def _exposed_cells(name: str, rows: Sequence[PhaseRow | LayerRow]) -> _Cells:
    exposed_s = sum(row.exposed_s for row in rows)
    return _share_cells(name, rows, format_time(exposed_s) if exposed_s else "")


def _share_lines(title: str, last: str, rows: Sequence[_Cells]) -> list[str]:
    if not rows:
        return []
    columns = {"time": 12, "share": 10, last: 12}
    return table_lines(title, columns, rows, least=max(32, len(title)))


def communication_lines(rows: Sequence[CommunicationRow]) -> list[str]:
    """Return the compact table of communication; empty without any."""
    if not rows:
        return []
    is_one = len({row.dimension for row in rows if row.dimension}) < 2
    waits = any(row.waiting_s for row in rows)
    shown_rows, other_rows = rows[:_MOST_COMMUNICATION], rows[_MOST_COMMUNICATION:]
    cells: list[tuple[str, ...]] = []
    for row in shown_rows:
        dimension = "" if is_one or not row.dimension else f", dimension {row.dimension}"
        count, size = f"{row.count}", format_quantity(row.bytes, "B")
        rate = "" if row.bytes_per_s is None else format_quantity(row.bytes_per_s, "B/s", ".3g")
        sent = (count, size) if row.count else ("", "")
        name = f"{row.kind} {row.axis}{dimension}".strip()
        cells.append((name, *_times([row], waits=waits), *sent, rate))
    if other_rows:
        name = others_text(len(other_rows), "row")
        cells.append((name, *_times(other_rows, waits=waits), "", "", ""))
    times = ("transfer", "waiting", "exposed") if waits else ("time", "exposed")
    columns = {**dict.fromkeys(times, 11), "count": 8, "bytes": 11, "reached": 12}
    lines = table_lines("Communication, by axis", columns, cells, least=28)
    for number, row in enumerate(shown_rows, start=1):
        if row.bytes_per_s is not None and row.limit_bytes_per_s:
            lines[number] += f" of {format_quantity(row.limit_bytes_per_s, 'B/s', '.3g')}"
    waiting = next((row for row in rows if row.waits and row.exposed_s > 0), None)
    if waiting is not None:
        lines.append(f"  longest waited for: {waiting.kind} {waiting.axis}, by {waiting.waits}")
    if any(_exceeds(row) for row in rows):
        lines.append(_FREE_PIECES)
    return lines


def _exceeds(row: CommunicationRow) -> bool:
    reached, limit = row.bytes_per_s, row.limit_bytes_per_s
    return reached is not None and limit is not None and reached > limit * (1 + _ROUNDING)


def _times(rows: Sequence[CommunicationRow], *, waits: bool) -> list[str]:
    time_s, exposed_s = sum(row.time_s for row in rows), sum(row.exposed_s for row in rows)
    waiting_s = sum(row.waiting_s or 0.0 for row in rows)
    times_s = (time_s - waiting_s, waiting_s, exposed_s) if waits else (time_s, exposed_s)
    return [format_time(part_s) for part_s in times_s]


def holder_lines(report: RunReport) -> list[str]:
    """Return tables of memory at the peak."""
    live_bytes = report.live_memory_bytes
    if not live_bytes or not report.holders:
        return []
    by_role, by_module = Counter[str](), Counter[str]()
    for row in report.holders:
        by_role[row.role] += row.bytes
        by_module[row.path or NO_NAME_ROW] += row.bytes
    lines: list[str] = []
    for title, sizes in (("by role", by_role), ("by module", by_module)):
        ranked_sizes = sizes.most_common()
        shown_sizes = ranked_sizes[:_MOST_HOLDERS]
        other_bytes = sum(size for _, size in ranked_sizes[_MOST_HOLDERS:])
        if other_bytes:
            shown_sizes.append((others_text(len(ranked_sizes) - _MOST_HOLDERS), other_bytes))
        cells = [
            (name, format_quantity(size, "B"), share_text(size, live_bytes))
            for name, size in shown_sizes
        ]
        heading = f"Live memory at the peak, {title}"
        table = table_lines(heading, {"bytes": 12, "share": 10}, cells, least=len(heading))
        lines += ["", *table] if lines else table
    return lines


def goodput_lines(report: RunReport) -> list[str]:
    """Return the section on a long run, if requested."""
    run = report.goodput
    if run is None:
        return []
    lost = [
        f"{100 * share:.1f} % {name}"
        for field, name in _LOSSES.items()
        if (share := getattr(run, field)) >= 5e-4
    ]
    saved = f"{format_quantity(run.checkpoint_bytes, 'B')} in {_long_time_text(run.checkpoint_s)}"
    tokens = run.tokens_per_day
    amount, unit = (run.steps_per_day, "steps") if tokens is None else (tokens, "tokens")
    rows = [
        ("Goodput", f"{100 * run.productive:.1f} %   {', '.join(lost)}".rstrip()),
        ("A failure every", _long_time_text(run.failure_interval_s)),
        ("Checkpoint", f"{saved}, every {_long_time_text(run.checkpoint_interval_s)}"),
        ("A day", f"{format_amount(amount).strip()} {unit}"),
    ]
    if run.days is not None:
        cost = "" if run.usd is None else f", {format_amount(run.usd).strip()} USD"
        rows.append(("The whole run", f"{run.days:.4g} days{cost}"))
    if run.played is not None:
        rows += _played_rows(run.played)
    return [
        "A long run, with failures:",
        *(f"  {name:<22}{text}" for name, text in rows),
        *(wrapped(f"  - {text}", "    ") for text in run.assumptions),
    ]


def variation_lines(report: RunReport) -> list[str]:
    """Return the section on unequal devices, if any differ."""
    variation = report.variation
    if variation is None:
        return []
    expected_s = variation.expected_step_s

    def change(time_s: float, base_s: float) -> str:
        return f"{100 * (time_s / base_s - 1.0):+.1f} %" if base_s > 0 else ""

    axes = sorted(variation.waiting_by_axis_s.items(), key=lambda axis: -axis[1])
    waits = ", ".join(f"{name} {format_time(time_s)}" for name, time_s in axes)
    spread = f"90 % of clusters {format_time(variation.p5_s)} to {format_time(variation.p95_s)}"
    without_s = variation.without_slowest_s
    rows = [
        (
            "Expected step",
            f"{format_time(expected_s)}   {change(expected_s, variation.equal_step_s)}",
        ),
        ("Median", f"{format_time(variation.p50_s)}   {spread}"),
        ("Waiting", f"{format_time(variation.waiting_s)}   {waits}".rstrip()),
        ("Without slowest 1 %", f"{format_time(without_s)}   {change(without_s, expected_s)}"),
    ]
    if variation.tokens_per_s is not None:
        rows.append(("Tokens/s", format_amount(variation.tokens_per_s).strip()))
    return [
        "On devices that are not equal:",
        *(f"  {name:<22}{text}" for name, text in rows),
        wrapped(f"  - {variation.source}", "    "),
    ]


def _played_rows(played: PlayedReport) -> list[tuple[str, str]]:
    """Return rows with medians and the ranges of 90 %."""

    def spread(figure: Quantiles, shown: Callable[[float], str]) -> str:
        return f"{shown(figure.p50)}   {shown(figure.p5)} to {shown(figure.p95)}"

    def amount(value: float) -> str:
        return format_amount(value).strip()

    often = sorted(played.causes.items(), key=lambda cause: -cause[1])[:_MOST_CAUSES]
    rows = [
        (f"Played {played.days:g} days", f"{played.seeds:,} times: the median, and 90 % of runs"),
        ("  Goodput", spread(played.goodput, lambda share: f"{100 * share:.1f} %")),
        ("  Interruptions", spread(played.interruptions, lambda count: f"{count:.0f}")),
        ("  Most often", ", ".join(f"{name} {count:.3g}" for name, count in often)),
    ]
    if played.unequal_share is not None:
        rows.append(("  Worst nodes", f"{100 * played.unequal_share:.0f} % of nodes' failures"))
    if played.tokens_per_day is not None:
        rows.append(("  A day", f"{spread(played.tokens_per_day, amount)} tokens"))
    if played.energy_j is not None:
        rows.append(
            ("  Energy", spread(played.energy_j, lambda energy_j: f"{energy_j / _MWH_J:,.1f} MWh"))
        )
    if played.usd is not None:
        rows.append(("  Cost", f"{amount(played.usd)} USD"))
    rows.append(("  Best checkpoints", f"every {_long_time_text(played.best_interval_s)}"))
    if played.best_spare_nodes is not None and played.best_spare_goodput is not None:
        best_text = f"goodput {100 * played.best_spare_goodput:.1f} %"
        rows.append(("  Best spares", f"{played.best_spare_nodes} nodes, {best_text}"))
    return rows


_MOST_CAUSES = 4
_MWH_J = 3.6e9


def _long_time_text(time_s: float) -> str:
    """Return a long time in a common unit.

    >>> _long_time_text(11_137), _long_time_text(75), _long_time_text(2.5)
    ('3.09 h', '1.25 min', '2.5 s')
    """
    if time_s >= 2 * _DAY_S:
        return f"{time_s / _DAY_S:.3g} days"
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if time_s >= size:
            return f"{time_s / size:.3g} {unit}"
    return format_time(time_s)


def stage_lines(report: RunReport) -> list[str]:
    """Return the table of a pipeline's stages, if any."""
    pipeline = report.pipeline
    if pipeline is None:
        return []
    ideal = pipeline.ideal_bubble
    equal = "" if ideal is None else f", {100 * ideal:.1f} % if all equal"
    head = ("stage", "layers", "forward", "backward", "computes", "exposed", "waits", "memory")
    work = f"{pipeline.micro_batches} micro-batches{micro_batch_text(pipeline)}"
    stages = f"{len(pipeline.stages)} stages, {pipeline.schedule}"
    title = f"Pipeline: {stages}, {work}; bubble {100 * pipeline.bubble:.1f} %{equal}"
    if len(pipeline.stages) == 1:
        title = f"One stage: {work}"
    return [
        title,
        _stage_line((*head, "in flight")),
        *map(_stage, pipeline.stages),
    ]


def micro_batch_text(pipeline: PipelineReport) -> str:
    """Return the size of a micro-batch, empty where it is not known."""
    if pipeline.micro_batch is None:
        return ""
    return f" of {pipeline.micro_batch} {'sequence' if pipeline.micro_batch == 1 else 'sequences'}"


def _stage(row: StageRow) -> str:
    times_s = (
        *(row.forward_s, row.backward_s, row.compute_s, row.exposed_communication_s),
        row.waiting_s + row.sums_s + row.end_s,
    )
    memory, times = format_quantity(row.peak_memory_bytes, "B"), map(format_time, times_s)
    line = _stage_line((f"{row.stage}", f"{row.layers}", *times, memory, f"{row.in_flight}"))
    return line + ("  does not fit" if row.fits is False else "")


def _stage_line(cells: Sequence[str]) -> str:
    first, second, *other_cells = cells
    return "".join([f"  {first:>5}  {second:>6}", *(f"  {cell:>9}" for cell in other_cells)])


def _work_lines(report: RunReport) -> list[str]:
    bandwidth = report.peak_bytes_per_s
    peak_bandwidth = "" if bandwidth is None else format_quantity(bandwidth, "B/s")
    rows = [
        ("Arithmetic", report.flops, "FLOP", report.flops_utilisation, peak_text(report)),
        (
            *("Memory traffic", report.memory_traffic_bytes, "B"),
            *(report.memory_utilisation, peak_bandwidth),
        ),
    ]
    lines = [f"Per device, in the {format_time(report.compute_s)} in which it computes:"]
    for name, amount, unit, share, peak in rows:
        of_peak = "" if share is None else f"{100 * share:.1f} % of {peak or 'peak'}"
        lines.append(f"  {name:<22}{format_quantity(amount, unit):>12}   {of_peak}".rstrip())
    return lines


SECTIONS: tuple[Callable[[RunReport], list[str]], ...] = (
    headline_lines,
    stage_lines,
    kind_lines,
    phase_lines,
    layer_lines,
    lambda report: communication_lines(report.communication),
    holder_lines,
    _work_lines,
    main_change_lines,
    variation_lines,
    goodput_lines,
)
"""The parts of the text before the assumptions, in order."""
