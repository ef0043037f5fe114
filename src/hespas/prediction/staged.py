"""Predict pipelines: price the parts, then schedule them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from hespas.base.frozen import frozen
from hespas.base.question import reused_processes
from hespas.base.units import PS_PER_S, format_time
from hespas.hardware.presets import part_warnings
from hespas.models.language import expert_axes, has_shared_experts
from hespas.models.model import EXPERT, SHARED, Part
from hespas.prediction.answer import PartCost, PipelinePrediction, StageTimes
from hespas.prediction.checks import check_rates
from hespas.prediction.cutting import (
    Cut,
    check_fits,
    cut_of,
    stage_memory,
    weight_size_bytes,
)
from hespas.prediction.launches import launches_each
from hespas.prediction.loading import IN_GRAPHS
from hespas.prediction.machines import device_name, device_of_memory, model_of, node_of, store_of
from hespas.prediction.options import PredictOptions
from hespas.prediction.part_costs import host_launch_ps, part_costs
from hespas.prediction.passes import Exchange, side_by_side
from hespas.program.collectives import CollectiveKind
from hespas.tasks.pipelining.options import Overlap
from hespas.tasks.pipelining.schedule import Action, Pass, Schedule
from hespas.tasks.pipelining.timing import Durations, Interval, Times, timed


def predict_pipeline(options: PredictOptions) -> PipelinePrediction:
    """Predict one step of a model in pipeline stages.

    The programs of each distinct part are exported, priced and simulated by the functions that
    predict any program; the schedule puts them into one step. Raises `ConfigError` for what doesn't
    fit, before anything is exported: devices, layers, a stage whose arrays alone exceed the memory
    unless ``ignore_memory`` is set; and `hespas.errors.HespasError` as the stages do.
    """
    cut = cut_of(options)
    check_fits(cut)
    with reused_processes():
        costs = part_costs(cut, store_of(cut.options.estimate))
    programs = [
        each
        for cost in costs.values()
        for program in cost.programs
        for each in (program.passes, program.update)
    ]
    check_rates([(each.graph, each.modules) for each in programs], cut.options)
    exchange = Exchange(
        system=cut.system,
        choice=model_of(cut.options.network, cut.system),
        mesh=cut.mesh,
    )
    return _scheduled(cut, costs, exchange)


def _scheduled(cut: Cut, costs: Mapping[Part, PartCost], exchange: Exchange) -> PipelinePrediction:
    schedule, hides = cut.schedule, cut.options.pipeline.hides
    message_ps = exchange.message_ps(message_bytes(cut))
    exchanges = [_DataExchange.of(cut, costs, exchange, stage) for stage in range(cut.stages)]
    gathers = [stage.gathers() for stage in exchanges]
    ready = {
        (stage, chunk): _ready_ps(stage_gathers, chunk, cut, costs, stage)
        for stage, stage_gathers in enumerate(gathers)
        for chunk in range(schedule.chunks)
    }
    footprints = {part: cost.footprint for part, cost in costs.items()}
    times = timed(schedule, _durations(cut, costs, message_ps, ready))
    sums = [
        stage_exchanges.sums(times.passes[stage], schedule, together=not hides(Overlap.GRADIENTS))
        for stage, stage_exchanges in enumerate(exchanges)
    ]
    summed_ps = max(
        [times.finish_ps, *(end for intervals in sums for _, (_, end) in intervals)],
    ) + exchange.collective_ps(CollectiveKind.ALL_REDUCE, 4, cut.mesh.names)
    stages = [
        StageTimes(
            gathers=tuple(gathers[stage]),
            sums=tuple(sums[stage]),
            update=(
                summed_ps,
                summed_ps + sum(costs[part].update.total_ps for part in cut.parts_of(stage)),
            ),
        )
        for stage in range(cut.stages)
    ]
    return PipelinePrediction(
        cut=cut,
        costs=costs,
        times=times,
        stages=tuple(stages),
        memories=tuple(stage_memory(cut, footprints, stage) for stage in range(cut.stages)),
        message_ps=message_ps,
        message_bytes=message_bytes(cut),
        device=device_of_memory(cut.options.estimate),
        device_name=device_name(cut.options.estimate),
        notes=(*_notes(cut, message_ps, times), *_layer_notes(costs), *cut.source.notes),
        part_warnings=part_warnings(node_of(cut.options.estimate), cut.system),
    )


def _ready_ps(
    gathers: Sequence[tuple[str, Interval]],
    chunk: int,
    cut: Cut,
    costs: Mapping[Part, PartCost],
    stage: int,
) -> int:
    """Return when a chunk's weights arrive for its first pass.

    They come a layer at a time, while layers before are computed. Source: megatron-core 0.16.1,
    ``finish_param_sync`` of distributed/param_and_grad_buffer.py, which starts the next gather.
    """
    if not cut.options.pipeline.hides(Overlap.PARAMETERS):
        return max(end for _, (_, end) in gathers)
    part = cut.parts_of(stage)[chunk]
    start, end = gathers[chunk][1]
    forward_ps = costs[part].passes.forward.total_ps
    return end - min(end - start, forward_ps) * (part.layers - 1) // part.layers


def _durations(
    cut: Cut,
    costs: Mapping[Part, PartCost],
    message_ps: int,
    ready_ps: Mapping[tuple[int, int], int],
) -> Durations:
    """Return the durations of passes and messages.

    ``ready_ps`` is when weights have come, by chunk.
    """
    hides = cut.options.pipeline.hides
    spent = [[costs[part].passes for part in cut.parts_of(stage)] for stage in range(cut.stages)]

    def hidden(stage: int, backward: Action, forward: Action) -> tuple[int, int]:
        passes = spent[stage]
        return side_by_side(
            passes[backward.chunk].of(backward.kind), passes[forward.chunk].of(forward.kind)
        )

    return Durations(
        pass_ps=lambda stage, action: spent[stage][action.chunk].of(action.kind).total_ps,
        message_ps=lambda _source, _target: message_ps,
        holds_sender=not hides(Overlap.MESSAGES),
        ready_ps=ready_ps,
        hidden=hidden if hides(Overlap.EXCHANGES) else None,
    )


def message_bytes(cut: Cut) -> int:
    """Return a device's bytes of one micro-batch's message.

    The devices of a tensor-parallel group share what goes to the next one, as Megatron-Core does
    with sequence parallelism, or by scattering and gathering.
    """
    sizes = cut.settings.sizes
    elements = cut.micro_batch * sizes["sequence"] * sizes["embedding"]
    return elements * weight_size_bytes(cut) // cut.mesh.size("context", "sequence", "tp")


@frozen
class _DataExchange:
    """A stage's data-parallel exchanges, by chunk, in ps.

    A chunk's sums come in as many pieces as it has layers.
    """

    gather_ps: tuple[int, ...]
    sum_ps: tuple[int, ...]
    pieces: tuple[int, ...]

    @classmethod
    def of(
        cls, cut: Cut, costs: Mapping[Part, PartCost], exchange: Exchange, stage: int
    ) -> _DataExchange:
        gather_ps: list[int] = []
        sum_ps: list[int] = []
        pieces: list[int] = []
        of_experts = expert_axes(cut.settings)
        shared = tuple(axis for axis in SHARED if axis not in of_experts)
        for part in cut.parts_of(stage):
            memory = costs[part].footprint
            gathered_ps = summed_ps = 0
            for weights, axes in (
                (memory.weight_bytes - memory.expert_bytes, (*SHARED, EXPERT)),
                (memory.expert_bytes, shared),
            ):
                shards = cut.mesh.size(*axes)
                layer_bytes = weights * memory.gradient_bytes // memory.weight_bytes // part.layers
                collective_ps = exchange.collective_ps
                gathered_ps += collective_ps(CollectiveKind.ALL_GATHER, weights // shards, axes)
                summed_ps += collective_ps(CollectiveKind.REDUCE_SCATTER, layer_bytes, axes)
                summed_ps += collective_ps(
                    CollectiveKind.ALL_REDUCE, layer_bytes // shards, ("data",)
                )
            gather_ps.append(gathered_ps)
            sum_ps.append(summed_ps)
            pieces.append(part.layers)
        return cls(gather_ps=tuple(gather_ps), sum_ps=tuple(sum_ps), pieces=tuple(pieces))

    def gathers(self) -> list[tuple[str, Interval]]:
        """Return when each chunk's weights are gathered, in sequence."""
        ends = accumulate(self.gather_ps)
        return [
            (f"weights of chunk {chunk}", (end - duration, end))
            for chunk, (duration, end) in enumerate(zip(self.gather_ps, ends, strict=True))
        ]

    def sums(
        self, passes: Mapping[Action, Interval], schedule: Schedule, *, together: bool
    ) -> list[tuple[str, Interval]]:
        """Return when each piece of gradients is summed, in sequence.

        In the last backward pass of a chunk its layers come in turn.
        """
        kind = Pass.WEIGHTS if schedule.splits_backward else Pass.BACKWARD
        last_end = max(end for _, end in passes.values())
        pieces: list[tuple[int, str, int]] = []
        for chunk, (duration_ps, count) in enumerate(zip(self.sum_ps, self.pieces, strict=True)):
            if not duration_ps:
                continue
            start, end = max(
                interval
                for action, interval in passes.items()
                if action.kind is kind and action.chunk == chunk
            )
            for number in range(count):
                ready_ps = last_end if together else start + (end - start) * (number + 1) // count
                pieces.append((ready_ps, f"gradients of chunk {chunk}", duration_ps))
        intervals: list[tuple[str, Interval]] = []
        free_ps = 0
        for ready_ps, name, duration_ps in sorted(pieces, key=lambda piece: piece[0]):
            start_ps = max(free_ps, ready_ps)
            free_ps = start_ps + duration_ps
            intervals.append((name, (start_ps, free_ps)))
        return intervals


