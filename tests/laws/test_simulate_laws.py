from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from hespas.base.units import PS_PER_S
from hespas.errors import SimulationError
from hespas.hardware.cluster import Cluster, Distribution, Jitter, LinkOverride
from hespas.hardware.interconnect import Shape, dimension_of
from hespas.hardware.presets import load_system
from hespas.hardware.system import RemoteMemory, RemoteMemoryKind, System, bare_system
from hespas.program.collectives import COMMON_KINDS, CollectiveKind
from hespas.simulate.astra.relays import relay_rounds
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.models import ModelChoice, joined_job, simulate_job
from hespas.simulate.options import Model
from hespas.simulate.timeline import Timeline, covered_ps, exposed_parts, union
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    Job,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
    as_job,
)

KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)
DEVICES = 8
TABLES = (((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 4), (1, 5), (2, 6), (3, 7)))
PAIRS = (((0, 1), (2, 3)), tuple((device, (device + 1) % 8) for device in range(8)))


@st.composite
def systems(draw: st.DrawFn) -> System:
    topologies = draw(st.sampled_from(((Shape.SWITCH,), (Shape.FULLY_CONNECTED,) * 2)))
    counts = (8,) if len(topologies) == 1 else (4, 2)
    algorithms = st.sampled_from(("ring", "direct", "direct1"))
    dimensions = [
        dimension_of(
            topology,
            count,
            draw(st.floats(min_value=0.5e9, max_value=900e9)),
            draw(st.floats(min_value=1e-9, max_value=5e-6)),
        )
        for topology, count in zip(topologies, counts, strict=True)
    ]
    return System(
        name="drawn",
        dimensions=tuple(dimensions),
        implementations={
            kind: tuple([draw(algorithms) for _ in dimensions]) for kind in COMMON_KINDS
        },
        endpoint_delay_s=draw(st.integers(min_value=1, max_value=100)) / 1e9,
        preferred_dataset_splits=draw(st.integers(min_value=1, max_value=4)),
        active_chunks_per_dimension=draw(st.integers(min_value=1, max_value=3)),
        collective_optimization=draw(st.sampled_from(("baseline", "localBWAware"))),
        scheduling_policy="LIFO",
        local_memory_bandwidth_bytes_per_s=draw(st.floats(min_value=100e9, max_value=8e12)),
        remote_memory=RemoteMemory(kind=RemoteMemoryKind.NO_MEMORY_EXPANSION),
        options={},
    )


@st.composite
def graphs(
    draw: st.DrawFn, *, has_collectives: bool, has_transfers: bool, step_ps: int = 1
) -> TaskGraph:
    """Draw work that is the same on all devices but for transfers."""
    kinds = ["compute"] + ["everyone", "group"] * has_collectives + ["transfer"] * has_transfers
    tasks: list[Task] = []
    # The lowest id goes first, which need not be the task that comes first.
    for number in draw(st.permutations(range(1, 13)))[: draw(st.integers(1, 12))]:
        known = [task.id for task in tasks]
        before = draw(st.sets(st.sampled_from(known), max_size=3)) if known else set[int]()
        depends_on = tuple(sorted(before))
        kind = draw(st.sampled_from(kinds))
        match kind:
            case "compute":
                tasks.append(draw(computations(number, depends_on, step_ps)))
            case "transfer":
                tasks += draw(transfers(number, depends_on))
            case _:
                table = None if kind == "everyone" else draw(st.sampled_from(range(len(TABLES))))
                tasks.append(draw(collectives(number, depends_on, table)))
    return TaskGraph(name="g", device_count=DEVICES, tasks=tuple(tasks), group_tables=TABLES)


@st.composite
def computations(draw: st.DrawFn, number: int, depends_on: tuple[int, ...], step_ps: int) -> Task:
    most = 10**8 if step_ps == 1 else 4
    duration_ps = step_ps * draw(st.integers(min_value=0, max_value=most))
    return ComputeTask(id=number, name="c", depends_on=depends_on, duration_ps=duration_ps)


@st.composite
def transfers(draw: st.DrawFn, number: int, depends_on: tuple[int, ...]) -> list[Task]:
    pairs = draw(st.sampled_from(PAIRS))
    size_bytes = draw(st.integers(min_value=1, max_value=2**20))
    send = SendTask(
        id=number, name="s", depends_on=depends_on, pairs=pairs, size_bytes=size_bytes, tag=number
    )
    receive = ReceiveTask(
        id=100 + number, name="r", depends_on=(), pairs=pairs, size_bytes=size_bytes, tag=number
    )
    return [send, receive]


