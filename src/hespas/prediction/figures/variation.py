"""A step on unequal devices, which wait for the slowest.

All axes of a mesh synchronise several times a step, but for the copies of a pipeline (``data`` and
``fsdp`` there), which meet once, at its end. A stage takes the slowest device of its group, a copy
follows its slowest stage, and the step its slowest copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import hypot, prod, sqrt
from typing import TYPE_CHECKING

import numpy as np

from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_S
from hespas.hardware.variation import Slowest, Variation, latest_of
from hespas.models.model import PIPE, SHARED
from hespas.prediction.figures.recorded_stages import slowest_of
from hespas.prediction.figures.schema import VariationReport
from hespas.prediction.result import Prediction
from hespas.program.recorded import Pipeline
from hespas.simulate.timeline import Timeline
from hespas.tasks.graph import CollectiveTask, ComputeTask

if TYPE_CHECKING:
    from hespas.hardware.variation import Floats
    from hespas.prediction.answer import PipelinePrediction

    AnyPrediction = Prediction | PipelinePrediction

_DRAWS = (100, 1000)
_CELLS = 4_000_000
EXCLUDED = 0.01
"""The share of slowest devices whose exclusion is tried."""


@frozen
class Stages:
    """The computation and mesh axes of a step's stages.

    ``ramp`` is the share of a stage's time that another stage's passes wait for.
    """

    compute_s: tuple[float, ...]
    busy_s: tuple[float, ...]
    ramp: float
    deviation: float
    inner: tuple[tuple[str, int], ...]
    copies: tuple[tuple[str, int], ...]

    @property
    def group(self) -> int:
        """The devices of a stage that synchronise all the time."""
        return prod(size for _, size in self.inner)


def variation_report(prediction: AnyPrediction) -> VariationReport:
    """Return what a step takes on unequal devices."""
    variation = prediction.options.network.variation
    stages = _stages(prediction, variation)
    slowest = Slowest(sigma=stages.deviation, slow=variation.slow)
    copies = prod(size for _, size in stages.copies)
    cells = copies * len(stages.compute_s)
    draws = max(_DRAWS[0], min(_DRAWS[1], _CELLS // cells)) // 2 * 2
    uniform = uniform_draws(variation.seed, draws=draws, copies=copies, stages=len(stages.busy_s))
    jitter = _jitter(prediction, variation)
    jitter_s = sum(jitter.values())
    longer = longer_by(slowest.factors(uniform, stages.group), stages)
    less = longer_by(slowest.factors(uniform, stages.group, without=EXCLUDED), stages)
    equal_s = prediction.step_time_s
    added = longer.max(axis=1) + jitter_s
    low, middle, high = np.quantile(added, (0.05, 0.5, 0.95))
    axes = Counter(_axes(longer, slowest, stages))
    axes.update(jitter)
    # A device that waits for no other is as fast on average: what is left is rounding.
    waiting_s = max(0.0, float(added.mean()))
    expected_s, tokens = equal_s + waiting_s, prediction.work.tokens
    return VariationReport(
        source=variation.source,
        draws=draws,
        equal_step_s=equal_s,
        expected_step_s=expected_s,
        p5_s=equal_s + float(low),
        p50_s=equal_s + float(middle),
        p95_s=equal_s + float(high),
        waiting_s=waiting_s,
        waiting_by_axis_s={name: time_s for name, time_s in axes.items() if time_s > 0},
        jitter_s=jitter_s,
        without_slowest_s=equal_s + max(0.0, float(less.max(axis=1).mean()) + jitter_s),
        tokens_per_s=None if tokens is None else tokens / expected_s,
    )


def _stages(prediction: AnyPrediction, variation: Variation) -> Stages:
    if isinstance(prediction, Prediction):
        recorded, timeline = prediction.graph.program.recorded, prediction.timeline
        if recorded is not None and recorded.pipeline is not None and timeline is not None:
            return _recorded_stages(prediction, timeline, recorded.pipeline, variation)
        compute_s = prediction.compute_s
        bound = prediction.estimates.total.total.bound
        mesh = prediction.mesh
        remaining = prediction.devices // prod(size for _, size in mesh)
        unnamed = () if remaining == 1 else (("devices", remaining),)
        return Stages(
            compute_s=(compute_s,),
            busy_s=(prediction.step_time_s,),
            ramp=0.0,
            deviation=_deviation(variation, compute_s, bound.compute_s, bound.memory_s),
            inner=(*unnamed, *mesh),
            copies=(),
        )
    numbers = range(prediction.cut.stages)
    schedule = prediction.cut.schedule
    computed = [prediction.spent(stage).compute_ps / PS_PER_S for stage in numbers]
    busy = [prediction.times.busy_ps(stage) / PS_PER_S for stage in numbers]
    totals = [
        program.passes.estimates.total * program.times
        for cost in prediction.costs.values()
        for program in cost.programs
    ]
    arithmetic_s = sum(part.total.bound.compute_s for part in totals)
    memory_s = sum(part.total.bound.memory_s for part in totals)
    total_s = sum(part.time_s for part in totals)
    return Stages(
        compute_s=tuple(computed),
        busy_s=tuple(busy),
        ramp=1.0 / (schedule.micro_batches * schedule.chunks),
        deviation=_deviation(variation, total_s, arithmetic_s, memory_s),
        inner=tuple(axis for axis in prediction.mesh if axis[0] not in {PIPE, *SHARED}),
        copies=tuple(axis for axis in prediction.mesh if axis[0] in SHARED),
    )


def _recorded_stages(
    prediction: Prediction, timeline: Timeline, pipeline: Pipeline, variation: Variation
) -> Stages:
    """Return the stages of a recorded pipeline; all axes but theirs synchronise all the time."""
    own = [slowest_of(stage, timeline) for stage in prediction.stages]
    bounds = [stage.prediction.estimates.total.total.bound for stage in prediction.stages]
    computed = tuple(item.compute_ps / PS_PER_S for item in own)
    return Stages(
        compute_s=computed,
        busy_s=tuple((item.finish_ps - item.without_collectives_ps) / PS_PER_S for item in own),
        ramp=1.0 / (pipeline.micro_batches * pipeline.chunks),
        deviation=_deviation(
            variation,
            sum(computed),
            sum(bound.compute_s for bound in bounds),
            sum(bound.memory_s for bound in bounds),
        ),
        inner=_axes_beside(prediction.mesh, pipeline.ranks, prediction.devices),
        copies=(),
    )


def _axes_beside(
    mesh: Sequence[tuple[str, int]], ranks: Sequence[int], devices: int
) -> tuple[tuple[str, int], ...]:
    """Return the axes along which a pipeline's ranks do not go."""
    stride, beside = devices, list[tuple[str, int]]()
    for name, size in mesh:
        stride //= size
        if len({rank // stride % size for rank in ranks}) == 1:
            beside.append((name, size))
    count = devices // len(ranks)
    if prod(size for _, size in beside) == count:
        return tuple(beside)
    return (("devices", count),)


def _deviation(
    variation: Variation, compute_s: float, arithmetic_s: float, memory_s: float
) -> float:
    """Return the relative deviation of a device's computation."""
    if compute_s <= 0:
        return 0.0
    persistent = hypot(variation.sigma * arithmetic_s, variation.memory_sigma * memory_s)
    return hypot(persistent / compute_s, variation.device_sigma, variation.step_sigma)


def uniform_draws(seed: int, *, draws: int, copies: int, stages: int) -> Floats:
    """Return draws whose second half mirrors the first.

    A device of the first half that is fast is slow in the second: the mean of a device is exact,
    and a step that takes the slowest never gets shorter where devices vary more (antithetic
    variates: J. Hammersley, K. Morton, A new Monte Carlo technique, 1956).
    """
    half = np.random.default_rng(seed).random((draws // 2, copies, stages))
    return np.clip(np.concatenate([half, 1.0 - half]), 1e-300, 1.0 - 1e-16)


def longer_by(factors: Floats, stages: Stages) -> Floats:
    """Return by how much each copy's step is longer.

    ``factors`` are by draw, copy and stage. The slowest stage decides; the first and the last
    passes of the others come before and after:
    ``max(busy + (1 - ramp) added) + ramp sum(added) - max(busy)``.
    """
    added = (factors - 1.0) * np.array(stages.compute_s)
    busy = np.array(stages.busy_s)
    slowed = (busy + (1.0 - stages.ramp) * added).max(axis=2) - busy.max()
    return slowed + stages.ramp * added.sum(axis=2)


def _axes(longer: Floats, slowest: Slowest, stages: Stages) -> Mapping[str, float]:
    """Return the waiting that each axis causes, nearest first."""
    waits: dict[str, float] = {}
    count, before, mean_s = 1, 1.0, sum(stages.compute_s) / len(stages.compute_s)
    for name, size in reversed(stages.inner):
        count *= size
        factor = slowest.mean(count)
        waits[name] = (factor - before) * mean_s
        before = factor
    reached_s = float(longer.mean())
    if len(stages.compute_s) > 1:
        waits[PIPE] = reached_s - sum(waits.values())
    shaped = longer.reshape((longer.shape[0], *(size for _, size in stages.copies)))
    for name, _ in reversed(stages.copies):
        shaped = shaped.max(axis=-1)
        waits[name] = float(shaped.mean()) - reached_s
        reached_s = float(shaped.mean())
    return waits


def _jitter(prediction: AnyPrediction, variation: Variation) -> Mapping[str, float]:
    """Return the waiting that jitter causes, by axis.

    Kernels jitter, and devices enter collectives late.
    """
    if not (variation.kernel_sigma or variation.collective_delay_s):
        return {}
    if isinstance(prediction, Prediction):
        return _jitter_of(prediction, variation, times=1)
    waits: Counter[str] = Counter()
    for part in prediction.cut.parts_of(prediction.busiest):
        for program in prediction.costs[part].programs:
            count = program.times * prediction.cut.schedule.micro_batches
            waits.update(_jitter_of(program.passes, variation, times=count))
            waits.update(_jitter_of(program.update, variation, times=program.times))
    return waits


def _jitter_of(prediction: Prediction, variation: Variation, *, times: int) -> dict[str, float]:
    """Return the waiting of a program that runs repeatedly.

    Computation D of K kernels that S collectives interrupt deviates by
    ``kernel_sigma D / sqrt(K S)`` between two of them.
    """
    timeline = prediction.timeline
    if timeline is None:
        return {}
    exposed = timeline.slowest.exposed_ps
    syncs = Counter(
        _axes_of(task, prediction)
        for task in prediction.tasks.tasks
        if isinstance(task, CollectiveTask) and exposed.get(task.id, 0) > 0
    )
    kernels = max(1, sum(isinstance(task, ComputeTask) for task in prediction.tasks.tasks))
    count = sum(syncs.values())
    waits: dict[str, float] = {}
    for (name, members), number in syncs.items():
        deviation = variation.kernel_sigma * prediction.compute_s / sqrt(kernels * count)
        late_s = variation.collective_delay_s * latest_of(members)
        late_s += deviation * (Slowest(sigma=0.1).mean(members) - 1.0) / 0.1
        waits[name] = waits.get(name, 0.0) + times * number * late_s
    return waits


def _axes_of(task: CollectiveTask, prediction: Prediction) -> tuple[str, int]:
    """Return a collective's mesh axes and its number of members."""
    if task.group_table is None:
        members: tuple[int, ...] = tuple(range(prediction.devices))
    else:
        members = prediction.tasks.group_tables[task.group_table][0]
    stride, names = 1, list[str]()
    for name, size in reversed(prediction.mesh):
        if len({member // stride % size for member in members}) > 1:
            names.append(name)
        stride *= size
    return "+".join(reversed(names)) or "devices", len(members)
