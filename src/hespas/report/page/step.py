"""The page of one prediction: what a step consists of, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hespas.base.units import format_amount, format_energy, format_quantity, format_time
from hespas.prediction.figures.schema import CommunicationRow, RunReport
from hespas.report.assumptions import group_text
from hespas.report.headline import bound_parts, energy_shares, headline, peak_text, waiting_s
from hespas.report.page.document import Cards, Cell, Chart, Notes, Page, Section, Table
from hespas.report.page.icicle import icicle_chart
from hespas.report.page.kernels import kernel_sections
from hespas.report.page.specs import (
    OF_PARTS,
    PALETTE,
    across,
    coloured,
    large_unit,
    nominal,
    palette,
    quantitative,
    specification,
    time_unit,
    tooltips,
)
from hespas.report.page.stages import stage_sections

_NOT_KNOWN = "not known"


def step_page(report: RunReport) -> Page:
    """Return the page of one prediction."""
    head = headline(report)
    sections = [
        Section(title="The answer", parts=tuple(_answer(report))),
        Section(title="Where the step goes", parts=tuple(_whole(report))),
        *stage_sections(report),
        Section(title="Over time", parts=tuple(_timeline(report))),
        *kernel_sections(report),
        Section(title="Communication", parts=tuple(_communication(report))),
        Section(title="Memory", parts=tuple(_memory(report))),
        Section(title="What would change it", parts=tuple(_changes(report))),
        Section(title="What was assumed", parts=tuple(_assumed(report))),
        Section(title="To repeat it", parts=tuple(_inputs(report))),
    ]
    return Page(title=head.title, subtitle=_subtitle(report), sections=tuple(sections))


def _subtitle(report: RunReport) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return f"Priced by {report.method} with {versions}"


def _answer(report: RunReport) -> Iterator[Cards | Notes]:
    if report.warnings:
        yield Notes(texts=tuple(report.warnings), is_warning=True)
    yield Cards(figures=tuple(_figures(report)))


def _figures(report: RunReport) -> Iterator[tuple[str, str, str]]:
    yield "Step time", format_time(report.step_time_s), f"on {report.devices} devices"
    if report.tokens_per_s is not None:
        each = report.tokens_per_s_per_device or 0.0
        yield (
            "Throughput",
            f"{format_amount(report.tokens_per_s)} tokens/s",
            f"{format_amount(each)} tokens/s a device",
        )
    elif report.samples_per_s is not None:
        yield "Throughput", f"{report.samples_per_s:.4g} {report.samples}/s", ""
    peak = peak_text(report) or "the devices' peak"
    if report.mfu is not None:
        yield "Model FLOPs utilisation (MFU)", f"{100 * report.mfu:.1f} %", f"of {peak}"
    if report.hardware_utilisation is not None:
        executed = f"{format_quantity(report.flops, 'FLOP')} executed a device, of {peak}"
        yield "Hardware utilisation", f"{100 * report.hardware_utilisation:.1f} %", executed
    yield "Memory a device", format_quantity(report.peak_memory_bytes, "B"), _headroom(report)
    waits_s, step_s = waiting_s(report), report.step_time_s
    exposed_s = report.exposed_communication_s - waits_s
    yield "Exposed communication", format_time(exposed_s), _percent(exposed_s, step_s)
    if waits_s:
        yield "Waiting for stages", format_time(waits_s), _percent(waits_s, step_s)
    if report.energy_j is not None:
        parts = report.energy
        spent = "while it computes" if parts is None else energy_shares(parts)
        yield "Energy a device", format_energy(report.energy_j), spent
    if report.energy is not None:
        power = f"of {report.energy.power_limit_w:g} W"
        clock = f"clock {100 * report.energy.clock:.1f} % of boost"
        yield "Power a device", f"{report.energy.device_w:.0f} W", f"{power}, {clock}"


def _headroom(report: RunReport) -> str:
    if report.memory_capacity_bytes is None:
        return ""
    free = report.memory_capacity_bytes - report.peak_memory_bytes
    has = format_quantity(report.memory_capacity_bytes, "B")
    if free < 0:
        return f"{format_quantity(-free, 'B')} more than its {has}"
    return f"of {has}, {format_quantity(free, 'B')} free"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} % of the step" if whole > 0 else ""


def part_rows(report: RunReport) -> list[dict[str, object]]:
    """Return the parts of a step as rows of a chart: those that take time, in seconds."""
    shares = bound_parts(report)
    return [
        {
            "part": name,
            "time_s": share * report.step_time_s,
            "text": f"{format_time(share * report.step_time_s)}, {100 * share:.1f} %",
            "order": order,
        }
        for order, (name, share) in enumerate(shares.items())
        if share > 0
    ]


def _whole(report: RunReport) -> Iterator[Chart | Table]:
    unit = time_unit(report.step_time_s)
    rows = [
        {**row, "time": unit.of(float(str(row["time_s"]))), "step": "step"}
        for row in part_rows(report)
    ]
    hues = {name: OF_PARTS[name] for name in (str(row["part"]) for row in rows)}
    listed = ", ".join(f"{row['part']} {row['text']}" for row in rows)
    yield Chart(
        title=f"What bounds the step, in {unit.name}",
        description=f"Parts of {format_time(report.step_time_s)}: {listed}.",
        specification=specification(
            rows,
            height=70,
            mark={"type": "bar", "height": {"band": 0.8}},
            encoding={
                "x": across("time", unit, stack="zero"),
                "y": nominal("step", None, axis=None),
                "color": coloured("part", None, hues),
                "order": {"field": "order"},
                "tooltip": tooltips(part="part", text="time"),
            },
        ),
    )
    if report.layers:
        yield icicle_chart(report)
        yield _table_of_modules(report)


def _table_of_modules(report: RunReport) -> Table:
    rows = [
        (
            Cell(text=row.path),
            Cell(text=format_time(row.time_s), sort_by=row.time_s),
            Cell(text=f"{100 * row.share:.1f} %", sort_by=row.share),
            Cell(text=format_time(row.exposed_s) if row.exposed_s else "", sort_by=row.exposed_s),
            Cell(text=", ".join(_phase_texts(row.phases)), sort_by=", ".join(row.phases)),
        )
        for row in report.layers
    ]
    return Table(
        caption="By module",
        columns=("Module", "Time", "Share", "Exposed communication", "Phases"),
        rows=tuple(rows),
        numbers=frozenset({"Time", "Share", "Exposed communication"}),
        has_filter=len(rows) > 12,
    )


def _phase_texts(phases: dict[str, float]) -> Iterable[str]:
    return (f"{name} {format_time(time_s)}" for name, time_s in phases.items() if time_s > 0)


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
            "kind": _kind(row.track, row.name),
            "text": format_time(row.end_s - row.start_s),
        }
        for row in report.timeline
    ]
    yield Chart(
        title=f"The slowest device, from the start of the step to its end, in {unit.name}",
        description=(
            f"{len(tracks)} tracks: {', '.join(tracks)}. What follows at once is drawn as one. "
            "Hold Ctrl and turn the wheel to magnify, drag to move. hespas run --timeline writes "
            "all of it for Perfetto."
        ),
        specification=specification(
            rows,
            height=30 * len(tracks),
            params=[
                {
                    "name": "zoom",
                    "bind": "scales",
                    "select": {
                        "type": "interval",
                        "encodings": ["x"],
                        "zoom": "wheel![event.ctrlKey]",
                    },
                }
            ],
            mark={"type": "bar", "clip": True, "height": {"band": 0.8}},
            encoding={
                "x": across("start", unit),
                "x2": {"field": "end"},
                "y": nominal("track", None, sort=tracks),
                "color": coloured("kind", None, palette([str(row["kind"]) for row in rows])),
                "tooltip": tooltips(name="what", text="lasts", track="track"),
            },
        ),
    )


def _kind(track: str, name: str) -> str:
    """Return what a slice is coloured by: its phase, or what its track is."""
    if track == "phases":
        return name
    return "communication" if track.startswith("collectives") else track


def _communication(report: RunReport) -> Iterator[Chart | Table]:
    if not report.communication:
        return
    longest = max(row.time_s for row in report.communication)
    unit = time_unit(longest)
    rows = [
        {
            "name": _communication_name(row),
            "what": what,
            "time": unit.of(time_s),
            "text": format_time(time_s),
        }
        for row in report.communication
        for what, time_s in (("exposed", row.exposed_s), ("hidden", row.hidden_s))
    ]
    yield Chart(
        title=f"Communication by kind, axis and dimension, in {unit.name}",
        description="Hidden behind computation, and exposed, which makes the step longer.",
        specification=specification(
            rows,
            height=30 * len(report.communication),
            mark="bar",
            encoding={
                "y": nominal("name", None),
                "x": across("time", unit, stack="zero"),
                "color": coloured("what", None, {"exposed": PALETTE[1], "hidden": PALETTE[7]}),
                "tooltip": tooltips(name="what", text="time", what="is"),
            },
        ),
    )
    yield Table(
        caption="Communication on the slowest device",
        columns=(
            *("Kind", "Axis", "Dimension", "Devices", "Count", "Bytes", "Time", "Waiting"),
            *("Exposed", "Reached", "Of the links'", "Waits for it"),
        ),
        rows=tuple(_communication_cells(row) for row in report.communication),
        numbers=frozenset(
            {"Devices", "Count", "Bytes", "Time", "Waiting", "Exposed", "Reached", "Of the links'"}
        ),
    )


def _communication_name(row: CommunicationRow) -> str:
    place = f", dimension {row.dimension}" if row.dimension else ""
    return f"{row.kind} {row.axis}{place}"


def _communication_cells(row: CommunicationRow) -> tuple[Cell, ...]:
    return (
        Cell(text=row.kind),
        Cell(text=row.axis),
        Cell(text=row.dimension),
        Cell(text=f"{row.devices}"),
        Cell(text=f"{row.count}"),
        Cell(text=format_quantity(row.bytes, "B"), sort_by=row.bytes),
        Cell(text=format_time(row.time_s), sort_by=row.time_s),
        _waiting(row.waiting_s),
        Cell(text=format_time(row.exposed_s), sort_by=row.exposed_s),
        _rate(row.bytes_per_s),
        _rate(row.limit_bytes_per_s),
        Cell(text=row.waits or ""),
    )


def _waiting(waiting_s: float | None) -> Cell:
    if waiting_s is None:
        return Cell(text=_NOT_KNOWN, sort_by="")
    return Cell(text=format_time(waiting_s), sort_by=waiting_s)


def _rate(rate: float | None) -> Cell:
    if rate is None:
        return Cell(text=_NOT_KNOWN, sort_by="")
    return Cell(text=format_quantity(rate, "B/s"), sort_by=rate)


def _memory(report: RunReport) -> Iterator[Chart | Table | Cards]:
    memory = report.memory
    if memory is None:
        return
    figures = (
        ("Arguments", memory.argument_bytes, "held throughout"),
        ("Outputs", memory.output_bytes, _written_over(memory.alias_bytes)),
        ("Temporaries", memory.temporary_bytes, ""),
        ("Peak", report.peak_memory_bytes, _headroom(report)),
    )
    yield Cards(figures=tuple((name, format_quantity(n, "B"), note) for name, n, note in figures))
    if memory.points:
        yield _memory_chart(report)
    rows = [
        (
            Cell(text=row.place),
            Cell(text=row.role),
            Cell(text=row.type),
            Cell(text=format_quantity(row.bytes, "B"), sort_by=row.bytes),
        )
        for row in memory.held
    ]
    yield Table(
        caption=f"The largest buffers at the peak{_at(memory.peak_place)}",
        columns=("Made by", "Role", "Type", "Size"),
        rows=tuple(rows),
        numbers=frozenset({"Size"}),
    )


def _written_over(size: int) -> str:
    return f"{format_quantity(size, 'B')} written over arguments" if size else ""


def _at(place: str) -> str:
    return f", at {place}" if place else ""


def _memory_chart(report: RunReport) -> Chart:
    points = [] if report.memory is None else report.memory.points
    unit = time_unit(report.step_time_s)
    size = large_unit(report.peak_memory_bytes, "B")
    rows = [
        {
            "time": unit.of(point.time_s),
            "bytes": size.of(point.bytes),
            "text": format_quantity(point.bytes, "B"),
        }
        for point in points
    ]
    rows.append({**rows[-1], "time": unit.of(report.step_time_s)})
    capacity = report.memory_capacity_bytes
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
    if capacity is not None:
        layers.append(
            {
                "data": {"values": [{"bytes": size.of(capacity), "text": "capacity"}]},
                "mark": {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 2},
                "encoding": {"y": quantitative("bytes", None), "tooltip": tooltips(text="line")},
            }
        )
    line = "" if capacity is None else " The dashed line is the device's capacity."
    return Chart(
        title=f"Device memory over the step, in {size.name}",
        description=f"In use while operations run, without gaps between buffers.{line}",
        specification=specification(rows, height=220, layer=layers),
    )


def _changes(report: RunReport) -> Iterator[Chart]:
    if not report.explain:
        return
    rows = [
        {
            "change": row.change,
            "gain": float(f"{100 * row.gain:.4g}"),
            "text": format_time(row.step_time_s),
        }
        for row in report.explain
    ]
    yield Chart(
        title="The step priced again with one thing changed: how much shorter it is, in per cent",
        description="; ".join(f"{row['change']} {row['gain']} %" for row in rows) + ".",
        specification=specification(
            rows,
            height=30 * len(rows),
            mark={"type": "bar", "color": PALETTE[0]},
            encoding={
                "y": nominal("change", None, axis={"labelLimit": 320}),
                "x": quantitative("gain", "shorter by (%)"),
                "tooltip": tooltips(change="change", gain="shorter by (%)", text="step"),
            },
        ),
    )


def _assumed(report: RunReport) -> Iterator[Table]:
    rows = [
        (
            Cell(text=group_text(group)),
            Cell(text=f"{group.count}"),
            Cell(
                text="" if group.step_share is None else f"{100 * group.step_share:.1f} %",
                sort_by="" if group.step_share is None else group.step_share,
            ),
        )
        for group in report.assumption_groups
    ]
    yield Table(
        caption="Taken for granted; the share is of the step that it decides",
        columns=("Assumption", "Alike", "Share"),
        rows=tuple(rows),
        numbers=frozenset({"Alike", "Share"}),
    )


def _inputs(report: RunReport) -> Iterator[Table]:
    rows: Sequence[tuple[str, object]] = (
        ("program", report.program),
        ("node", report.node),
        ("system", report.system or ""),
        ("fidelity", report.fidelity),
        ("method", report.method),
        *report.options.items(),
        *((f"version of {name}", text) for name, text in report.versions.items()),
    )
    distinct = dict(rows)
    yield Table(
        caption="Inputs and versions",
        columns=("Name", "Value"),
        rows=tuple((Cell(text=name), Cell(text=f"{value}")) for name, value in distinct.items()),
    )