@st.composite
def collectives(
    draw: st.DrawFn, number: int, depends_on: tuple[int, ...], table: int | None
) -> Task:
    return CollectiveTask(
        id=number,
        name="k",
        depends_on=depends_on,
        kind=draw(st.sampled_from(KINDS)),
        size_bytes=draw(st.integers(min_value=4, max_value=2**30)),
        group_table=table,
    )


def critical_path_ps(graph: TaskGraph, timeline: Timeline) -> int:
    """Return the longest chain, with each task as long as it took."""
    (nodes,) = {id(one): one.nodes for one in timeline.classes}.values()
    reached: dict[int, int] = {}
    for task in graph.tasks:
        start, end = nodes[task.id]
        before = max((reached[other] for other in task.depends_on), default=0)
        reached[task.id] = before + end - start
    return max(reached.values())


@settings(deadline=None)
@given(graph=graphs(has_collectives=True, has_transfers=False), system=systems())
def test_a_step_takes_no_less_than_its_parts(graph: TaskGraph, system: System) -> None:
    timeline = simulate(graph, system)

    (one,) = timeline.classes
    assert timeline.finish_ps >= critical_path_ps(graph, timeline)
    assert timeline.finish_ps >= one.compute_ps
    assert timeline.finish_ps >= one.communication_ps
    assert one.compute_ps == sum(
        task.duration_ps for task in graph.tasks if isinstance(task, ComputeTask)
    )
    # With one slot of each kind nothing but dependencies makes a device idle: it never is.
    assert one.finish_ps == one.compute_ps + one.communication_ps - one.overlap_ps
    assert sum(one.exposed_ps.values()) == one.communication_ps - one.overlap_ps


@settings(deadline=None)
@given(graph=graphs(has_collectives=False, has_transfers=True), system=systems())
def test_tasks_wait_for_what_they_depend_on(graph: TaskGraph, system: System) -> None:
    timeline = simulate(graph, system)

    assert sorted(d for one in timeline.classes for d in one.devices) == list(range(DEVICES))
    for one in timeline.classes:
        for task in graph.tasks:
            for other in task.depends_on:
                if task.id in one.nodes and other in one.nodes:
                    assert one.nodes[task.id][0] >= one.nodes[other][1]


@settings(deadline=None)
@given(graph=graphs(has_collectives=True, has_transfers=True), system=systems())
def test_folding_changes_nothing(graph: TaskGraph, system: System) -> None:
    assert outcome(graph, system, is_folded=True) == outcome(graph, system, is_folded=False)


@settings(deadline=None, max_examples=300)
@given(graph=graphs(has_collectives=True, has_transfers=True, step_ps=100_000))
def test_folding_changes_nothing_where_much_happens_at_once(graph: TaskGraph) -> None:
    # A hop and an endpoint take 100 ns, and all else is a multiple of it, or nothing.
    system = plain_system(latency_s=100e-9, bytes_per_s=1e18)

    assert outcome(graph, system, is_folded=True) == outcome(graph, system, is_folded=False)


@settings(deadline=None)
@given(graph=graphs(has_collectives=True, has_transfers=True), system=systems())
def test_the_closed_formulas_give_what_the_events_do(graph: TaskGraph, system: System) -> None:
    assert outcome(graph, system, is_folded=True) == outcome(graph, system, by_events=True)


@settings(deadline=None, max_examples=300)
@given(graph=graphs(has_collectives=True, has_transfers=True, step_ps=100_000))
def test_closed_formulas_and_events_agree_where_much_happens_at_once(graph: TaskGraph) -> None:
    system = plain_system(latency_s=100e-9, bytes_per_s=1e18)

    assert outcome(graph, system, is_folded=True) == outcome(graph, system, by_events=True)


def test_who_comes_long_before_the_others_starts_nothing_in_their_place() -> None:
    # Devices 1 and 3 enter task 3 at once, 0 and 2 after two sends: till then nothing starts.
    pairs = ((0, 1), (2, 3))
    transfers = [
        kind(id=number, name="t", depends_on=(), pairs=pairs, size_bytes=1, tag=tag)
        for tag in (2, 1)
        for kind, number in ((SendTask, tag), (ReceiveTask, 100 + tag))
    ]
    collectives = [
        CollectiveTask(
            id=number,
            name="k",
            depends_on=depends_on,
            kind=kind,
            size_bytes=4,
            group_table=table,
        )
        for number, depends_on, kind, table in (
            (3, (), CollectiveKind.ALL_GATHER, 0),
            (4, (2, 102), CollectiveKind.ALL_REDUCE, None),
            (5, (), CollectiveKind.ALL_REDUCE, None),
        )
    ]
    graph = TaskGraph(
        name="g",
        device_count=DEVICES,
        tasks=(*transfers[:2], *collectives[:2], *transfers[2:], collectives[2]),
        group_tables=(((0, 1, 2, 3), (4, 5, 6, 7)),),
    )
    system = plain_system(latency_s=100e-9, bytes_per_s=1e18)

    assert simulate(graph, system).step_time_s == 1320e-9
    assert outcome(graph, system, is_folded=True) == outcome(graph, system, by_events=True)