def _notes(cut: Cut, message_ps: int, times: Times) -> Sequence[str]:
    hides = cut.options.pipeline.hides
    has_exchanges = cut.mesh.size(*expert_axes(cut.settings)) > 1
    absent = set[Overlap]()
    if not has_shared_experts(cut.settings):
        absent.add(Overlap.EXPERTS)
    if not has_exchanges:
        absent.add(Overlap.EXCHANGES)
    present = [overlap for overlap in Overlap if overlap not in absent]
    hidden = ", ".join(overlap.value for overlap in present if hides(overlap)) or "nothing"
    exposed = ", ".join(overlap.value for overlap in present if not hides(overlap))
    message = format_time(message_ps / PS_PER_S)
    notes = [
        f"pipeline: the mesh lies on the machine as {cut.mesh}, the last axis nearest",
        f"overlap: hidden as far as the schedule allows: {hidden}"
        + (f"; not hidden: {exposed}" if exposed else ""),
        _ALONE,
        f"pipeline: a message to the next stage takes {message}, while all stages send",
        _DIVIDED,
    ]
    layers = [part.layers for part in cut.parts]
    is_even = any((sum(layers) + outer) % len(layers) == 0 for outer in (0, 2))
    if not is_even and cut.options.pipeline.stage_layers is None:
        notes.append(
            f"pipeline: parts have {', '.join(map(str, layers))} layers, the first ones more "
            "(--stage-layers sets them)"
        )
    if hides(Overlap.TP) and cut.mesh.size("tp") > 1:
        notes.append(
            f"overlap: tensor-parallel collectives run in {cut.mesh.size('tp')} pieces under the "
            "products beside them, one piece stays exposed"
        )
    if has_exchanges:
        notes.append(_EXPERTS)
    if hides(Overlap.EXCHANGES):
        beside = sum(map(len, times.hidden_ps)) / sum(map(len, times.passes))
        notes.append(f"overlap: {100 * beside:.0f} % of the passes run {_BESIDE}")
    if cut.offloads:
        notes.append(_OFFLOADED)
    if launches_each(cut.options):
        notes.append(_launch_note(cut.options))
    if cut.schedule.splits_backward:
        notes.append(
            "pipeline: gradients of weights take what a backward pass takes longer with them than "
            "without"
        )
    return notes


