"""What holds at scale: for devices that are not equal, for spares, and for runs that shrink."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hespas.hardware.interconnect import Dimension, Dimensions, Interconnect, Shape
from hespas.hardware.jobs import Jobs, Placement
from hespas.hardware.links import LinkParameters
from hespas.hardware.variation import SlowDevices, Slowest
from hespas.prediction.figures.variation import Stages, longer_by, uniform_draws
from hespas.prediction.goodput import LongRun, waiting_share
from hespas.prediction.hazards import Cause, Hazards, Infant, Retries
from hespas.prediction.long_run import played
from hespas.program.collectives import CollectiveKind
from hespas.simulate.flow.simulate import simulate_flow
from hespas.simulate.models import joined_job
from hespas.tasks.graph import CollectiveTask, ComputeTask, Job, Task, TaskGraph, as_job

ROUNDING = 1e-6
"""Of a step's seconds: factors are interpolated."""
DAY_S = 86_400.0
MOST_ROUNDED_PS = 100
"""Shares of links are whole numbers."""


@st.composite
def stages(draw: st.DrawFn) -> Stages:
    """Draw what stages compute, as parts of a second, and how many devices share each."""
    count = draw(st.integers(1, 6))
    computed = draw(st.lists(st.floats(0.01, 1.0), min_size=count, max_size=count))
    rest = draw(st.lists(st.floats(0.0, 0.5), min_size=count, max_size=count))
    return Stages(
        compute_s=tuple(computed),
        busy_s=tuple([one + other for one, other in zip(computed, rest, strict=True)]),
        ramp=draw(st.sampled_from((0.0, 0.01, 0.25, 1.0))) if count > 1 else 0.0,
        deviation=0.0,
        inner=(("tp", draw(st.sampled_from((1, 2, 8, 4096)))),),
        copies=(("data", draw(st.integers(1, 4))),),
    )


def waiting_s(one: Stages, slowest: Slowest, seed: int) -> float:
    uniform = uniform_draws(seed, draws=50, copies=one.copies[0][1], stages=len(one.busy_s))
    return float(longer_by(slowest.factors(uniform, one.group), one).max(axis=1).mean())


@settings(deadline=None, max_examples=60)
@given(one=stages(), sigmas=st.tuples(st.floats(0, 0.1), st.floats(0, 0.1)), seed=st.integers(0, 9))
def test_more_variation_never_shortens_a_step(
    one: Stages, sigmas: tuple[float, float], seed: int
) -> None:
    less, more = [waiting_s(one, Slowest(sigma=sigma), seed) for sigma in sorted(sigmas)]
    assert less >= -ROUNDING
    assert more >= less - ROUNDING


@settings(deadline=None, max_examples=20)
@given(one=stages(), factors=st.tuples(st.floats(1, 3), st.floats(1, 3)), seed=st.integers(0, 9))
def test_slower_devices_never_shorten_a_step(
    one: Stages, factors: tuple[float, float], seed: int
) -> None:
    less, more = [
        waiting_s(one, Slowest(sigma=0.01, slow=SlowDevices(share=0.1, factor=factor)), seed)
        for factor in sorted(factors)
    ]
    assert more >= less - ROUNDING


@settings(deadline=None, max_examples=20)
@given(one=stages(), seed=st.integers(0, 9))
def test_no_variation_adds_nothing(one: Stages, seed: int) -> None:
    assert waiting_s(one, Slowest(sigma=0.0), seed) == 0.0


@st.composite
def hazards(draw: st.DrawFn) -> Hazards:
    """Draw what interrupts a run; nodes that are not equal may hold a seed up by chance."""
    causes = [
        Cause(
            name=str(number),
            interval_s=draw(st.sampled_from((4e3, 3e4, 4e5))),
            nodes=draw(st.sampled_from((0, 1, 8))),
            detection_s=draw(st.sampled_from((0.0, 900.0))),
            planned=draw(st.booleans()),
        )
        for number in range(draw(st.integers(1, 3)))
    ]
    return Hazards(
        causes=causes,
        nodes=100,
        infant=draw(st.sampled_from((None, Infant(factor=3, days=2)))),
        retries=draw(st.sampled_from((None, Retries(success=0.5, interval_s=660)))),
    )


