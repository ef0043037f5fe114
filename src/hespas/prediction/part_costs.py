"""Price a model's parts: passes, an optimiser's step, memory.

Where layers are written out for a modelled compiler, a part's layers cost what each kind of them
costs alone, so that a part of many layers takes no longer to predict than one of few.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import hypot

from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_S
from hespas.frontend.recorded.load import HOST_LAUNCH_S
from hespas.lower.overlap import has_room
from hespas.memory.usage import unpacked_bytes
from hespas.models.architecture import LayerKind
from hespas.models.language import LanguageModel, expert_axes
from hespas.models.model import Part, PartProgram
from hespas.prediction.answer import PartCost, PricedProgram
from hespas.prediction.composition import divide, finish, load_alone, price
from hespas.prediction.cutting import (
    STATES,
    Cut,
    expert_bytes,
    frozen_bytes,
    state_sizes,
    states_held,
    summed_bytes,
)
from hespas.prediction.fidelity import planned
from hespas.prediction.launches import launches_each
from hespas.prediction.loading import EXPORTED_LATER
from hespas.prediction.machines import device_of
from hespas.prediction.options import Fidelity, NetworkOptions, PredictOptions
from hespas.prediction.passes import (
    NOTHING,
    Footprint,
    PassCost,
    Spent,
    footprint_of_passes,
    spent_by_phase,
    spread,
    tasks_without_sums,
)
from hespas.prediction.result import Prediction
from hespas.price.cache import Store
from hespas.split.options import SplitStrategy
from hespas.tasks.graph import TaskGraph
from hespas.tasks.pipelining.options import Overlap

log = logging.getLogger("hespas")
_Programs = Mapping[Part, int]
"""Parts whose programs make up another part, and how often each."""


def part_costs(cut: Cut, store: Store | None) -> dict[Part, PartCost]:
    """Price each distinct part of a cut model once."""
    priced: dict[Part, _Priced] = {}

    def of_programs(programs: _Programs) -> list[tuple[_Priced, int]]:
        for part in programs:
            if part not in priced:
                log.info("part: %s", part)
                priced[part] = _priced(cut, part, store)
        return [(priced[part], times) for part, times in programs.items()]

    costs: dict[Part, PartCost] = {}
    for part in dict.fromkeys(cut.parts):
        alone = layers_alone(cut, part)
        programs = of_programs(alone)
        if part not in alone and not _overlaps(cut, programs):
            programs = of_programs({part: 1})
        costs[part] = _cost(cut, part, programs)
    return costs


def layers_alone(cut: Cut, part: Part) -> _Programs:
    """Return the parts of one layer that a part consists of.

    The layer beside the embedding or the head stays with it. A part is priced whole where its
    layers are a loop, share keys, or are reported one by one, where a compiler reads them, and
    where they are routed or recurrent: several of these need 3 to 7 % more memory than one of each.
    """
    if part.layers == 1 or not _prices_layers(cut):
        return {part: 1}
    settings = cut.settings
    until = part.first + part.layers
    kinds = settings.kinds[part.first : until]
    if not all(map(_stands_alone, kinds)):
        return {part: 1}
    beside = until - 1 if part.is_last else part.first
    programs = Counter[Part]()
    for number in (beside, *(each for each in range(part.first, until) if each != beside)):
        is_beside = number == beside
        layer = replace(
            part,
            layers=1,
            first=settings.first_like(number, 1),
            is_first=part.is_first and is_beside,
            is_last=part.is_last and is_beside,
        )
        programs[layer] += 1
    return programs


def _stands_alone(kind: LayerKind) -> bool:
    return kind.keys == "own" and kind.mixer == "attention" and not kind.is_routed


def _prices_layers(cut: Cut) -> bool:
    options = cut.options
    return (
        options.program.model.scan is None
        and isinstance(cut.settings, LanguageModel)
        and not (cut.is_looped or cut.offloads or options.report.each_layer)
        and planned(EXPORTED_LATER, options).fidelity is Fidelity.FUSED
    )


def _overlaps(cut: Cut, programs: Sequence[tuple[_Priced, int]]) -> bool:
    """Return whether XLA's scheduler has memory to overlap collectives of all layers."""
    options = cut.options
    device = device_of(options.estimate)
    if device is None or device.memory_capacity_bytes is None:
        return True
    held_bytes = kept_bytes = working_bytes = 0
    for part, times in programs:
        own_bytes, temporary_bytes = unpacked_bytes(part.both.graph.program)
        own_kept_bytes = part.footprint.kept_bytes
        held_bytes += times * own_bytes
        kept_bytes += times * own_kept_bytes
        working_bytes = max(working_bytes, temporary_bytes - own_kept_bytes)
    return has_room(
        held_bytes,
        kept_bytes + working_bytes,
        capacity_bytes=device.memory_capacity_bytes,
        factor=options.compile.options.slop_factor,
    )


