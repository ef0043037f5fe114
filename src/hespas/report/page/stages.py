"""The stages of a pipeline as charts: what each does over a step, and what its memory is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from hespas.base.units import format_quantity, format_time
from hespas.prediction.figures.schema import PipelineReport, RunReport, StageRow
from hespas.report.page.document import (
    Cards,
    Cell,
    Chart,
    Notes,
    Section,
    Table,
    quantity_cell,
    time_cell,
)
from hespas.report.page.specs import (
    PALETTE,
    Unit,
    across,
    capacity_rule,
    coloured,
    large_unit,
    layered_chart,
    nominal,
    quantitative,
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
    unit = time_unit(report.step_time_s)
    told = [
        f"stage {row.stage} computes {format_time(row.compute_s)}, "
        f"waits {format_time(row.waiting_s + row.end_s)}"
        for row in pipeline.stages
    ]
    times = _bars(pipeline, stage_times, unit, format_time)
    yield layered_chart(
        f"What a device of each stage does over the step, in {unit.name}",
        "; ".join(told).capitalize() + ".",
        times,
        height=30 * len(pipeline.stages),
        layer=[_layer(pipeline, across("amount", unit, stack="zero"), _TIMES, "time")],
    )
    size = large_unit(max(row.peak_memory_bytes for row in pipeline.stages), "B")
    along = quantitative("amount", size.name, stack="zero")
    layers, line = [_layer(pipeline, along, _MEMORY, "bytes")], ""
    if report.memory_capacity_bytes is not None:
        layers.append(capacity_rule("x", size.of(report.memory_capacity_bytes)))
        line = " The dashed line is the device's capacity."
    yield layered_chart(
        f"What the memory of each stage is for, in {size.name}",
        f"Of one device, where it is fullest.{line}",
        _bars(pipeline, stage_memory, size, lambda held: format_quantity(held, "B")),
        height=30 * len(pipeline.stages),
        layer=layers,
    )
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


def _bars(
    pipeline: PipelineReport,
    amounts: Callable[[StageRow], Mapping[str, float]],
    unit: Unit,
    text: Callable[[float], str],
) -> list[dict[str, object]]:
    return [
        {
            "stage": f"stage {row.stage}",
            "what": what,
            "amount": unit.of(amount),
            "text": text(amount),
            "order": order,
        }
        for row in pipeline.stages
        for order, (what, amount) in enumerate(amounts(row).items())
        if amount > 0
    ]


def _layer(
    pipeline: PipelineReport, along: Mapping[str, object], hues: Mapping[str, str], title: str
) -> dict[str, object]:
    names = [f"stage {row.stage}" for row in pipeline.stages]
    return {
        "mark": "bar",
        "encoding": {
            "y": nominal("stage", None, sort=names),
            "x": along,
            "color": coloured("what", None, hues),
            "order": {"field": "order"},
            "tooltip": tooltips(stage="of", what="what", text=title),
        },
    }


def _table(pipeline: PipelineReport) -> Table:
    numbers = ("Layers", "Forward", "Backward", "In flight", "Memory")
    return Table(
        caption="Each stage: passes are of one micro-batch",
        columns=("Stage", "Devices", *numbers),
        rows=[
            (
                Cell(text=f"{row.stage}", sort_by=row.stage),
                row.devices,
                Cell(text=f"{row.layers}", sort_by=row.layers),
                time_cell(row.forward_s),
                time_cell(row.backward_s),
                Cell(text=f"{row.in_flight}", sort_by=row.in_flight),
                quantity_cell(row.peak_memory_bytes, "B"),
            )
            for row in pipeline.stages
        ],
        numbers=numbers,
    )
