"""The page of one prediction."""

from __future__ import annotations

from collections.abc import Iterator

from hespas.base.units import format_amount, format_energy, format_quantity, format_time
from hespas.prediction.figures.schema import (
    CommunicationRow,
    MemoryDetails,
    RunReport,
    TimelineRow,
)
from hespas.report.page.document import (
    Cards,
    Cell,
    Notes,
    Page,
    Section,
    Table,
    quantity_cell,
    share_cell,
    time_cell,
)
from hespas.report.page.kernels import icicle_chart, kernel_sections, stage_sections
from hespas.report.page.vega import (
    PALETTE,
    Chart,
    across,
    bar_chart,
    capacity_rule,
    coloured,
    drawn_chart,
    large_unit,
    nominal,
    palette,
    quantitative,
    time_unit,
    tooltips,
)
from hespas.report.text import (
    bound_parts,
    energy_shares,
    group_text,
    headline,
    peak_text,
)


def step_page(report: RunReport) -> Page:
    """Return the page of one prediction."""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    sections = [
        Section(title="The answer", parts=tuple(_answer(report))),
        Section(title="Where the step goes", parts=tuple(_step_parts(report))),
        *stage_sections(report),
        Section(title="Over time", parts=tuple(_timeline(report))),
        *kernel_sections(report),
        Section(title="Communication", parts=tuple(_communication(report))),
        Section(title="Memory", parts=tuple(_memory(report))),
        Section(title="What would change it", parts=tuple(_changes(report))),
        Section(title="What was assumed", parts=(_assumption_table(report),)),
        Section(title="To repeat it", parts=(_inputs(report),)),
    ]
    return Page(
        title=headline(report).title,
        subtitle=f"Priced by {report.method} with {versions}",
        sections=tuple(sections),
    )


def _answer(report: RunReport) -> Iterator[Cards | Notes]:
    if report.warnings:
        yield Notes(texts=tuple(report.warnings), is_warning=True)
    yield Cards(figures=tuple(_figures(report)))


def _figures(report: RunReport) -> Iterator[tuple[str, str, str]]:
    yield "Step time", format_time(report.step_time_s), f"on {report.devices} devices"
    error = report.expected_error
    if error is not None and error.mean_absolute is not None:
        share = f"{100 * error.mean_absolute:.1f} %"
        yield "Expected error", share, f"mean of {error.steps} published steps"
    if error is not None and error.likely_from_s is not None and error.likely_to_s is not None:
        span = f"{format_time(error.likely_from_s)} to {format_time(error.likely_to_s)}"
        yield "Likely step time", span, "8 of 10 published steps, relative to predictions"
    if report.tokens_per_s is not None:
        per_device = f"{format_amount(report.tokens_per_s_per_device or 0.0)}tokens/s a device"
        yield "Throughput", f"{format_amount(report.tokens_per_s)}tokens/s", per_device
    elif report.samples_per_s is not None:
        yield "Throughput", f"{format_amount(report.samples_per_s)}{report.samples}/s", ""
    peak = peak_text(report) or "the devices' peak"
    if report.mfu is not None:
        yield "Model FLOPs utilisation (MFU)", f"{100 * report.mfu:.1f} %", f"of {peak}"
    if report.hardware_utilisation is not None:
        executed = f"{format_quantity(report.flops, 'FLOP')} executed a device, of {peak}"
        yield "Hardware utilisation", f"{100 * report.hardware_utilisation:.1f} %", executed
    yield "Memory a device", format_quantity(report.peak_memory_bytes, "B"), _headroom(report)
    waits_s, step_s = report.stage_wait_s, report.step_time_s
    exposed_s = report.exposed_communication_s
    yield "Exposed communication", format_time(exposed_s), _percent(exposed_s, step_s)
    if waits_s:
        yield "Waiting for stages", format_time(waits_s), _percent(waits_s, step_s)
    if report.energy_j is not None:
        parts = report.energy
        energy_note = "while it computes" if parts is None else energy_shares(parts)
        yield "Energy a device", format_energy(report.energy_j), energy_note
    if report.energy is not None:
        power = f"of {report.energy.power_limit_w:g} W"
        clock = f"clock {100 * report.energy.clock:.1f} % of boost"
        yield "Power a device", f"{report.energy.device_w:.0f} W", f"{power}, {clock}"


def _headroom(report: RunReport) -> str:
    if report.memory_capacity_bytes is None:
        return ""
    free = report.memory_capacity_bytes - report.peak_memory_bytes
    capacity = format_quantity(report.memory_capacity_bytes, "B")
    if free < 0:
        return f"{format_quantity(-free, 'B')} more than its {capacity}"
    return f"of {capacity}, {format_quantity(free, 'B')} free"


def _percent(part_s: float, step_s: float) -> str:
    return f"{100 * part_s / step_s:.1f} % of the step" if step_s > 0 else ""