@frozen
class _Priced:
    """A part's programs, and what they take.

    ``weights`` is nothing where a schedule has no passes of their own for gradients of weights.
    """

    both: Prediction
    update: Prediction
    passes: PassCost
    of_update: Spent
    footprint: Footprint


def _priced(cut: Cut, part: Part, store: Store | None) -> _Priced:
    pieces = cut.mesh.size("tp") if cut.options.pipeline.hides(Overlap.TP) else 1
    both = _prediction(cut, part, PartProgram.BOTH, store)
    update = _prediction(cut, part, PartProgram.UPDATE, store)
    passes = partial(
        spent_by_phase,
        pieces=pieces,
        expert_axes=expert_axes(cut.settings),
        host_launch_ps=host_launch_ps(cut.options),
    )
    forward, backward = passes(both)
    weights = NOTHING
    if cut.schedule.splits_backward:
        inputs = _prediction(cut, part, PartProgram.INPUTS, store)
        _, of_inputs = passes(inputs)
        weights, backward = backward.less(of_inputs), backward.less(backward.less(of_inputs))
    # What casts weights after the step has no phase in its name, and is of the update all the same.
    of_update = sum(spent_by_phase(update, pieces=1), NOTHING)
    return _Priced(
        both=both,
        update=update,
        passes=PassCost(forward=forward, backward=backward, weights=weights),
        of_update=of_update,
        footprint=footprint_of_passes(both, part),
    )


def _cost(cut: Cut, part: Part, programs: Sequence[tuple[_Priced, int]]) -> PartCost:
    """Return the cost of a part that consists of programs."""
    passes, of_update = _sum_of(programs)
    memory, waiting_bytes = _footprint(cut, part, programs), 0
    accumulation = NOTHING
    if cut.options.compile.requested is Fidelity.LIBRARY:
        # Products read the sums and write them, and are priced with results of the weights' type.
        moved_bytes = max(0, 2 * memory.gradient_bytes - memory.weight_bytes)
        moved_ps = _accumulation_ps(moved_bytes, programs)
        accumulation = Spent(compute_ps=_beside(moved_ps, passes.backward))
    if not cut.options.pipeline.hides(Overlap.ACCUMULATION):
        moved_bytes = memory.weight_bytes + 2 * memory.gradient_bytes
        accumulation = Spent(compute_ps=_accumulation_ps(moved_bytes, programs))
        waiting_bytes = memory.weight_bytes // (1 if cut.is_looped else part.layers)
    if cut.schedule.splits_backward:
        passes = replace(passes, weights=passes.weights + accumulation)
    else:
        passes = replace(passes, backward=passes.backward + accumulation)
    return PartCost(
        passes=passes,
        update=of_update,
        accumulation_ps=accumulation.compute_ps,
        footprint=replace(memory, working_bytes=memory.working_bytes + waiting_bytes),
        programs=tuple(
            PricedProgram(passes=priced.both, update=priced.update, times=times)
            for priced, times in programs
        ),
    )


