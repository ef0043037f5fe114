from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hespas.backends.network_program import (
    LinkRate,
    check_answer,
    least_of_job_ps,
    least_of_ranks_ps,
)
from hespas.backends.rank_programs import Action, Exchange, Transfer, Wait
from hespas.backends.result import DeviceFigures, ExternalResult
from hespas.errors import ImpossibleTimeError, SimulationError
from hespas.hardware.interconnect import Shape, dimension_of
from hespas.hardware.system import ASTRA_SHAPES, bare_system
from hespas.program.collectives import COMMON_KINDS, CollectiveKind
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.options import ContentionModel
from hespas.tasks.graph import CollectiveTask, ComputeTask, TaskGraph, as_job

LINK = LinkRate(bytes_per_s=1e9, latency_s=1e-6)
US = 10**6
"""A microsecond in ps."""


def exchange(
    *, to: tuple[int, ...] = (), of: tuple[int, ...] = (), size_bytes: int = 1000
) -> Exchange:
    def transfers(peers: tuple[int, ...]) -> tuple[Transfer, ...]:
        return tuple([Transfer(peer=peer, size_bytes=size_bytes, tag=0) for peer in peers])

    return Exchange(sends=transfers(to), receives=transfers(of))


def test_computation_and_messages_follow_each_other() -> None:
    """5 us of computation, 1000 bytes at 1 GB/s, 1 us of latency, 3 us of computation."""
    ranks: list[list[Action]] = [
        [Wait(duration_ps=5 * US), exchange(to=(1,), of=(1,)), Wait(duration_ps=3 * US)],
        [Wait(duration_ps=5 * US), exchange(to=(0,), of=(0,)), Wait(duration_ps=3 * US)],
    ]
    assert least_of_ranks_ps(ranks, LINK) == 10 * US


def test_a_message_leaves_when_its_sender_is_there() -> None:
    ranks: list[list[Action]] = [[Wait(duration_ps=9 * US), exchange(to=(1,))], [exchange(of=(0,))]]
    assert least_of_ranks_ps(ranks, LINK) == 11 * US


def test_a_message_may_be_there_before_its_receiver() -> None:
    """It was under way while the receiver computed."""
    ranks: list[list[Action]] = [[exchange(to=(1,))], [Wait(duration_ps=9 * US), exchange(of=(0,))]]
    assert least_of_ranks_ps(ranks, LINK) == 9 * US


def test_what_comes_at_once_shares_the_receivers_link() -> None:
    ranks = [[exchange(of=(1, 2, 3))], *([[exchange(to=(0,))]] * 3)]
    assert least_of_ranks_ps(ranks, LINK) == 4 * US


def test_what_a_rank_sends_passes_its_link() -> None:
    ranks = [[exchange(to=(1, 2, 3))], *([[exchange(of=(0,))]] * 3)]
    assert least_of_ranks_ps(ranks, LINK) == 3 * US


def test_ranks_that_wait_for_each_other_are_an_error() -> None:
    ranks: list[list[Action]] = [
        [exchange(of=(1,)), exchange(to=(1,))],
        [exchange(of=(0,)), exchange(to=(0,))],
    ]
    with pytest.raises(SimulationError, match="waits forever"):
        least_of_ranks_ps(ranks, LINK)


@pytest.mark.parametrize(("answer_ns", "is_refused"), [(1000, False), (990, False), (985, True)])
def test_an_answer_is_refused_where_rounding_does_not_explain_it(
    answer_ns: int, is_refused: bool
) -> None:
    result = ExternalResult(engine="sst", devices={}, step_ns=answer_ns)
    if not is_refused:
        assert check_answer(result, US) is result
        return
    with pytest.raises(ImpossibleTimeError, match=r"sst answers 985 ns, .* take 1 us at least"):
        check_answer(result, US)


def test_the_last_device_counts() -> None:
    figures = {0: DeviceFigures(finish_ns=5, exposed_communication_ns=0)}
    with pytest.raises(ImpossibleTimeError):
        check_answer(ExternalResult(engine="astra-sim", devices=figures), US)