def part_rows(report: RunReport) -> list[dict[str, object]]:
    """Return a step's parts as rows of a chart.

    Times are in the step's `time_unit`; parts that are 0.0 % of the step are left out.
    """
    unit = time_unit(report.step_time_s)
    return [
        {
            "part": name,
            "time_s": share * report.step_time_s,
            "time": unit.of(share * report.step_time_s),
            "text": f"{format_time(share * report.step_time_s)}, {100 * share:.1f} %",
            "order": order,
            "step": "step",
        }
        for order, (name, share) in enumerate(bound_parts(report).items())
        if abs(share) >= _LEAST_PART
    ]


_LEAST_PART = 0.0005


def _step_parts(report: RunReport) -> Iterator[Chart | Table]:
    unit, rows = time_unit(report.step_time_s), part_rows(report)
    parts_text = ", ".join(f"{row['part']} {row['text']}" for row in rows)
    yield bar_chart(
        f"What bounds the step, in {unit.name}",
        f"Parts of {format_time(report.step_time_s)}: {parts_text}.",
        rows,
        x=across("time", unit, stack="zero"),
        y=nominal("step", None, axis=None),
        color=coloured("part", None, palette([str(row["part"]) for row in rows])),
        tooltip={"part": "part", "text": "time"},
        height=70,
        mark={"type": "bar", "height": {"band": 0.8}},
    )
    if report.layers:
        yield icicle_chart(report)
        yield Table(
            caption="By module",
            columns=("Module", "Time", "Share", "Exposed communication", "Phases"),
            rows=[
                (
                    row.path,
                    time_cell(row.time_s),
                    share_cell(row.share),
                    time_cell(row.exposed_s) if row.exposed_s else Cell(text="", sort_by=0.0),
                    Cell(
                        text=", ".join(
                            f"{name} {format_time(time_s)}"
                            for name, time_s in row.phases.items()
                            if time_s
                        ),
                        sort_by=", ".join(row.phases),
                    ),
                )
                for row in report.layers
            ],
            numbers=("Time", "Share", "Exposed communication"),
            has_filter=len(report.layers) > 12,
        )


def _timeline(report: RunReport) -> Iterator[Chart]:
    if not report.timeline:
        return
    unit = time_unit(report.step_time_s)
    tracks = list(dict.fromkeys(row.track for row in report.timeline))
    rows = [
        {
            "track": row.track,
            "name": row.name,
            "start": unit.of(row.start_s),
            "end": unit.of(row.end_s),
            "kind": _slice_kind(row),
            "text": format_time(row.end_s - row.start_s),
        }
        for row in report.timeline
    ]
    zoom = {"type": "interval", "encodings": ["x"], "zoom": "wheel![event.ctrlKey]"}
    mark = {
        "mark": {"type": "bar", "clip": True, "height": {"band": 0.8}},
        "params": [{"name": "zoom", "bind": "scales", "select": zoom}],
        "encoding": {
            "x": across("start", unit),
            "x2": {"field": "end"},
            "y": nominal("track", None, sort=tracks),
            "color": coloured("kind", None, palette([str(row["kind"]) for row in rows])),
            "tooltip": tooltips(name="what", text="lasts", track="track"),
        },
    }
    yield drawn_chart(
        f"The slowest device, from the start of the step to its end, in {unit.name}",
        f"{len(tracks)} tracks: {', '.join(tracks)}. What follows at once is drawn as one. "
        "Hold Ctrl and turn the wheel to magnify, drag to move. hespas run --timeline writes "
        "all of it for Perfetto.",
        rows,
        height=30 * len(tracks),
        **mark,
    )


def _slice_kind(row: TimelineRow) -> str:
    if row.track == "phases":
        return row.name
    return "communication" if row.track.startswith("collectives") else row.track


def _communication(report: RunReport) -> Iterator[Chart | Table]:
    if not report.communication:
        return
    unit = time_unit(max(row.time_s for row in report.communication))
    yield bar_chart(
        f"Communication by kind, axis and dimension, in {unit.name}",
        "Hidden behind computation, and exposed, which makes the step longer.",
        [
            {
                "name": f"{row.kind} {row.axis}"
                + (f", dimension {row.dimension}" if row.dimension else ""),
                "what": kind,
                "time": unit.of(time_s),
                "text": format_time(time_s),
            }
            for row in report.communication
            for kind, time_s in (("exposed", row.exposed_s), ("hidden", row.hidden_s))
        ],
        x=across("time", unit, stack="zero"),
        y=nominal("name", None),
        color=coloured("what", None, {"exposed": PALETTE[1], "hidden": PALETTE[7]}),
        tooltip={"name": "what", "text": "time", "what": "is"},
        height=30 * len(report.communication),
    )
    amounts = (
        "Devices",
        "Count",
        "Bytes",
        "Time",
        "Waiting",
        "Exposed",
        "Reached",
        "Of the links'",
    )
    yield Table(
        caption="Communication on the slowest device",
        columns=("Kind", "Axis", "Dimension", *amounts, "Waits for it"),
        rows=[_communication_cells(row) for row in report.communication],
        numbers=amounts,
    )


