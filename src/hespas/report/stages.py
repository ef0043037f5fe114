"""The stages of a pipeline, as rows and as a table of text."""

from __future__ import annotations

from pathlib import Path

from hespas.base.units import PS_PER_S, format_quantity, format_time
from hespas.errors import ConfigError
from hespas.prediction.answer import PipelinePrediction
from hespas.report.schema import PipelineReport, RunReport, StageRow
from hespas.tasks.graph import devices_text
from hespas.tasks.pipelining.laws import ideal_bubble
from hespas.tasks.pipelining.options import Overlap


def pipeline_rows(prediction: PipelinePrediction) -> PipelineReport:
    """Return how a step is divided into stages, with the times and the memory of each."""
    schedule = prediction.cut.schedule
    hides = prediction.options.pipeline.hides
    return PipelineReport(
        schedule=Path(schedule.name).name,
        micro_batches=schedule.micro_batches,
        micro_batch=prediction.cut.micro_batch,
        chunks=schedule.chunks,
        bubble=prediction.bubble,
        ideal_bubble=_ideal(prediction),
        message_s=prediction.message_ps / PS_PER_S,
        hidden=[what.value for what in Overlap if hides(what)],
        stages=[_row(prediction, stage) for stage in range(schedule.stages)],
    )


def _ideal(prediction: PipelinePrediction) -> float | None:
    schedule = prediction.cut.schedule
    try:
        return ideal_bubble(
            schedule.name, stages=schedule.stages, micro_batches=schedule.micro_batches
        )
    except ConfigError:
        return None


def _row(prediction: PipelinePrediction, stage: int) -> StageRow:
    cut, memory = prediction.cut, prediction.memories[stage]
    parts = cut.parts_of(stage)
    costs = [prediction.costs[part].passes for part in parts]
    spent = prediction.spent(stage)
    update_from, update_to = prediction.stages[stage].update
    capacity = prediction.memory_capacity_bytes
    forward = sum(each.forward.total_ps for each in costs)
    backward = sum(each.backward.total_ps + each.weights.total_ps for each in costs)
    return StageRow(
        stage=stage,
        devices=devices_text(cut.devices_of(stage)),
        layers=sum(part.layers for part in parts),
        parts=[str(part) for part in parts],
        forward_s=forward / PS_PER_S,
        backward_s=backward / PS_PER_S,
        compute_s=spent.compute_ps / PS_PER_S,
        exposed_communication_s=spent.communication_ps / PS_PER_S,
        exposed_host_transfer_s=spent.host_ps / PS_PER_S,
        waiting_s=prediction.waiting_ps(stage) / PS_PER_S,
        sums_s=(update_from - prediction.ends_ps(stage)) / PS_PER_S,
        end_s=(prediction.finish_ps - update_to) / PS_PER_S,
        in_flight=memory.in_flight,
        peak_memory_bytes=memory.peak_bytes,
        weight_bytes=memory.weight_bytes,
        gradient_bytes=memory.gradient_bytes,
        state_bytes=memory.state_bytes,
        kept_bytes=memory.kept_bytes,
        working_bytes=memory.working_bytes,
        host_memory_bytes=memory.host_bytes,
        fits=None if capacity is None else memory.peak_bytes <= capacity,
    )


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
