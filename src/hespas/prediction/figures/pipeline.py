"""The figures of a pipeline of several programs.

Figures of computation are those of one device of the stage that computes longest: of all its
micro-batches, and of the optimiser's step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from hespas.base.units import PS_PER_S
from hespas.errors import ConfigError
from hespas.models.language import expert_axes
from hespas.models.model import EXPERT, PIPE, REDUCED
from hespas.prediction.answer import PartCost, PipelinePrediction
from hespas.prediction.figures.communication import communication_rows, plain_row
from hespas.prediction.figures.schema import IDLE, CommunicationRow, PipelineReport, StageRow
from hespas.prediction.figures.step import RepeatedProgram
from hespas.tasks.graph import devices_text
from hespas.tasks.pipelining.options import Overlap
from hespas.tasks.pipelining.schedule import ideal_bubble


def pipeline_rows(prediction: PipelinePrediction) -> PipelineReport:
    """Return the times and memory of a step's stages."""
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
        hidden=[overlap.value for overlap in Overlap if hides(overlap)],
        stages=[_stage_row(prediction, stage) for stage in range(schedule.stages)],
    )


def _ideal(prediction: PipelinePrediction) -> float | None:
    schedule = prediction.cut.schedule
    try:
        return ideal_bubble(
            schedule.name, stages=schedule.stages, micro_batches=schedule.micro_batches
        )
    except ConfigError:
        return None


def _stage_row(prediction: PipelinePrediction, stage: int) -> StageRow:
    cut, memory = prediction.cut, prediction.memories[stage]
    parts = cut.parts_of(stage)
    costs = [prediction.costs[part].passes for part in parts]
    spent = prediction.spent(stage)
    update_from, update_to = prediction.stages[stage].update
    capacity = prediction.memory_capacity_bytes
    forward_ps = sum(passes.forward.total_ps for passes in costs)
    backward_ps = sum(passes.backward.total_ps + passes.weights.total_ps for passes in costs)
    return StageRow(
        stage=stage,
        devices=devices_text(cut.devices_of(stage)),
        layers=sum(part.layers for part in parts),
        parts=[str(part) for part in parts],
        forward_s=forward_ps / PS_PER_S,
        backward_s=backward_ps / PS_PER_S,
        compute_s=spent.compute_ps / PS_PER_S,
        exposed_communication_s=spent.communication_ps / PS_PER_S,
        exposed_host_transfer_s=spent.host_ps / PS_PER_S,
        launch_wait_s=spent.launch_ps / PS_PER_S,
        waiting_s=prediction.waiting_ps(stage) / PS_PER_S,
        sums_s=(update_from - prediction.ends_ps(stage)) / PS_PER_S,
        end_s=(prediction.finish_ps - update_to) / PS_PER_S,
        in_flight=memory.in_flight,
        peak_memory_bytes=memory.peak_bytes,
        weight_bytes=memory.held_bytes,
        gradient_bytes=memory.gradient_bytes,
        state_bytes=memory.state_bytes,
        kept_bytes=memory.kept_bytes,
        working_bytes=memory.working_bytes,
        host_memory_bytes=memory.host_bytes,
        fits=None if capacity is None else memory.peak_bytes <= capacity,
    )


def programs_of(prediction: PipelinePrediction) -> list[RepeatedProgram]:
    """Return the programs of the busiest stage's devices."""
    parts = prediction.cut.parts_of(prediction.busiest)
    programs: list[RepeatedProgram] = []
    for part in sorted(set(parts), key=str):
        cost = prediction.costs[part]
        chunks = [chunk for chunk, own in enumerate(parts) if own == part]
        programs += _repeated_passes(prediction, cost, chunks)
        programs += [
            RepeatedProgram(prediction=program.update, times=program.times * len(chunks))
            for program in cost.programs
        ]
    return programs


def _repeated_passes(
    prediction: PipelinePrediction, cost: PartCost, chunks: list[int]
) -> list[RepeatedProgram]:
    """Return the passes of chunks, with their exposed shares."""
    times = prediction.cut.schedule.micro_batches * len(chunks)
    before_s = sum(
        program.passes.exposed_communication_s * program.times for program in cost.programs
    )
    before_ps = before_s * PS_PER_S * times
    passes = cost.passes
    exchanged_ps = times * (passes.forward + passes.backward + passes.weights).exchange_ps
    spent = [prediction.passes_of(prediction.busiest, chunk) for chunk in chunks]
    exposed_ps = sum(chunk.communication_ps for chunk in spent)
    exposed_exchange_ps = sum(chunk.exchange_ps for chunk in spent)
    return [
        RepeatedProgram(
            prediction=program.passes,
            times=times * program.times,
            exposed_share=_share(exposed_ps, before_ps),
            exchange_share=_share(exposed_exchange_ps, exchanged_ps),
            collective_share=_share(exposed_ps - exposed_exchange_ps, before_ps - exchanged_ps),
        )
        for program in cost.programs
    ]