@st.composite
def clusters(draw: st.DrawFn, *, model: Model) -> Cluster:
    devices = st.integers(0, DEVICES - 1)
    jitters = st.builds(
        Jitter,
        seed=st.integers(0, 9),
        sigma=st.sampled_from((0.01, 0.5)),
        distribution=st.sampled_from(Distribution),
    )
    link = LinkOverride(link="dim0.up.0", bandwidth_scale=0.5, extra_latency_s=1e-6)
    return Cluster(
        compute_scales=draw(st.dictionaries(devices, st.sampled_from((0.5, 1.3, 3.0)))),
        delays_s=draw(st.dictionaries(devices, st.sampled_from((1e-9, 1e-4)))),
        jitter=draw(st.none() | jitters),
        links=(link,) if model is Model.HESPAS and draw(st.booleans()) else (),
    )


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Draw a program of all devices, or two with half of the devices each."""
    graph = draw(graphs(has_collectives=True, has_transfers=True))
    if draw(st.booleans()):
        return as_job(graph)
    halves = [
        (as_job(replace(in_a_row(half), device_count=4, group_tables=())), devices)
        for half, devices in ((alone(graph, 1), (0, 1, 2, 3)), (alone(graph, 2), (4, 5, 6, 7)))
    ]
    return joined_job(halves, DEVICES, location="drawn")


def alone(graph: TaskGraph, factor: int) -> TaskGraph:
    """Return the computations and the collectives of all devices, the former slower."""
    tasks = [
        task
        for task in slower(graph, factor).tasks
        if isinstance(task, ComputeTask)
        or (isinstance(task, CollectiveTask) and task.group_table is None)
    ]
    return replace(graph, tasks=tuple(tasks))


SWITCHED = load_system("V100_32GB_8GPU")


@settings(deadline=None, max_examples=200)
@given(data=st.data(), job=jobs(), model=st.sampled_from(Model))
def test_the_parts_of_a_step_add_up_to_it_on_any_cluster(
    data: st.DataObject, job: Job, model: Model
) -> None:
    choice = ModelChoice(model=model, cluster=data.draw(clusters(model=model)))
    try:
        specified = simulate_job(job, SWITCHED, replace(choice, cluster=linked(choice.cluster)))
        timeline = simulate_job(job, SWITCHED, choice)
    except SimulationError:
        return

    parts = timeline.specified
    known_ps = parts.compute_ps + parts.exposed_communication_ps
    assert known_ps + timeline.straggler_ps == timeline.finish_ps
    # What the devices of the cluster do to the step is in the stragglers' part alone.
    assert parts == specified.slowest
    assert timeline.straggler_ps == timeline.finish_ps - specified.finish_ps
    assert parts.compute_ps in {
        sum(task.duration_ps for task in graph.tasks if isinstance(task, ComputeTask))
        for graph in job.graphs
    }
    assert parts.exposed_communication_ps >= 0


def linked(cluster: Cluster | None) -> Cluster | None:
    """Return a cluster of which only the links differ."""
    return None if cluster is None or not cluster.links else Cluster(links=cluster.links)


@settings(deadline=None)
@given(
    graph=graphs(has_collectives=False, has_transfers=False),
    scales=st.dictionaries(st.integers(0, 7), st.sampled_from((1.5, 2.0))),
    delays_ns=st.dictionaries(st.integers(0, 7), st.integers(1, 1000)),
    model=st.sampled_from(Model),
)
def test_where_nothing_communicates_the_last_device_is_the_straggler(
    graph: TaskGraph, scales: dict[int, float], delays_ns: dict[int, int], model: Model
) -> None:
    delays_s = {device: delay / 1e9 for device, delay in delays_ns.items()}
    cluster = Cluster(compute_scales=scales, delays_s=delays_s)
    timeline = simulate_job(graph, SWITCHED, ModelChoice(model=model, cluster=cluster))
    parts = timeline.specified
    durations_ps = [task.duration_ps for task in graph.tasks if isinstance(task, ComputeTask)]

    last_ps = max(
        round(delays_s.get(device, 0.0) * PS_PER_S)
        + sum(round(duration * scales.get(device, 1.0)) for duration in durations_ps)
        for device in range(DEVICES)
    )

    assert parts.exposed_communication_ps == 0
    assert timeline.straggler_ps == last_ps - sum(durations_ps)


def slower(graph: TaskGraph, factor: int) -> TaskGraph:
    tasks = [
        replace(task, duration_ps=factor * task.duration_ps)
        if isinstance(task, ComputeTask)
        else task
        for task in graph.tasks
    ]
    return replace(graph, tasks=tuple(tasks))


def in_a_row(graph: TaskGraph) -> TaskGraph:
    """Return a graph in which each task waits for the one before it."""
    tasks = [
        replace(task, id=number, depends_on=(number - 1,) if number else ())
        for number, task in enumerate(graph.tasks)
    ]
    return replace(graph, tasks=tuple(tasks))


@st.composite
def unequal_jobs(draw: st.DrawFn, *, has_transfers: bool, is_row: bool) -> Job:
    """Draw work whose devices compute at up to three different speeds."""
    graph = draw(graphs(has_collectives=True, has_transfers=has_transfers, step_ps=100_000))
    graph = in_a_row(graph) if is_row else graph
    of_device = draw(st.lists(st.integers(0, 2), min_size=DEVICES, max_size=DEVICES))
    return Job(
        graphs=tuple([slower(graph, factor) for factor in (1, 2, 7)]),
        graph_of_device=tuple(of_device),
    )


@st.composite
def whole_systems(draw: st.DrawFn) -> System:
    """Draw a system whose collectives are not cut into chunks."""
    system = draw(systems())
    algorithms = st.sampled_from(("ring", "direct", "halvingDoubling"))
    names = {kind: tuple([draw(algorithms) for _ in system.dimensions]) for kind in COMMON_KINDS}
    names[CollectiveKind.ALL_TO_ALL] = ("ring",) * len(system.dimensions)
    return replace(system, implementations=names, preferred_dataset_splits=1)


@settings(deadline=None, max_examples=200)
@given(job=unequal_jobs(has_transfers=False, is_row=True), system=whole_systems())
def test_unequal_devices_in_a_row_do_what_the_events_say(job: Job, system: System) -> None:
    assert outcome(job, system) == outcome(job, system, by_events=True)


@settings(deadline=None, max_examples=200)
@given(job=unequal_jobs(has_transfers=True, is_row=False), system=whole_systems())
def test_unequal_devices_do_what_the_events_say(job: Job, system: System) -> None:
    assert outcome(job, system) == outcome(job, system, by_events=True)


def outcome(
    graph: Job | TaskGraph, system: System, *, is_folded: bool = True, by_events: bool = False
) -> object:
    try:
        timeline = simulate(graph, system, is_folded=is_folded, by_events=by_events)
    except SimulationError:
        return None
    assert is_folded or len(timeline.classes) == DEVICES
    return timeline.as_json(with_nodes=True)


def plain_system(*, latency_s: float, bytes_per_s: float) -> System:
    dimension = dimension_of(Shape.FULLY_CONNECTED, DEVICES, bytes_per_s, latency_s)
    return replace(
        bare_system("plain", dimensions=(dimension,)),
        implementations=dict.fromkeys(COMMON_KINDS, ("direct",)),
        endpoint_delay_s=100e-9,
    )


@settings(deadline=None)
@given(
    task=collectives(1, (), None) | collectives(1, (), 0) | collectives(1, (), 1), system=systems()
)
def test_a_collective_is_not_slower_on_a_faster_network(task: Task, system: System) -> None:
    graph = TaskGraph(name="g", device_count=DEVICES, tasks=(task,), group_tables=TABLES)
    faster = [
        dimension_of(
            dimension.shape,
            dimension.size,
            2 * dimension.bandwidth_bytes_per_s,
            dimension.latency_s,
        )
        for dimension in system.dimensions
    ]

    before = simulate(graph, system).finish_ps

    assert simulate(graph, replace(system, dimensions=tuple(faster))).finish_ps <= before


@given(members=st.integers(min_value=2, max_value=512), each=st.integers(min_value=1, max_value=99))
def test_a_ring_all_reduce_moves_all_but_a_share_twice(members: int, each: int) -> None:
    size = members * each

    kind = CollectiveKind.ALL_REDUCE
    sent = sum(one.repeats * one.size_bytes for one in relay_rounds("ring", kind, members, size))

    assert sent == Fraction(2 * (members - 1), members) * size


intervals = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda pair: (pair[0], sum(pair))),
    max_size=8,
)


@given(hiding=intervals, shown=intervals)
def test_exposed_parts_are_what_is_left(
    hiding: list[tuple[int, int]], shown: list[tuple[int, int]]
) -> None:
    hidden = {tick for start, end in hiding for tick in range(start, end)}
    parts = exposed_parts(union(hiding), shown)

    for (start, end), exposed in zip(shown, parts, strict=True):
        ticks = [tick for a, b in exposed for tick in range(a, b)]
        assert ticks == [tick for tick in range(start, end) if tick not in hidden]
    assert covered_ps(hiding) == len(hidden)
