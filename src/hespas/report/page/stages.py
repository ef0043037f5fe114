"""The stages of a pipeline as charts: what each does over a step, and what its memory is for."""

from __future__ import annotations

from collections.abc import Iterator

from hespas.base.units import format_quantity, format_time
from hespas.prediction.figures.schema import PipelineReport, RunReport, StageRow
from hespas.report.page.document import Cards, Cell, Chart, Notes, Section, Table
from hespas.report.page.specs import (
    PALETTE,
    across,
    coloured,
    large_unit,
    nominal,
    quantitative,
    specification,
    time_unit,
    tooltips,
)

_TIMES = {
    "computes": PALETTE[0],
    "exposed communication": PALETTE[1],
    "exposed host transfers": PALETTE[4],
    "waits for other stages": PALETTE[3],
    "waits for all gradients": PALETTE[2],
    "waits for the last stage": PALETTE[7],
}
_MEMORY = {
    "weights": PALETTE[0],
    "gradients": PALETTE[1],
    "optimiser": PALETTE[2],
    "micro-batches in flight": PALETTE[3],
    "a pass": PALETTE[7],
}


def stage_sections(report: RunReport) -> tuple[Section, ...]:
    """Return the section of the stages, none for a step of one program."""
    if report.pipeline is None:
        return ()
    return (Section(title="Stages", parts=tuple(_parts(report, report.pipeline))),)


def stage_times(row: StageRow) -> dict[str, float]:
    """Return what a device of a stage does over the step, in seconds, in order: it adds up."""
    times = (
        *(row.compute_s, row.exposed_communication_s, row.exposed_host_transfer_s),
        *(row.waiting_s, row.sums_s, row.end_s),
    )
    return dict(zip(_TIMES, times, strict=True))


def stage_memory(row: StageRow) -> dict[str, int]:
    """Return what the memory of a device of a stage is for, in bytes."""
    sizes = (
        *(row.weight_bytes, row.gradient_bytes, row.state_bytes),
        *(row.kept_bytes, row.working_bytes),
    )
    return dict(zip(_MEMORY, sizes, strict=True))


def _parts(report: RunReport, pipeline: PipelineReport) -> Iterator[Cards | Notes | Chart | Table]:
    yield Cards(figures=tuple(_figures(pipeline)))
    yield _times_chart(report, pipeline)
    yield _memory_chart(report, pipeline)
    yield _table(pipeline)
    if pipeline.hidden:
        yield Notes(texts=(f"Hidden where it can be: {', '.join(pipeline.hidden)}",))


def _figures(pipeline: PipelineReport) -> Iterator[tuple[str, str, str]]:
    chunks = f", {pipeline.chunks} chunks each" if pipeline.chunks > 1 else ""
    yield "Schedule", pipeline.schedule, f"{len(pipeline.stages)} stages{chunks}"
    sequences = "sequence" if pipeline.micro_batch == 1 else "sequences"
    yield "Micro-batches", f"{pipeline.micro_batches}", f"of {pipeline.micro_batch} {sequences}"
    ideal = pipeline.ideal_bubble
    note = "" if ideal is None else f"{100 * ideal:.1f} % if all stages were equal"
    yield "Bubble", f"{100 * pipeline.bubble:.1f} %", note
    yield "Message", format_time(pipeline.message_s), "from a stage to the next"


def _times_chart(report: RunReport, pipeline: PipelineReport) -> Chart:
    unit = time_unit(report.step_time_s)
    rows = [
        {
            "stage": f"stage {row.stage}",
            "what": what,
            "time": unit.of(time_s),
            "text": format_time(time_s),
            "order": order,
        }
        for row in pipeline.stages
        for order, (what, time_s) in enumerate(stage_times(row).items())
        if time_s > 0
    ]
    return Chart(
        title=f"What a device of each stage does over the step, in {unit.name}",
        description="; ".join(_told(row) for row in pipeline.stages).capitalize() + ".",
        specification=specification(
            rows,
            height=30 * len(pipeline.stages),
            mark="bar",
            encoding={
                "y": nominal("stage", None, sort=_names(pipeline)),
                "x": across("time", unit, stack="zero"),
                "color": coloured("what", None, _TIMES),
                "order": {"field": "order"},
                "tooltip": tooltips(stage="of", what="what", text="time"),
            },
        ),
    )


def _told(row: StageRow) -> str:
    waits_s = row.waiting_s + row.end_s
    return f"stage {row.stage} computes {format_time(row.compute_s)}, waits {format_time(waits_s)}"


def _names(pipeline: PipelineReport) -> list[str]:
    return [f"stage {row.stage}" for row in pipeline.stages]


def _memory_chart(report: RunReport, pipeline: PipelineReport) -> Chart:
    size = large_unit(max(row.peak_memory_bytes for row in pipeline.stages), "B")
    rows = [
        {
            "stage": f"stage {row.stage}",
            "what": what,
            "bytes": size.of(held),
            "text": format_quantity(held, "B"),
            "order": order,
        }
        for row in pipeline.stages
        for order, (what, held) in enumerate(stage_memory(row).items())
        if held > 0
    ]
    bars: dict[str, object] = {
        "mark": "bar",
        "encoding": {
            "y": nominal("stage", None, sort=_names(pipeline)),
            "x": quantitative("bytes", f"{size.name}", stack="zero"),
            "color": coloured("what", None, _MEMORY),
            "order": {"field": "order"},
            "tooltip": tooltips(stage="of", what="what", text="bytes"),
        },
    }
    layers, line = [bars], ""
    if report.memory_capacity_bytes is not None:
        capacity = {"bytes": size.of(report.memory_capacity_bytes), "text": "capacity"}
        layers.append(
            {
                "data": {"values": [capacity]},
                "mark": {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 2},
                "encoding": {"x": quantitative("bytes", None), "tooltip": tooltips(text="line")},
            }
        )
        line = " The dashed line is the device's capacity."
    return Chart(
        title=f"What the memory of each stage is for, in {size.name}",
        description=f"Of one device, where it is fullest.{line}",
        specification=specification(rows, height=30 * len(pipeline.stages), layer=layers),
    )


def _table(pipeline: PipelineReport) -> Table:
    rows = tuple(
        (
            Cell(text=f"{row.stage}", sort_by=row.stage),
            Cell(text=row.devices),
            Cell(text=f"{row.layers}", sort_by=row.layers),
            Cell(text=format_time(row.forward_s), sort_by=row.forward_s),
            Cell(text=format_time(row.backward_s), sort_by=row.backward_s),
            Cell(text=f"{row.in_flight}", sort_by=row.in_flight),
            Cell(text=format_quantity(row.peak_memory_bytes, "B"), sort_by=row.peak_memory_bytes),
        )
        for row in pipeline.stages
    )
    numbers = ("Layers", "Forward", "Backward", "In flight", "Memory")
    return Table(
        caption="Each stage: passes are of one micro-batch",
        columns=("Stage", "Devices", *numbers),
        rows=rows,
        numbers=frozenset(numbers),
    )