def _communication_cells(row: CommunicationRow) -> tuple[Cell | str, ...]:
    unknown = Cell(text="not known", sort_by="")
    return (
        *(row.kind, row.axis, row.dimension, f"{row.devices}", f"{row.count}"),
        quantity_cell(row.bytes, "B"),
        time_cell(row.time_s),
        unknown if row.waiting_s is None else time_cell(row.waiting_s),
        time_cell(row.exposed_s),
        quantity_cell(row.bytes_per_s, "B/s"),
        quantity_cell(row.limit_bytes_per_s, "B/s"),
        row.waits or "",
    )


def _memory(report: RunReport) -> Iterator[Chart | Table | Cards]:
    memory = report.memory
    if memory is None:
        return
    aliased = f"{format_quantity(memory.alias_bytes, 'B')} written over arguments"
    figures = (
        ("Arguments", memory.argument_bytes, "held throughout"),
        ("Outputs", memory.output_bytes, aliased if memory.alias_bytes else ""),
        ("Temporaries", memory.temporary_bytes, ""),
        ("Peak", report.peak_memory_bytes, _headroom(report)),
    )
    yield Cards(figures=tuple((name, format_quantity(n, "B"), note) for name, n, note in figures))
    if memory.points:
        yield _memory_chart(report, memory)
    place = f", at {memory.peak_place}" if memory.peak_place else ""
    yield Table(
        caption=f"The largest buffers at the peak{place}",
        columns=("Made by", "Role", "Type", "Size"),
        rows=[
            (row.place, row.role, row.type, quantity_cell(row.bytes, "B")) for row in memory.held
        ],
        numbers=("Size",),
    )


def _memory_chart(report: RunReport, memory: MemoryDetails) -> Chart:
    unit, size = time_unit(report.step_time_s), large_unit(report.peak_memory_bytes, "B")
    rows = [
        {
            "time": unit.of(point.time_s),
            "bytes": size.of(point.bytes),
            "text": format_quantity(point.bytes, "B"),
        }
        for point in memory.points
    ]
    rows.append({**rows[-1], "time": unit.of(report.step_time_s)})
    layers: list[dict[str, object]] = [
        {
            "mark": {"type": "area", "interpolate": "step-after", "color": PALETTE[2]},
            "encoding": {
                "x": across("time", unit),
                "y": quantitative("bytes", f"in use ({size.name})"),
                "tooltip": tooltips(text="in use"),
            },
        }
    ]
    line, capacity = "", report.memory_capacity_bytes
    if capacity is not None:
        layers.append(capacity_rule("y", size.of(capacity)))
        line = " The dashed line is the device's capacity."
    return drawn_chart(
        f"Device memory over the step, in {size.name}",
        f"In use while operations run, without gaps between buffers.{line}",
        rows,
        height=220,
        layer=layers,
    )


def _changes(report: RunReport) -> Iterator[Chart]:
    rows = [
        {
            "change": row.change,
            "gain": float(f"{100 * row.gain:.4g}"),
            "text": format_time(row.step_time_s),
        }
        for row in report.explain
    ]
    if rows:
        yield bar_chart(
            "The step priced again with one thing changed: how much shorter it is, in per cent",
            "; ".join(f"{row['change']} {row['gain']} %" for row in rows) + ".",
            rows,
            x=quantitative("gain", "shorter by (%)"),
            y=nominal("change", None, axis={"labelLimit": 320}),
            tooltip={"change": "change", "gain": "shorter by (%)", "text": "step"},
            height=30 * len(rows),
            mark={"type": "bar", "color": PALETTE[0]},
        )


def _assumption_table(report: RunReport) -> Table:
    return Table(
        caption="Taken for granted; the share is of the step that it decides",
        columns=("Assumption", "Alike", "Share"),
        rows=[
            (group_text(group), f"{group.count}", share_cell(group.step_share))
            for group in report.assumption_groups
        ],
        numbers=("Alike", "Share"),
    )


def _inputs(report: RunReport) -> Table:
    inputs: dict[str, object] = {
        "program": report.program,
        "node": report.node,
        "system": report.system or "",
        "fidelity": report.fidelity,
        "method": report.method,
        **report.options,
        **{f"version of {name}": text for name, text in report.versions.items()},
    }
    return Table(
        caption="Inputs and versions",
        columns=("Name", "Value"),
        rows=[(name, f"{value}") for name, value in inputs.items()],
    )
