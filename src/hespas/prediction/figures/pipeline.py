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
from hespas.models.part import EXPERT, PIPE, REDUCED
from hespas.prediction.answer import PartCost, PipelinePrediction
from hespas.prediction.figures.communication import communication_rows, plain_row
from hespas.prediction.figures.schema import IDLE, CommunicationRow, PipelineReport, StageRow
from hespas.prediction.figures.step import Ran
from hespas.tasks.graph import devices_text
from hespas.tasks.pipelining.options import Overlap
from hespas.tasks.pipelining.schedule import ideal_bubble


def pipeline_rows(prediction: PipelinePrediction) -> PipelineReport:
    """Return a step's stages, with the times and memory of each."""
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


def ran_of(prediction: PipelinePrediction) -> list[Ran]:
    """Return the programs that a device of the busiest stage runs."""
    parts = prediction.cut.parts_of(prediction.busiest)
    ran: list[Ran] = []
    for part in sorted(set(parts), key=str):
        cost, chunks = prediction.costs[part], [at for at, each in enumerate(parts) if each == part]
        ran += [_ran(prediction, cost, chunks)]
        ran += [Ran(prediction=cost.update_prediction, times=len(chunks))]
    return ran


def _ran(prediction: PipelinePrediction, cost: PartCost, chunks: list[int]) -> Ran:
    """Return the passes of a part's chunks, with their exposed time."""
    times = prediction.cut.schedule.micro_batches * len(chunks)
    before_ps = cost.prediction.exposed_communication_s * PS_PER_S * times
    passes = cost.passes
    exchanged_ps = times * (passes.forward + passes.backward + passes.weights).exchange_ps
    spent = [prediction.passes_of(prediction.busiest, chunk) for chunk in chunks]
    left_ps = sum(each.communication_ps for each in spent)
    exchanges_left_ps = sum(each.exchange_ps for each in spent)
    return Ran(
        prediction=cost.prediction,
        times=times,
        both=_share(left_ps, before_ps),
        exchanges=_share(exchanges_left_ps, exchanged_ps),
        others=_share(left_ps - exchanges_left_ps, before_ps - exchanged_ps),
    )


def _share(left_ps: float, before_ps: float) -> float:
    return left_ps / before_ps if before_ps > 0 else 1.0


def communication_of(prediction: PipelinePrediction, ran: Sequence[Ran]) -> list[CommunicationRow]:
    """Return the communication inside of passes and around them, that exposed longest first."""
    found: dict[tuple[str, str, str], CommunicationRow] = {}
    exchange = expert_axes(prediction.cut.source.settings)
    others = {axis for axis in prediction.cut.mesh.names if axis not in exchange}
    rows = [
        # Among groups of experts, devices are a part of the axis, which has no name.
        _times(
            row,
            each.times,
            each.exchanges if row.kind == "all_to_all" and row.axis not in others else each.others,
        )
        for each in ran
        for row in communication_rows(each.prediction)
    ]
    for row in (*rows, *_around(prediction)):
        key = (row.kind, row.axis, row.dimension)
        found[key] = row if key not in found else _sum(found[key], row)
    found.pop((IDLE, "", ""), None)
    exposed_s = sum(row.exposed_s for row in found.values())
    idle_ps = round(max(0.0, prediction.exposed_communication_s - exposed_s) * PS_PER_S)
    idle = [_row(IDLE, PIPE, 1, (idle_ps, idle_ps))] if idle_ps else []
    listed = [*found.values(), *idle]
    return sorted(listed, key=lambda row: (-row.exposed_s, -row.time_s, row.kind, row.axis))


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


def _sum(one: CommunicationRow, other: CommunicationRow) -> CommunicationRow:
    time_s = one.time_s + other.time_s
    waits = [each.waiting_s for each in (one, other) if each.waiting_s is not None]
    waiting_s = sum(waits) if waits else None
    sending_s = time_s - sum(waits)
    sent = [
        each.bytes_per_s * (each.time_s - (each.waiting_s or 0.0))
        for each in (one, other)
        if each.bytes_per_s is not None
    ]
    return msgspec.structs.replace(
        one,
        count=one.count + other.count,
        bytes=one.bytes + other.bytes,
        bytes_per_s=sum(sent) / sending_s if len(sent) == 2 and sending_s > 0 else None,
        time_s=time_s,
        waiting_s=waiting_s,
        exposed_s=one.exposed_s + other.exposed_s,
        hidden_s=one.hidden_s + other.hidden_s,
    )


def _around(prediction: PipelinePrediction) -> Iterator[CommunicationRow]:
    stage, cut = prediction.busiest, prediction.cut
    times = prediction.stages[stage]
    costs = [prediction.costs[part] for part in cut.parts_of(stage)]
    last_ps = prediction.ends_ps(stage)
    axes = [axis for axis in (*REDUCED, "context", EXPERT) if cut.mesh.size(axis) > 1]
    named, devices = "+".join(axes), cut.mesh.size(*axes)
    gathered_ps = sum(end - start for _, (start, end) in times.gathers)
    if gathered_ps:
        size = sum(each.footprint.weight_bytes for each in costs) / devices
        row = _row("weights", named, devices, (gathered_ps, 0))
        yield msgspec.structs.replace(row, count=len(times.gathers), bytes=size)
    summed_ps = sum(end - start for _, (start, end) in times.sums)
    if summed_ps:
        late_ps = sum(max(0, end - max(start, last_ps)) for _, (start, end) in times.sums)
        size = float(sum(each.footprint.gradient_bytes for each in costs))
        row = _row("gradients", named, devices, (summed_ps, late_ps))
        yield msgspec.structs.replace(row, count=len(times.sums), bytes=size)
    sent = prediction.messages(stage)
    if sent:
        row = _row("messages", PIPE, cut.stages, (sent * prediction.message_ps, 0))
        size = float(sent * prediction.message_bytes)
        yield msgspec.structs.replace(row, count=sent, bytes=size)


def _row(kind: str, axis: str, devices: int, lasts_ps: tuple[int, int]) -> CommunicationRow:
    time_ps, exposed_ps = lasts_ps
    return plain_row(kind, axis, devices, time_ps / PS_PER_S, exposed_ps / PS_PER_S)