RUN = LongRun(failure_interval_s=10_000, start_s=300, load_s=60, save_s=30, interval_s=600)


@settings(deadline=None, max_examples=30)
@given(
    what=hazards(),
    repair_s=st.sampled_from((3e3, 9e4, 9e5)),
    spares=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    seed=st.integers(0, 99),
)
def test_more_spares_never_lower_the_goodput_of_any_seed(
    what: Hazards, repair_s: float, spares: tuple[int, int], seed: int
) -> None:
    few, more = [
        played(
            replace(RUN, repair_s=repair_s, spares=one), what, run_s=4 * DAY_S, seeds=10, seed=seed
        ).goodput
        for one in sorted(spares)
    ]
    assert (more >= few - ROUNDING).all()


@given(
    repair_s=st.floats(1.0, 1e7),
    interval_s=st.floats(100.0, 1e7),
    spares=st.tuples(st.integers(0, 200), st.integers(0, 200)),
)
def test_more_spares_never_lower_the_goodput_of_the_closed_form(
    repair_s: float, interval_s: float, spares: tuple[int, int]
) -> None:
    few, more = [
        waiting_share(replace(RUN, failure_interval_s=interval_s, repair_s=repair_s, spares=one))
        for one in sorted(spares)
    ]
    assert more <= few


NODE, NODES = 2, 4


@st.composite
def fabrics(draw: st.DrawFn) -> Interconnect:
    """Draw nodes of two on switches, a torus or a tree with few spines."""
    shape = draw(st.sampled_from((Shape.SWITCH, Shape.RING, Shape.FAT_TREE)))
    is_tree = shape is Shape.FAT_TREE
    link = LinkParameters(bandwidth_bytes_per_s=1e9, latency_s=draw(st.sampled_from((0.0, 1e-6))))
    between = Dimension(
        shape=shape,
        size=NODES,
        parameters=link,
        leaf_size=2 if is_tree else None,
        oversubscription=draw(st.sampled_from((1.0, 4.0))) if is_tree else 1.0,
        spines=draw(st.sampled_from((None, 2))) if is_tree else None,
        seed=draw(st.integers(0, 3)),
    )
    node = Dimension(shape=Shape.SWITCH, size=NODE, parameters=link)
    return Interconnect(name="drawn", fabric=Dimensions(dimensions=(node, between)))


@st.composite
def steps(draw: st.DrawFn) -> Job:
    """Draw computations and collectives of four devices, one after the other."""
    tables = (((0, 1, 2, 3),), ((0, 1), (2, 3)), ((0, 2), (1, 3)))
    tasks: list[Task] = []
    for number in range(draw(st.integers(1, 5))):
        before = (number - 1,) if number else ()
        if draw(st.booleans()):
            duration_ps = draw(st.integers(0, 4)) * 10**9
            compute = ComputeTask(id=number, name="c", depends_on=before, duration_ps=duration_ps)
            tasks.append(compute)
            continue
        tasks.append(
            CollectiveTask(
                id=number,
                name="k",
                depends_on=before,
                kind=draw(st.sampled_from((CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER))),
                size_bytes=draw(st.sampled_from((1000, 4_000_000))),
                group_table=draw(st.sampled_from(range(len(tables)))),
            )
        )
    return as_job(TaskGraph(name="job", device_count=4, tasks=tuple(tasks), group_tables=tables))


IDLE = as_job(TaskGraph(name="idle", device_count=4, tasks=(), group_tables=()))


@settings(deadline=None, max_examples=100)
@given(job=steps(), other=steps(), network=fabrics(), placement=st.sampled_from(Placement))
def test_another_job_on_a_fabric_never_speeds_one_up(
    job: Job, other: Job, network: Interconnect, placement: Placement
) -> None:
    own, rest = Jobs(count=2, placement=placement).devices(network)

    def finish_ps(beside: Job) -> int:
        joined = joined_job([(job, own), (beside, rest)], network.device_count, location="here")
        timeline = simulate_flow(joined, network)
        return max(timeline.of_device(device).finish_ps for device in own)

    assert finish_ps(other) >= finish_ps(IDLE) - MOST_ROUNDED_PS
