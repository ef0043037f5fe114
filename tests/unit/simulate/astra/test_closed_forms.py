"""The expected values are the formulas of ASTRA-sim's algorithms, written out by hand."""

from __future__ import annotations

import pytest

from hespas.errors import SimulationError
from hespas.hardware.system import CollectiveKind
from hespas.simulate.astra.closed_forms import Algorithm, Circle, Span, ring_bytes_sent, span

AR, AG = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER
RS, A2A = CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL
E = 10


def circle(size: int, *, hop_ns: int = 0, is_subgroup: bool = False) -> Circle:
    """Return a circle where D(m) = 100 + m, plus ``hop_ns`` a step, and R(m) = m / 10."""
    return Circle(
        size=size,
        endpoint_ns=E,
        delay_ns=lambda distance, message: 100 + distance * hop_ns + message,
        reduce_ns=lambda message: message // 10,
        is_subgroup=is_subgroup,
    )


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
    assert span(Algorithm.RING, None, kind, circle(4), 800) == Span(total_ns, last_wait_ns)


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
    assert span(Algorithm.DIRECT, None, kind, circle(4), 800) == Span(total_ns, last_wait_ns)


def test_a_direct_all_reduce_of_a_small_group_reduces_twice_unless_of_two() -> None:
    of_four = span(Algorithm.DIRECT, None, AR, circle(4, is_subgroup=True), 800)
    of_two = span(Algorithm.DIRECT, None, AR, circle(2, is_subgroup=True), 800)

    assert of_four.total_ns == 3 * E + 2 * (100 + 200) + 2 * 20
    assert of_two.total_ns == 3 * E + 2 * (100 + 400) + 40


def test_direct_waits_for_the_farthest_peer() -> None:
    assert span(Algorithm.DIRECT, None, AG, circle(4, hop_ns=7), 800).total_ns == (
        2 * E + 100 + 3 * 7 + 800
    )


def test_a_window_of_one_serves_peers_in_turn() -> None:
    found = span(Algorithm.DIRECT, 1, AG, circle(4, hop_ns=7), 800)

    assert found.total_ns == 4 * E + 3 * (100 + 800) + (1 + 2 + 3) * 7


def test_a_window_as_large_as_the_peers_is_none() -> None:
    assert span(Algorithm.DIRECT, 9, AR, circle(4), 800) == span(
        Algorithm.DIRECT, None, AR, circle(4), 800
    )


@pytest.mark.parametrize(
    ("kind", "total_ns"),
    [
        (RS, 4 * E + 3 * 100 + 400 + 200 + 100 + (20 + 10)),
        (AG, 4 * E + 3 * 100 + 800 + 1600 + 3200),
        (AR, 7 * E + 6 * 100 + 2 * (400 + 200 + 100) + (20 + 10)),
    ],
)
def test_halving_doubling_among_eight(kind: CollectiveKind, total_ns: int) -> None:
    found = span(Algorithm.HALVING_DOUBLING, None, kind, circle(8), 800)

    assert found == Span(total_ns, E)


def test_halving_doubling_needs_a_power_of_two_and_has_no_all_to_all() -> None:
    with pytest.raises(SimulationError, match="among 6, which is not a power of two"):
        span(Algorithm.HALVING_DOUBLING, None, AR, circle(6), 800)
    with pytest.raises(SimulationError, match="no all-to-all by halvingDoubling"):
        span(Algorithm.HALVING_DOUBLING, None, A2A, circle(8), 800)


@pytest.mark.parametrize(("kind", "sent"), [(AR, 1500), (RS, 750), (AG, 3000), (A2A, 1500)])
def test_bytes_that_a_member_of_a_ring_sends(kind: CollectiveKind, sent: int) -> None:
    assert ring_bytes_sent(kind, 4, 1000) == sent
