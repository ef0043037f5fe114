"""A prediction's figures as the page draws them.

The page computes nothing: it shows figures from the report that ``hespas run`` prints.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from hespas.base.units import format_quantity, format_time
from hespas.prediction.explain import changes
from hespas.prediction.figures.schema import (
    NO_NAME_ROW,
    CommunicationRow,
    ExplainRow,
    RunReport,
)
from hespas.report.run import LEAST_GAIN
from hespas.report.text import bound_parts, group_text, headline

_MOST_ROWS = 8
_LEAST_REST = 0.0005


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A headline figure; differences are computed from its ``value``."""

    name: str
    text: str
    note: str = ""
    value: float | None = None
    is_less_better: bool = False


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part with its text and share, 0 to 1."""

    name: str
    text: str
    share: float
    note: str = ""
    value: float = 0.0


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """A device's memory, as shares of its capacity or need.

    The larger of both is 1.
    """

    text: str
    note: str
    fits: bool | None
    capacity_share: float | None
    parts: list[Part]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A changed step; ``apply`` has the state's changed keys."""

    text: str
    step: str
    gain: str
    apply: dict[str, object] = {}


class View(msgspec.Struct, frozen=True, kw_only=True):
    """All that the page draws of a prediction."""

    title: str
    step_time_s: float
    fidelity: str
    cards: list[Card]
    bound: list[Part]
    where: list[Part]
    phases: list[Part]
    memory: Memory
    communication: list[Part]
    changes: list[Change]
    rows: list[tuple[str, str]]
    stages: list[list[str]]
    assumptions: list[str]
    warnings: list[str]


def view_of(report: RunReport, *, dimensions: Sequence[int] = ()) -> View:
    """Return a report's figures as the page draws them.

    ``dimensions`` are those of the network that the step sends along.
    """
    head = headline(report)
    step_s = report.step_time_s
    return View(
        title=head.title,
        step_time_s=step_s,
        fidelity=report.fidelity,
        cards=list(_cards(report)),
        bound=[part for part in _bound(report) if part.share > 0],
        where=_largest(list(_where(report)), step_s),
        phases=_largest(list(_phases(report)), step_s),
        memory=_memory(report),
        communication=_communication(report),
        changes=[
            _change(row, _applied(row.change, report, dimensions))
            for row in report.explain
            if row.gain >= LEAST_GAIN
        ],
        rows=list(head.rows),
        stages=_stages(report),
        assumptions=[group_text(group) for group in report.assumption_groups],
        warnings=report.warnings,
    )


def _where(report: RunReport) -> Iterator[tuple[str, float, float | None]]:
    """Yield kinds of kernels, and what else the step's time holds."""
    if not report.kinds:
        return
    for row in report.kinds:
        yield row.kind, row.time_s, row.count
    yield "exposed communication", report.exposed_communication_s, None
    yield "waiting for stages", report.stage_wait_s, None
    yield "exposed host transfers", report.exposed_host_transfer_s, None
    yield "stragglers", report.straggler_s, None
    yield "waiting for launches", report.launch_wait_s, None


def _phases(report: RunReport) -> Iterator[tuple[str, float, float | None]]:
    """Yield phases with their exposed communication, and the rest of the step."""
    rest_s = report.step_time_s
    for row in report.phases:
        phase_s = row.time_s + row.exposed_s
        rest_s -= phase_s
        yield "kernels without a name" if row.phase == NO_NAME_ROW else row.phase, phase_s, None
    if len(report.phases) > 1 and rest_s > _LEAST_REST * report.step_time_s:
        yield "waiting, of no phase", rest_s, None


def _cards(report: RunReport) -> Iterator[Card]:
    yield Card(
        name="Step",
        text=format_time(report.step_time_s),
        note=_expected_note(report),
        value=report.step_time_s,
        is_less_better=True,
    )
    if report.tokens_per_s is not None:
        per_device = report.tokens_per_s_per_device or 0.0
        yield Card(
            name="Tokens/s",
            text=format_quantity(report.tokens_per_s, "", ".4g").strip(),
            note=f"{format_quantity(per_device, '', '.4g').strip()} a device",
            value=report.tokens_per_s,
        )
    elif report.samples_per_s is not None:
        text = format_quantity(report.samples_per_s, "", ".4g").strip()
        yield Card(name=f"{report.samples}/s", text=text, value=report.samples_per_s)
    if report.mfu is not None:
        kind = "" if report.peak_type is None else f"of the peak in {report.peak_type}"
        yield Card(name="MFU", text=f"{100 * report.mfu:.1f} %", note=kind, value=report.mfu)
    capacity = report.memory_capacity_bytes
    yield Card(
        name="Memory",
        text=format_quantity(report.peak_memory_bytes, "B"),
        note="" if capacity is None else f"of {format_quantity(capacity, 'B')} a device",
        value=float(report.peak_memory_bytes),
        is_less_better=True,
    )


def _expected_note(report: RunReport) -> str:
    expected = report.expected_error
    if expected is None or expected.mean_absolute is None:
        return "expected error not known"
    return f"expected error {100 * expected.mean_absolute:.1f} %"


