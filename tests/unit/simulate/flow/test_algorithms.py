from __future__ import annotations

import pytest

from hespas.collectives.algorithms import ALGORITHMS
from hespas.collectives.patterns import messages
from hespas.errors import AlgorithmError
from hespas.program.collectives import CollectiveKind
from hespas.simulate import options
from hespas.simulate.flow.algorithms import algorithms_for, kinds_of, steps_of

SIZE = 2**12 * 3 * 5 * 7
# A message to the switch and back is in a schedule what crosses links, not whose parts.
CASES = [
    (name, collective, members)
    for name, algorithm in ALGORITHMS.items()
    for collective in algorithm.rounds
    for members in (2, 3, 4, 8)
    if name != "in-switch" and algorithm.supports(collective, members)
]


@pytest.mark.parametrize(("name", "collective", "members"), CASES)
def test_steps_move_the_bytes_of_their_schedule(
    name: str, collective: CollectiveKind, members: int
) -> None:
    schedule = ALGORITHMS[name].schedule(collective, members)
    part_bytes = SIZE // schedule.input_parts if schedule.input_parts else 0

    steps = steps_of(collective.name.lower(), name, members=members, size_bytes=SIZE)

    moved = sum(
        step.count * step.size_bytes * len(list(messages(step.pattern, members))) for step in steps
    )
    assert moved == sum(len(parts) * part_bytes for _, _, parts in schedule.messages())


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter"])
@pytest.mark.parametrize("name", ["ring", "direct"])
def test_a_member_reduces_what_it_receives_to_add(name: str, kind: str) -> None:
    steps = steps_of(kind, name, members=8, size_bytes=800)

    assert [step.reduced_bytes for step in steps][:2] == ([100, 0] if "all" in kind else [100])


def test_halving_reduces_what_is_sent_next() -> None:
    steps = steps_of("reduce_scatter", "halving-doubling", members=8, size_bytes=800)

    assert [(step.size_bytes, step.reduced_bytes) for step in steps] == [
        (400, 0),
        (200, 200),
        (100, 100),
    ]


def test_a_window_cuts_a_direct_step() -> None:
    steps = steps_of("all_to_all", "direct", members=8, size_bytes=800, window=3)

    assert [step.messages for step in steps] == [3, 3, 1]


def test_trees_in_pieces_take_as_many_steps_as_pieces_and_levels() -> None:
    (step,) = steps_of(
        "all_reduce", "double-binary-tree", members=8, size_bytes=1000, pipeline_bytes=100
    )

    assert (step.size_bytes, step.count) == (100, 2 * 3 + 5 - 1)


def test_what_an_algorithm_cannot_run_is_an_error() -> None:
    with pytest.raises(AlgorithmError, match="halving-doubling among 6"):
        steps_of("all_reduce", "halving-doubling", members=6, size_bytes=8)


def test_large_groups_have_direct_connections_only_for_all_to_all() -> None:
    assert "direct" in algorithms_for("all_reduce", 64)
    assert "direct" not in algorithms_for("all_reduce", 65)
    assert "direct" in algorithms_for("all_to_all", 65)


def test_choices_are_the_algorithms_of_the_registry() -> None:
    assert set(options.ALGORITHMS) == set(ALGORITHMS)
    assert all(kinds_of(name) for name in (*options.ALGORITHMS, options.HIERARCHICAL))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("inSwitch", "in-switch"),
        ("double_binary_tree", "double-binary-tree"),
        ("RING", "ring"),
        ("told", "specified"),
        ("rings", None),
    ],
)
def test_an_algorithm_may_be_spelled_in_several_ways(text: str, name: str | None) -> None:
    assert options.choice_named(text) == name
