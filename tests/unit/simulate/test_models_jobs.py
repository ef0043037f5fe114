from __future__ import annotations

from dataclasses import replace

import pytest

from hespas.errors import ConfigError
from hespas.hardware.interconnect import Dimension, Dimensions, Interconnect, Shape
from hespas.hardware.jobs import Jobs, Placement
from hespas.hardware.links import LinkParameters
from hespas.hardware.system import System, bare_system
from hespas.program.collectives import CollectiveKind
from hespas.simulate.models import ModelChoice, simulate_job
from hespas.simulate.options import Model
from hespas.tasks.graph import CollectiveTask, ComputeTask, TaskGraph

OURS = ModelChoice(model=Model.HESPAS, algorithm="ring")
STEP = TaskGraph(
    name="step",
    device_count=4,
    tasks=(
        ComputeTask(id=1, name="c", depends_on=(), duration_ps=10**9),
        CollectiveTask(
            id=2, name="k", depends_on=(1,), kind=CollectiveKind.ALL_REDUCE,
            size_bytes=4_000_000, group_table=0,
        ),
    ),
    group_tables=(((0, 2), (1, 3)),),
)  # fmt: skip


def of(count: int, placement: Placement = Placement.PACKED) -> System:
    """Return leaves of 4 devices, whose uplinks carry half of what their devices do."""
    tree = Dimension(
        shape=Shape.FAT_TREE,
        size=8,
        parameters=LinkParameters(bandwidth_bytes_per_s=1e9, latency_s=0.0),
        leaf_size=4,
        oversubscription=4.0,
    )
    network = Interconnect(name="tree", fabric=Dimensions(dimensions=(tree,)))
    jobs = Jobs(count=count, placement=placement)
    return replace(bare_system("a tree", interconnect=network), jobs=jobs)


def test_jobs_on_links_of_their_own_do_not_meet() -> None:
    timeline = simulate_job(STEP, of(2), OURS)
    assert timeline.step_time_s == pytest.approx(0.001 + 0.004)
    assert sorted(device for one in timeline.classes for device in one.devices) == [0, 1, 2, 3]
    assert all(one.graph is STEP for one in timeline.classes)
    assert timeline.assumptions[0].startswith("network: 2 jobs share 8 devices (packed)")
    assert timeline.assumptions[1].endswith("step takes as long")


def test_jobs_on_the_same_uplinks_share_them() -> None:
    """Rings of two across leaves: two of each job send 2 MB twice over 1 GB/s of uplinks."""
    timeline = simulate_job(STEP, of(2, Placement.RAIL), OURS)
    assert timeline.step_time_s == pytest.approx(0.001 + 4 * 0.004)
    assert timeline.assumptions[1].endswith("step takes 9 ms rather than 17 ms")


def test_another_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="2: jobs share no links"):
        simulate_job(STEP, of(2), ModelChoice(model=Model.ASTRA_SIM))


def test_devices_of_a_system_are_those_of_a_job() -> None:
    assert of(2).device_count == 4
    assert of(1).device_count == 8