def _share(exposed_ps: float, before_ps: float) -> float:
    return exposed_ps / before_ps if before_ps > 0 else 1.0


def communication_of(
    prediction: PipelinePrediction, programs: Sequence[RepeatedProgram]
) -> list[CommunicationRow]:
    """Return the communication of passes and around them."""
    joined: dict[tuple[str, str, str], CommunicationRow] = {}
    exchange = expert_axes(prediction.cut.source.settings)
    unrelated = {axis for axis in prediction.cut.mesh.names if axis not in exchange}
    rows = [
        # Among groups of experts, devices are a part of the axis, which has no name.
        _times(
            row,
            program.times,
            program.exchange_share
            if row.kind == "all_to_all" and row.axis not in unrelated
            else program.collective_share,
        )
        for program in programs
        for row in communication_rows(program.prediction)
    ]
    for row in (*rows, *_around(prediction)):
        key = (row.kind, row.axis, row.dimension)
        joined[key] = row if key not in joined else _sum(joined[key], row)
    waits_ps = round(prediction.stage_wait_s * PS_PER_S)
    idle = [_row(IDLE, PIPE, 1, (waits_ps, waits_ps))] if waits_ps else []
    return sorted(
        [*joined.values(), *idle], key=lambda row: (-row.exposed_s, -row.time_s, row.kind, row.axis)
    )


def _times(row: CommunicationRow, times: int, share: float) -> CommunicationRow:
    time_s, exposed_s = row.time_s * times, row.exposed_s * times * share
    waiting_s = None if row.waiting_s is None else row.waiting_s * times
    return msgspec.structs.replace(
        row,
        count=row.count * times,
        bytes=row.bytes * times,
        time_s=time_s,
        waiting_s=waiting_s,
        exposed_s=exposed_s,
        hidden_s=max(0.0, time_s - exposed_s),
    )


def _sum(first: CommunicationRow, second: CommunicationRow) -> CommunicationRow:
    time_s = first.time_s + second.time_s
    waits = [row.waiting_s for row in (first, second) if row.waiting_s is not None]
    waiting_s = sum(waits) if waits else None
    sending_s = time_s - sum(waits)
    sent = [
        row.bytes_per_s * (row.time_s - (row.waiting_s or 0.0))
        for row in (first, second)
        if row.bytes_per_s is not None
    ]
    return msgspec.structs.replace(
        first,
        count=first.count + second.count,
        bytes=first.bytes + second.bytes,
        bytes_per_s=sum(sent) / sending_s if len(sent) == 2 and sending_s > 0 else None,
        time_s=time_s,
        waiting_s=waiting_s,
        exposed_s=first.exposed_s + second.exposed_s,
        hidden_s=first.hidden_s + second.hidden_s,
    )


def _around(prediction: PipelinePrediction) -> Iterator[CommunicationRow]:
    stage, cut = prediction.busiest, prediction.cut
    times = prediction.stages[stage]
    costs = [prediction.costs[part] for part in cut.parts_of(stage)]
    axes = [name for name in (*REDUCED, "context", EXPERT) if cut.mesh.size(name) > 1]
    axis, devices = "+".join(axes), cut.mesh.size(*axes)
    gathered_ps = sum(end - start for _, (start, end) in times.gathers)
    if gathered_ps:
        size = sum(cost.footprint.weight_bytes for cost in costs) / devices
        row = _row("weights", axis, devices, (gathered_ps, prediction.times.held_ps[stage]))
        yield msgspec.structs.replace(row, count=len(times.gathers), bytes=size)
    summed_ps = sum(end - start for _, (start, end) in times.sums)
    if summed_ps:
        size = float(sum(cost.footprint.gradient_bytes for cost in costs))
        row = _row("gradients", axis, devices, (summed_ps, prediction.late_ps(stage)))
        yield msgspec.structs.replace(row, count=len(times.sums), bytes=size)
    norm_ps = prediction.norm_ps
    if norm_ps:
        yield _row("norm", "+".join(cut.mesh.names), cut.mesh.device_count, (norm_ps, norm_ps))
    sent = prediction.messages(stage)
    if sent:
        row = _row("messages", PIPE, cut.stages, (sent * prediction.message_ps, 0))
        size = float(sent * prediction.message_bytes)
        yield msgspec.structs.replace(row, count=sent, bytes=size)


def _row(kind: str, axis: str, devices: int, times_ps: tuple[int, int]) -> CommunicationRow:
    time_ps, exposed_ps = times_ps
    return plain_row(kind, axis, devices, time_ps / PS_PER_S, exposed_ps / PS_PER_S)
