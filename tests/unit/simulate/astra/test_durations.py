"""The expected values are the formulas of ASTRA-sim's algorithms, written out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hespas.collectives.algorithms import ALGORITHMS
from hespas.collectives.schedule import Operation, phases
from hespas.errors import SimulationError
from hespas.hardware.system import System
from hespas.program.collectives import CollectiveKind
from hespas.simulate.astra.algorithms import tree_node
from hespas.simulate.astra.plan import AlgorithmName, Planner, phases_of
from hespas.simulate.astra.relays import LogicalRing, Span, message_bytes, relay_rounds, span

AR, AG = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER
RS, A2A = CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL
E = 10


def ring_of(size: int, *, hop_ns: int = 0, is_subgroup: bool = False) -> LogicalRing:
    """Return a ring where D(m) = 100 + m, plus ``hop_ns`` a step, and R(m) = m / 10."""
    return LogicalRing(
        size=size,
        endpoint_ns=E,
        delay_ns=lambda distance, message: 100 + distance * hop_ns + message,
        reduce_ns=lambda message: message // 10,
        is_subgroup=is_subgroup,
    )


def total_ns(
    algorithm: AlgorithmName, window: int | None, kind: CollectiveKind, ring: LogicalRing
) -> int:
    found = span(algorithm, window, kind, ring, 800)
    assert found is not None
    return found.total_ns


@pytest.mark.parametrize(
    ("kind", "total_ns", "last_wait_ns"),
    [
        (AR, 7 * E + 6 * (100 + 200) + 3 * 20, E),
        (RS, 4 * E + 3 * (100 + 200 + 20), 20),
        (AG, 4 * E + 3 * (100 + 800), E),
        (A2A, 7 * E + 6 * (100 + 200), E),
    ],
)
def test_a_ring_of_four(kind: CollectiveKind, total_ns: int, last_wait_ns: int) -> None:
    assert span("ring", None, kind, ring_of(4), 800) == Span(total_ns, last_wait_ns)


@pytest.mark.parametrize(
    ("kind", "total_ns", "last_wait_ns"),
    [
        (AR, 3 * E + 2 * (100 + 200) + 20, E),
        (RS, 2 * E + (100 + 200) + 20, 20),
        (AG, 2 * E + (100 + 800), E),
        (A2A, 2 * E + (100 + 200), E),
    ],
)
def test_direct_among_four(kind: CollectiveKind, total_ns: int, last_wait_ns: int) -> None:
    assert span("direct", None, kind, ring_of(4), 800) == Span(total_ns, last_wait_ns)


def test_a_direct_all_reduce_of_a_small_group_reduces_twice_unless_of_two() -> None:
    of_four = total_ns("direct", None, AR, ring_of(4, is_subgroup=True))
    of_two = total_ns("direct", None, AR, ring_of(2, is_subgroup=True))

    assert of_four == 3 * E + 2 * (100 + 200) + 2 * 20
    assert of_two == 3 * E + 2 * (100 + 400) + 40


def test_direct_waits_for_the_farthest_peer() -> None:
    assert total_ns("direct", None, AG, ring_of(4, hop_ns=7)) == (2 * E + 100 + 3 * 7 + 800)


def test_a_window_of_one_serves_peers_in_turn() -> None:
    found = total_ns("direct", 1, AG, ring_of(4, hop_ns=7))

    assert found == 4 * E + 3 * (100 + 800) + (1 + 2 + 3) * 7


def test_a_window_as_large_as_the_peers_is_none() -> None:
    assert span("direct", 9, AR, ring_of(4), 800) == span("direct", None, AR, ring_of(4), 800)


@pytest.mark.parametrize(
    ("kind", "total_ns"),
    [
        (RS, 4 * E + 3 * 100 + 400 + 200 + 100 + (20 + 10)),
        (AG, 4 * E + 3 * 100 + 800 + 1600 + 3200),
        (AR, 7 * E + 6 * 100 + 2 * (400 + 200 + 100) + (20 + 10)),
    ],
)
def test_halving_doubling_among_eight(kind: CollectiveKind, total_ns: int) -> None:
    found = span("halving-doubling", None, kind, ring_of(8), 800)

    assert found == Span(total_ns, E)


def test_halving_doubling_needs_a_power_of_two_and_has_no_all_to_all() -> None:
    with pytest.raises(SimulationError, match="among 6, which is not a power of two"):
        span("halving-doubling", None, AR, ring_of(6), 800)
    with pytest.raises(SimulationError, match="no all-to-all by halvingDoubling"):
        span("halving-doubling", None, A2A, ring_of(8), 800)


@pytest.mark.parametrize(("kind", "sent"), [(AR, 1500), (RS, 750), (AG, 3000), (A2A, 1500)])
def test_bytes_that_a_member_of_a_ring_sends(kind: CollectiveKind, sent: int) -> None:
    rounds = relay_rounds("ring", kind, 4, 1000)
    assert sum(one.repeats * one.size_bytes for one in rounds) == sent


KINDS = (AR, AG, RS, A2A)
SIZES = (1, 7, 800, 12345)


@pytest.mark.parametrize("members", [2, 3, 4, 8, 13])
@pytest.mark.parametrize("kind", KINDS)
def test_messages_are_of_equal_size(kind: CollectiveKind, members: int) -> None:
    for size in SIZES:
        for name in ("ring", "direct"):
            other = ALGORITHMS[name].schedule(kind, members)
            sizes = {other.message_bytes(rounds, size) for rounds in other.rounds}
            assert sizes == {message_bytes(kind, members, size)}


@pytest.mark.parametrize("members", [2, 3, 4, 8, 13])
@pytest.mark.parametrize("kind", KINDS)
def test_direct_is_that_of_its_schedule(kind: CollectiveKind, members: int) -> None:
    schedule = ALGORITHMS["direct"].schedule(kind, members)

    one_by_one = schedule.windowed(1)
    messages = sum(rounds.count for rounds in one_by_one.rounds)
    # E at the start and after each message, which is 100 ns; reductions take no time.
    ring = LogicalRing(
        size=members,
        endpoint_ns=E,
        delay_ns=lambda _distance, _message: 100,
        reduce_ns=lambda _message: 0,
        is_subgroup=False,
    )
    assert total_ns("direct", 1, kind, ring) == (messages + 1) * E + messages * 100


@pytest.mark.parametrize("members", [2, 4, 8, 16])
@pytest.mark.parametrize("mirrored", [False, True])
def test_a_tree_is_that_of_its_schedule(members: int, mirrored: bool) -> None:
    schedule = ALGORITHMS["double-binary-tree"].schedule(CollectiveKind.ALL_REDUCE, members)
    # ASTRA-sim numbers the second tree from the other end: member k of the schedule's stands at
    # k - 1 in the first of ASTRA-sim's trees, and at -k in the second.
    climbing = {
        (message.source, message.target)
        for rounds, message, _ in schedule.messages()
        if rounds.operation is Operation.REDUCE and message.channel == 0
    }
    place = {k: (-k if mirrored else k - 1) % members for k in range(members)}

    for child, parent in climbing:
        assert tree_node(members, place[child], is_mirrored=mirrored).parent == place[parent]


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_phases_are_those_of_hierarchical_collectives(
    kind: CollectiveKind, dimensions: int, make_system: Callable[..., System]
) -> None:
    system = make_system(*[("Switch", 4)] * dimensions, algorithms=("ring",) * dimensions)
    rings = Planner(system, 1).rings_of_everyone(kind, None)
    sizes = {index: ring.size for index, ring in enumerate(rings)}

    planned = [
        (phase.ring, phase.kind.name, phase.size_bytes)
        for phase in phases_of(system, kind, 4096, rings, 1)
    ]

    assert planned == [
        (phase.dimension, phase.collective.name, phase.size_bytes)
        for phase in phases(kind, sizes, 4096)
    ]