def _layer_notes(costs: Mapping[Part, PartCost]) -> Sequence[str]:
    is_alone = any(program.times > 1 for cost in costs.values() for program in cost.programs)
    return [_LAYERS_ALONE] if is_alone else []


def _launch_note(options: PredictOptions) -> str:
    if options.estimate.cuda_graphs:
        return IN_GRAPHS
    launch = format_time(host_launch_ps(options) / PS_PER_S)
    is_given = options.estimate.host_launch_s is not None
    source = "as given" if is_given else "as measured beside an H100 with torch 2.11"
    return f"host launches: one takes {launch}, {source}, {_LAUNCHED}"


_LAUNCHED = (
    "a kernel of each expert inside of a call too; the host waits for the counts of tokens before "
    "the all-to-all of a forward pass, and CUDA graphs hold no part of a layer"
)
_ALONE = (
    "pipeline: passes are simulated one by one: messages between stages, gathered weights and sums "
    "of gradients share no links with each other, nor with what is inside of passes"
)
_BESIDE = (
    "beside one of another micro-batch, whose computation hides their all-to-alls between experts, "
    "and neither slows the other"
)
_OFFLOADED = (
    "host: what layers keep goes to the host beside the forward pass of its micro-batch, and "
    "comes back beside the backward pass, one layer ahead; a pass waits for what outlasts it"
)
_LAYERS_ALONE = (
    "layers: those of a stage take what each kind of them takes alone (--unrolled writes all out: "
    "within 0.5 % of the passes' time)"
)
_DIVIDED = (
    "pipeline: sums of gradients are of the type of the optimiser's states; states are divided "
    f"over {'+'.join(SHARED)}, weights and gradients are not"
)
_EXPERTS = (
    "pipeline: gradients of weights that all devices of experts hold are summed over these too, "
    "once a step, and their states are divided over them"
)