def _bound(report: RunReport) -> Iterator[Part]:
    for name, share in bound_parts(report).items():
        part_s = share * report.step_time_s
        yield Part(name=name, text=format_time(part_s), share=share, value=part_s)


def _largest(rows: Sequence[tuple[str, float, float | None]], step_s: float) -> list[Part]:
    ordered = sorted((row for row in rows if row[1] > 0), key=lambda row: -row[1])
    shown, smaller = ordered[:_MOST_ROWS], ordered[_MOST_ROWS:]
    if smaller:
        shown.append(("others", sum(time_s for _, time_s, _ in smaller), None))
    return [
        Part(
            name=name,
            text=format_time(time_s),
            share=time_s / step_s if step_s else 0.0,
            note="" if count is None else f"{count:.6g} times",
            value=time_s,
        )
        for name, time_s, count in shown
    ]


def _communication(report: RunReport) -> list[Part]:
    """Return the exposed and total communication by axis."""
    by_axis: dict[str, list[CommunicationRow]] = defaultdict(list)
    for row in report.communication:
        by_axis[row.axis or row.kind].append(row)
    parts: list[Part] = []
    for axis, rows in by_axis.items():
        time_s, exposed_s = sum(row.time_s for row in rows), sum(row.exposed_s for row in rows)
        kinds = ", ".join(dict.fromkeys(row.kind.replace("_", "-") for row in rows))
        parts.append(
            Part(
                name=axis,
                text=f"{format_time(exposed_s)} of {format_time(time_s)}",
                share=exposed_s / report.step_time_s if report.step_time_s else 0.0,
                note=kinds,
                value=exposed_s,
            )
        )
    return sorted(parts, key=lambda part: -part.value)


def _memory(report: RunReport) -> Memory:
    need, capacity = report.peak_memory_bytes, report.memory_capacity_bytes
    largest = max(need, capacity or 0) or 1
    if capacity is None:
        note = "the device's memory is not known"
    elif need <= capacity:
        note = f"{format_quantity(capacity - need, 'B')} free"
    else:
        note = f"{format_quantity(need - capacity, 'B')} too much"
    return Memory(
        text=format_quantity(need, "B"),
        note=note,
        fits=None if capacity is None else need <= capacity,
        capacity_share=None if capacity is None else capacity / largest,
        parts=[
            Part(
                name=name, text=format_quantity(size, "B"), share=size / largest, value=float(size)
            )
            for name, size in _holders(report)
            if size > 0
        ],
    )


def _holders(report: RunReport) -> Iterator[tuple[str, int]]:
    """Yield the parts of memory at the peak, by name."""
    need = report.peak_memory_bytes
    if report.pipeline is not None:
        row = max(report.pipeline.stages, key=lambda stage: stage.peak_memory_bytes)
        yield "weights", row.weight_bytes
        yield "gradients", row.gradient_bytes
        yield "optimiser states", row.state_bytes
        yield "micro-batches in flight", row.kept_bytes
        yield "working", row.working_bytes
        return
    details = report.memory
    if report.holders and report.live_memory_bytes:
        by_role: dict[str, int] = defaultdict(int)
        for holder in report.holders:
            by_role[holder.role.replace("_", " ")] += holder.bytes
        yield from by_role.items()
        yield "reserved by the allocator", need - sum(by_role.values())
    elif details is not None:
        # Outputs that are written over arguments take no room of their own.
        serves = report.options.keys() & {"prefill", "decode"}
        arguments = "weights, caches and inputs" if serves else "weights, states and inputs"
        yield arguments, details.argument_bytes
        yield "new outputs", details.output_bytes - details.alias_bytes
        yield "activations and temporaries", details.temporary_bytes
    else:
        yield "all", need


def _change(row: ExplainRow, apply: dict[str, object]) -> Change:
    return Change(
        text=row.change,
        step=format_time(row.step_time_s),
        gain=f"{100 * row.gain:.1f} %",
        apply=apply,
    )


_UNLIMITED = "100kW"


def _applied(change: str, report: RunReport, dimensions: Sequence[int]) -> dict[str, object]:
    """Return the options that make a change, empty if none does."""
    match change:
        # Factors are of the system's own links: a second one would replace the first.
        case changes.LINKS_DOUBLED if dimensions and "link_bandwidth" not in report.options:
            return {"link_bandwidth": ",".join(f"{number}=x2" for number in dimensions)}
        case changes.MEMORY_DOUBLED if report.peak_bytes_per_s is not None:
            return {"memory_bandwidth": f"{2 * report.peak_bytes_per_s / 1e9:.10g}GB/s"}
        case changes.AT_BOOST:
            return {"power_limit_w": _UNLIMITED}
        case _:
            return {}


def _stages(report: RunReport) -> list[list[str]]:
    if report.pipeline is None:
        return []
    head = ["stage", "layers", "forward", "backward", "computes", "waits", "memory"]
    return [
        head,
        *(
            [
                str(row.stage),
                str(row.layers),
                format_time(row.forward_s),
                format_time(row.backward_s),
                format_time(row.compute_s),
                format_time(row.waiting_s + row.sums_s + row.end_s),
                format_quantity(row.peak_memory_bytes, "B"),
            ]
            for row in report.pipeline.stages
        ),
    ]