def _sum_of(programs: Sequence[tuple[_Priced, int]]) -> tuple[PassCost, Spent]:
    """Return the times of programs one after another."""
    forward = backward = weights = of_update = NOTHING
    for priced, times in programs:
        forward += priced.passes.forward.times(times)
        backward += priced.passes.backward.times(times)
        weights += priced.passes.weights.times(times)
        of_update += priced.of_update.times(times)
    return PassCost(forward=forward, backward=backward, weights=weights), of_update


def _footprint(cut: Cut, part: Part, programs: Sequence[tuple[_Priced, int]]) -> Footprint:
    """Return the memory of a part that consists of programs."""

    def total(sizes: Iterator[int]) -> int:
        return sum(size * times for size, (_, times) in zip(sizes, programs, strict=True))

    footprints = [priced.footprint for priced, _ in programs]
    weight_bytes = total(each.weight_bytes for each in footprints)
    argument_bytes = total(priced.update.memory.argument_bytes for priced, _ in programs)
    wide, narrow = state_sizes(cut)
    return Footprint(
        weight_bytes=weight_bytes,
        gradient_bytes=summed_bytes(cut, weight_bytes),
        # The weights of an optimiser's step, beside its moments and gradients.
        state_bytes=states_held(cut) * (argument_bytes * wide // (STATES * wide + narrow)),
        kept_bytes=total(each.kept_bytes for each in footprints),
        working_bytes=max(each.working_bytes for each in footprints),
        host_bytes=total(each.host_bytes for each in footprints),
        expert_bytes=expert_bytes(cut, part),
        frozen_bytes=frozen_bytes(cut, part),
    )


def host_launch_ps(options: PredictOptions) -> int:
    """Return the host's launch time of a kernel, if any."""
    if options.estimate.cuda_graphs or not launches_each(options):
        return 0
    launch_s = options.estimate.host_launch_s
    return round((HOST_LAUNCH_S if launch_s is None else launch_s) * PS_PER_S)


def _beside(moved_ps: int, backward: Spent) -> int:
    """Return by how much concurrent traffic slows weight-gradient products.

    Half of a backward pass is theirs. Arithmetic and memory traffic of a kernel combine by the root
    of the sum of their squares, as in the kernel method.
    """
    own_ps = backward.compute_ps // 2
    return round(hypot(own_ps, moved_ps)) - own_ps


def _accumulation_ps(size_bytes: int, programs: Sequence[tuple[_Priced, int]]) -> int:
    """Return the time to move bytes at the optimiser's bandwidth.

    To add gradients to their sums, they are read, and the sums are read and written.
    """
    moved_bytes = time_s = 0.0
    for priced, times in programs:
        total = priced.update.estimates.total
        moved_bytes += total.total.bytes_moved * times
        time_s += total.time_s * times
    rate = moved_bytes / time_s if time_s else 0.0
    return round(size_bytes / rate * PS_PER_S) if rate else 0


def _prediction(cut: Cut, part: Part, program: PartProgram, store: Store | None) -> Prediction:
    """Return the prediction of a part's program without once-per-step work.

    It is exported and priced for the devices that share its arrays, and simulated with all stages
    and data-parallel parts running it at the same time.
    """
    inner = cut.mesh_of(program)
    of_program = replace(part, mesh=inner, program=program)
    options = cut.options_of(of_program)
    loaded = load_alone(replace(options, network=NetworkOptions()))
    if not loaded.is_scheduled:
        # Every operation has a phase of its own.
        split = replace(options.split, strategy=SplitStrategy.INDIVIDUAL)
        options = replace(options, split=split)
    prepared = divide(loaded, options, system=cut.system)
    estimates = price(prepared, options, store=store)

    def on_all(tasks: TaskGraph) -> TaskGraph:
        return spread(tasks_without_sums(tasks, of_program), inner=inner, all_axes=cut.mesh)

    # Along some dimensions stages alone send, from one to the next.
    network = replace(options.network, link_bandwidth=())
    prediction = finish(prepared, estimates, replace(options, network=network), change=on_all)
    return replace(prediction, mesh=cut.mesh.axes)
