from __future__ import annotations

from dataclasses import replace

import pytest

from hespas.errors import ConfigError, SimulationError
from hespas.hardware.cluster import Cluster, Distribution, Jitter, LinkOverride
from hespas.hardware.presets import load_system
from hespas.program.collectives import CollectiveKind
from hespas.simulate.models import ModelChoice, joined_job, on_cluster, simulate_job
from hespas.simulate.options import ContentionModel, Model
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    ReceiveTask,
    SendTask,
    Task,
    TaskGraph,
    spmd_job,
)

SYSTEM = load_system("V100_32GB_4GPU")
MS = 10**9
MODELS = [ModelChoice(model=model) for model in Model]


def graph(*more: Task, devices: int = 4, tables: object = ()) -> TaskGraph:
    compute = ComputeTask(id=1, name="c", depends_on=(), duration_ps=10 * MS)
    return TaskGraph(
        name="g",
        device_count=devices,
        tasks=(compute, *more),
        group_tables=tables,  # pyright: ignore[reportArgumentType] - tuples of tuples
    )


REDUCE = CollectiveTask(
    id=2,
    name="k",
    depends_on=(1,),
    kind=CollectiveKind.ALL_REDUCE,
    size_bytes=2**20,
    group_table=None,
)


def with_cluster(choice: ModelChoice, cluster: Cluster) -> ModelChoice:
    return ModelChoice(model=choice.model, cluster=cluster)


@pytest.mark.parametrize("choice", MODELS)
def test_a_slow_and_a_late_device_hold_up_the_others(choice: ModelChoice) -> None:
    cluster = Cluster(compute_scales={2: 1.5}, delays_s={1: 0.001, 2: 0.002})

    plain = simulate_job(graph(REDUCE), SYSTEM, choice)
    timeline = simulate_job(graph(REDUCE), SYSTEM, with_cluster(choice, cluster))

    assert timeline.of_device(0).nodes[1] == (0, 10 * MS)
    assert timeline.of_device(1).nodes[1] == (MS, 11 * MS)
    assert timeline.of_device(2).nodes[1] == (2 * MS, 17 * MS)
    assert timeline.finish_ps >= plain.finish_ps + 7 * MS
    if choice.model is Model.HESPAS:
        assert timeline.finish_ps == plain.finish_ps + 7 * MS
        assert [one.devices for one in timeline.classes] == [(0, 3), (1,), (2,)]


@pytest.mark.parametrize("distribution", Distribution)
def test_jitter_is_drawn_for_each_device_from_the_seed(distribution: Distribution) -> None:
    def ends(seed: int) -> list[int]:
        jitter = Jitter(seed=seed, sigma=0.1, distribution=distribution)
        job = on_cluster(spmd_job(graph(devices=200)), Cluster(jitter=jitter))
        tasks = [job.graphs[index].tasks[0] for index in job.graph_of_device]
        return [task.duration_ps for task in tasks if isinstance(task, ComputeTask)]

    drawn = ends(1)

    assert drawn == ends(1)
    assert drawn != ends(2)
    assert len(set(drawn)) == 200
    mean = 1.1 if distribution is Distribution.EXPONENTIAL else 1.0
    assert sum(drawn) / 200 / (10 * MS) == pytest.approx(mean, abs=0.03)


def test_astra_sim_has_no_links_that_differ() -> None:
    cluster = Cluster(links=(LinkOverride(link="dim0.to.0.1", bandwidth_scale=0.5),))

    with pytest.raises(SimulationError, match="no model in ASTRA-sim"):
        simulate_job(graph(REDUCE), SYSTEM, ModelChoice(cluster=cluster))


@pytest.mark.parametrize("choice", MODELS)
def test_slow_devices_are_refused_where_the_roofline_gives_durations(choice: ModelChoice) -> None:
    priced = {"roofline-enabled": 1, "peak-perf": 100}
    system = replace(SYSTEM, options={**SYSTEM.options, **priced})
    cluster = Cluster(compute_scales={2: 1.5})

    with pytest.raises(SimulationError, match="slow devices have no effect on durations"):
        simulate_job(graph(REDUCE), system, with_cluster(choice, cluster))


@pytest.mark.parametrize("choice", MODELS)
def test_absent_devices_are_refused(choice: ModelChoice) -> None:
    cluster = Cluster(compute_scales={4: 2.0})

    with pytest.raises(SimulationError, match="device 4 is not among the 4"):
        simulate_job(graph(REDUCE), SYSTEM, with_cluster(choice, cluster))


@pytest.mark.parametrize(
    "given",
    [
        {"network": ContentionModel.CONGESTION_AWARE},
        {"queues_per_dimension": 2},
        {"rendezvous": True},
        {"injection_scale": 2.0},
    ],
    ids=str,
)
def test_what_is_for_the_other_model_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="no effect on the model hespas"):
        ModelChoice(model=Model.HESPAS, **given)  # pyright: ignore[reportArgumentType] - by name


def test_algorithms_are_not_for_astra_sim() -> None:
    with pytest.raises(ConfigError, match="algorithm has no effect on the model astra-sim"):
        ModelChoice(algorithm="ring")


@pytest.mark.parametrize("choice", MODELS)
def test_programs_on_devices_of_their_own(choice: ModelChoice) -> None:
    small = graph(REDUCE, devices=2)
    job = joined_job([(spmd_job(small), (1, 3)), (spmd_job(small), (0, 2))], 4, location="p")

    timeline = simulate_job(job, SYSTEM, choice)

    assert timeline.finish_ps > 10 * MS
    assert job.graphs[0].group_tables == (((1, 3),),)
    assert job.graph_of_device == (1, 0, 1, 0)


@pytest.mark.parametrize("choice", MODELS)
def test_programs_that_name_all_devices_can_send_to_each_other(choice: ModelChoice) -> None:
    pairs = ((0, 2), (1, 3))
    send = SendTask(id=2, name="s", depends_on=(1,), pairs=pairs, size_bytes=2**20, tag=1)
    receive = ReceiveTask(id=3, name="r", depends_on=(), pairs=pairs, size_bytes=2**20, tag=1)
    stages = [(spmd_job(graph(send)), (0, 1)), (spmd_job(graph(receive)), (2, 3))]

    timeline = simulate_job(joined_job(stages, 4, location="p"), SYSTEM, choice)

    assert timeline.of_device(3).nodes[3][1] == timeline.of_device(1).nodes[2][1] > 10 * MS


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([(2, (0, 1))], "device 2 has no program"),
        ([(2, (0, 1)), (2, (1, 2))], "device 1 has two programs"),
        ([(3, (0, 1))], "for 3 devices runs on 2"),
    ],
)
def test_programs_must_fit(parts: list[tuple[int, tuple[int, ...]]], message: str) -> None:
    jobs = [(spmd_job(graph(devices=count)), devices) for count, devices in parts]

    with pytest.raises(SimulationError, match=message):
        joined_job(jobs, 4, location="p")
