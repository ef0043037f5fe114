"""The figures of a pipeline of several programs.

Figures of computation are those of one device of the stage that computes longest: of all its
micro-batches, and of the optimiser's step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hespas.base.units import PS_PER_S
from hespas.errors import ConfigError
from hespas.models.part import EXPERT, PIPE, REDUCED
from hespas.prediction.answer import PartCost, PipelinePrediction
from hespas.prediction.figures.breakdown import (
    breakdown,
    joined_breakdown,
    kind_rows,
    layer_rows,
    phase_rows,
)
from hespas.prediction.figures.communication import IDLE, communication_rows, plain_row
from hespas.prediction.figures.goodput import pipeline_goodput
from hespas.prediction.figures.schema import (
    CommunicationRow,
    PipelineReport,
    RunReport,
    StageRow,
)
from hespas.prediction.figures.step import summary
from hespas.prediction.result import Prediction
from hespas.price.estimate import Estimate
from hespas.tasks.graph import devices_text
from hespas.tasks.pipelining.options import Overlap
from hespas.tasks.pipelining.schedule import ideal_bubble


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


def pipeline_report(prediction: PipelinePrediction, *, with_tables: bool = True) -> RunReport:
    """Return all that is reported of a pipeline, without its tables of computation if not."""
    ran = list(_ran(prediction))
    total = Estimate()
    for program, times, _ in ran:
        total += program.estimates.total * times
    shown = prediction.options.report
    shares = ran if with_tables else []
    parts = joined_breakdown(
        (breakdown(program), times, opened.both) for program, times, opened in shares
    )
    rows = list(_communication(prediction, ran))
    return msgspec.structs.replace(
        summary(prediction, total, ran[0][0], prediction.cut.source.name),
        fidelity=prediction.fidelity,
        communication_s=sum(row.time_s for row in rows if row.kind != IDLE),
        host_transfer_s=sum(program.host_transfer_s * times for program, times, _ in ran),
        peak_memory_bytes=prediction.peak_memory_bytes,
        host_memory_bytes=max(memory.host_bytes for memory in prediction.memories),
        host_transfer_bytes=sum(program.host_transfer_bytes * times for program, times, _ in ran),
        kinds=kind_rows(parts),
        phases=phase_rows(parts),
        layers=layer_rows(parts, depth=shown.depth, each_layer=shown.each_layer),
        communication=sorted(
            rows, key=lambda row: (-row.exposed_s, -row.time_s, row.kind, row.axis)
        ),
        pipeline=pipeline_rows(prediction),
        goodput=pipeline_goodput(prediction),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """Which share of a program's exposed time stays exposed in the pipeline.

    ``exchanges`` is that of all-to-alls between experts, ``others`` that of all else.
    """

    both: float = 1.0
    exchanges: float = 1.0
    others: float = 1.0


_Ran = tuple[Prediction, int, _Open]
"""A program, how often it runs in a step, and how much of it stays exposed."""


def _ran(prediction: PipelinePrediction) -> Iterator[_Ran]:
    parts = prediction.cut.parts_of(prediction.busiest)
    for part in sorted(set(parts), key=str):
        cost, chunks = prediction.costs[part], [at for at, each in enumerate(parts) if each == part]
        times = prediction.cut.schedule.micro_batches * len(chunks)
        yield cost.prediction, times, _open(prediction, cost, chunks)
        yield cost.update_prediction, len(chunks), _Open()


def _open(prediction: PipelinePrediction, cost: PartCost, chunks: list[int]) -> _Open:
    """Return which share of what passes leave exposed the pipeline does, for chunks of a part."""
    times = prediction.cut.schedule.micro_batches * len(chunks)
    before_ps = cost.prediction.exposed_communication_s * PS_PER_S * times
    passes = cost.passes
    exchanged_ps = times * (passes.forward + passes.backward + passes.weights).exchange_ps
    spent = [prediction.passes_of(prediction.busiest, chunk) for chunk in chunks]
    left_ps = sum(each.communication_ps for each in spent)
    exchanges_left_ps = sum(each.exchange_ps for each in spent)
    return _Open(
        both=_share(left_ps, before_ps),
        exchanges=_share(exchanges_left_ps, exchanged_ps),
        others=_share(left_ps - exchanges_left_ps, before_ps - exchanged_ps),
    )


def _share(left_ps: float, before_ps: float) -> float:
    return left_ps / before_ps if before_ps > 0 else 1.0


def _communication(prediction: PipelinePrediction, ran: list[_Ran]) -> Iterator[CommunicationRow]:
    found: dict[tuple[str, str, str], CommunicationRow] = {}
    others = {axis for axis in prediction.cut.mesh.names if axis != EXPERT}
    for program, times, open_ in ran:
        for row in communication_rows(program):
            # Among groups of experts, devices are a part of the axis, which has no name.
            is_exchange = row.kind == "all_to_all" and row.axis not in others
            share = open_.exchanges if is_exchange else open_.others
            scaled = _times(row, times, share)
            key = (row.kind, row.axis, row.dimension)
            found[key] = scaled if key not in found else _sum(found[key], scaled)
    for row in _around(prediction):
        key = (row.kind, row.axis, row.dimension)
        found[key] = row if key not in found else _sum(found[key], row)
    found.pop((IDLE, "", ""), None)
    yield from found.values()
    exposed_s = sum(row.exposed_s for row in found.values())
    idle_s = max(0.0, prediction.exposed_communication_s - exposed_s)
    if idle_s > 0:
        idle_ps = round(idle_s * PS_PER_S)
        yield _row(IDLE, PIPE, 1, (idle_ps, idle_ps))


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
