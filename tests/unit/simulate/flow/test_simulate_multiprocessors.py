"""Computation beside collectives runs on the multiprocessors that their channels leave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flow_jobs import collective, graph
from hespas.hardware.interconnect import Dimension, Dimensions, Interconnect, Shape
from hespas.hardware.links import Link, LinkParameters, MeasuredCollective
from hespas.program.collectives import CollectiveKind
from hespas.simulate.flow.simulate import simulate_flow
from hespas.simulate.rounds import expanded, joined_graph
from hespas.tasks.graph import ComputeTask, TaskGraph

MS = 10**9
SHARE = 24 / 96


def network(multiprocessors: int | None) -> Interconnect:
    """Return four GPUs whose all-gather of 4 MB takes 4 ms."""
    fit = MeasuredCollective(
        algorithm="ring",
        protocol="Simple",
        up_to_bytes=None,
        latency_s=0.0,
        bandwidth_bytes_per_s=1e9,
    )
    link = Link(
        name="NVLink",
        source="made up",
        multiprocessors=multiprocessors,
        collectives={"all_gather": {4: (fit,)}},
    )
    parameters = LinkParameters(bandwidth_bytes_per_s=1e9, latency_s=0.0)
    dimension = Dimension(shape=Shape.SWITCH, size=4, parameters=parameters, measured=link)
    return Interconnect(name="node", fabric=Dimensions(dimensions=(dimension,)))


def compute(number: int, duration_ps: int, arithmetic_share: float = 1.0) -> ComputeTask:
    return ComputeTask(
        id=number,
        name=f"compute {number}",
        depends_on=(),
        duration_ps=duration_ps,
        arithmetic_share=arithmetic_share,
    )


GATHER = replace(collective(9, kind=CollectiveKind.ALL_GATHER, size_bytes=1_000_000))


def step(*tasks: ComputeTask) -> TaskGraph:
    return graph(*tasks, GATHER, devices=4)


@pytest.mark.parametrize("arithmetic_share", [0.0, 0.5, 1.0])
def test_computation_is_slower_while_a_collective_runs(arithmetic_share: float) -> None:
    """In the 4 ms of the collective it does 4 / slowdown ms of its 6 ms, and the rest after."""
    slowdown = 1 + arithmetic_share * (1 / (1 - SHARE) - 1)
    timeline = simulate_flow(step(compute(1, 6 * MS, arithmetic_share)), network(96))
    assert timeline.finish_ps == pytest.approx((4 + 6 - 4 / slowdown) * MS, abs=2)
    device = timeline.slowest
    assert device.compute_ps == 6 * MS
    assert device.slowed_ps == timeline.finish_ps - 6 * MS == device.exposed_communication_ps


def test_a_computation_that_ends_within_the_collective_is_slowed_for_all_of_it() -> None:
    timeline = simulate_flow(step(compute(1, 2 * MS)), network(96))
    assert timeline.slowest.nodes[1][1] == pytest.approx(2 * MS / (1 - SHARE), abs=2)
    assert timeline.finish_ps == 4 * MS


def test_links_without_multiprocessors_slow_nothing() -> None:
    timeline = simulate_flow(step(compute(1, 6 * MS)), network(None))
    assert (timeline.finish_ps, timeline.slowest.slowed_ps) == (6 * MS, 0)
    assert not any("contention" in text for text in timeline.assumptions)


def test_more_multiprocessors_never_lengthen_a_step() -> None:
    times = [
        simulate_flow(step(compute(1, 5 * MS)), network(count)).finish_ps
        for count in (32, 48, 96, 132, 10_000)
    ]
    assert times == sorted(times, reverse=True)


def test_equal_devices_are_simulated_once_with_the_same_result() -> None:
    job = step(compute(1, 6 * MS))
    every = simulate_flow(job, network(96), is_folded=False)
    assert simulate_flow(job, network(96)).finish_ps == every.finish_ps
    assert {one.slowed_ps for one in every.classes} == {every.slowest.slowed_ps}


def test_a_joined_row_of_computations_takes_as_long_as_its_parts() -> None:
    first, second = compute(1, 1 * MS, 1.0), replace(compute(2, 5 * MS, 1.0), depends_on=(1,))
    job = step(first, second)
    joined = joined_graph(job)
    alone, together = (simulate_flow(each, network(96)) for each in (job, joined.graph))
    assert together.finish_ps == pytest.approx(alone.finish_ps, abs=4)
    shown = expanded(together, joined).slowest.nodes
    assert shown[1][0] == 0
    assert shown[1][1] == shown[2][0]
    assert shown[2][1] == together.slowest.nodes[2][1]