def of_graph(
    *tasks: Any, topology: Shape = Shape.SWITCH, options: Mapping[str, object] | None = None
) -> float:
    dimension = dimension_of(topology, 5, 1e9, 1e-6)
    system = replace(bare_system("s", dimensions=(dimension,)), options=options or {})
    graph = TaskGraph(name="g", device_count=5, tasks=tasks, group_tables=())
    return least_of_job_ps(as_job(graph), system)


def compute(duration_ps: int, *, is_on_host: bool = False) -> ComputeTask:
    return ComputeTask(
        id=0, name="k", depends_on=(), duration_ps=duration_ps, is_on_host=is_on_host
    )


def collective(kind: CollectiveKind, **given: Any) -> CollectiveTask:
    return CollectiveTask(
        id=1, name="c", depends_on=(), kind=kind, size_bytes=10**6, group_table=None, **given
    )


def test_a_device_computes_one_thing_at_a_time_beside_its_host() -> None:
    """ASTRA-sim's sums are right within 1 us."""
    tasks = [compute(5 * US), compute(6 * US), compute(7 * US, is_on_host=True)]
    assert of_graph(*tasks) == 10 * US
    assert of_graph(compute(5 * US), options={"roofline-enabled": True}) == 0


@pytest.mark.parametrize(
    ("kind", "received"),
    [
        (CollectiveKind.ALL_REDUCE, 1.0),
        (CollectiveKind.ALL_GATHER, 4.0),
        (CollectiveKind.REDUCE_SCATTER, 0.2),
        (CollectiveKind.ALL_TO_ALL, 0.8),
    ],
)
def test_a_member_receives_what_it_needs_from_four_others_at_once(
    kind: CollectiveKind, received: float
) -> None:
    """1 MB at 1 GB/s are 1 ms; links that are not shared carry four times as much."""
    assert of_graph(collective(kind)) == pytest.approx(1000 * US * received / 4 + US)
    rings = of_graph(collective(kind), topology=Shape.RING)
    assert rings == pytest.approx(1000 * US * received / 8 + US)


def test_what_is_recorded_or_of_some_dimensions_has_no_bound() -> None:
    assert of_graph(collective(CollectiveKind.BROADCAST, recorded_ps=1)) == 0
    assert of_graph(collective(CollectiveKind.ALL_REDUCE, involved_dimensions=(True,))) == 0


@pytest.mark.parametrize("network", ContentionModel)
@pytest.mark.parametrize("topology", ASTRA_SHAPES.values(), ids=ASTRA_SHAPES)
@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        (CollectiveKind.ALL_REDUCE, "ring"),
        (CollectiveKind.ALL_REDUCE, "direct"),
        (CollectiveKind.ALL_REDUCE, "halvingDoubling"),
        (CollectiveKind.ALL_REDUCE, "doubleBinaryTree"),
        (CollectiveKind.ALL_GATHER, "direct"),
        (CollectiveKind.REDUCE_SCATTER, "halvingDoubling"),
        (CollectiveKind.ALL_TO_ALL, "direct"),
    ],
)
def test_what_astra_sim_says_is_not_refused(
    kind: CollectiveKind, algorithm: str, topology: Shape, network: ContentionModel
) -> None:
    """hespas' own model of ASTRA-sim gives its times to the ns."""
    dimension = dimension_of(topology, 4, 1e9, 1e-7)
    is_unaware = network is ContentionModel.CONGESTION_UNAWARE
    dimensions = (dimension, dimension) if is_unaware else (dimension,)
    system = replace(
        bare_system("s", dimensions=dimensions),
        endpoint_delay_s=1e-9,
        implementations=dict.fromkeys(COMMON_KINDS, (algorithm,) * len(dimensions)),
        preferred_dataset_splits=4,
        active_chunks_per_dimension=4,
    )
    graph = TaskGraph(
        name="g", device_count=system.device_count, tasks=(collective(kind),), group_tables=()
    )
    finish_ps = simulate(graph, system, network=network).finish_ps
    assert 0 < least_of_job_ps(as_job(graph), system) <= finish_ps
