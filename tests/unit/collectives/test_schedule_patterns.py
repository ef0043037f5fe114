from __future__ import annotations

import pytest

from hespas.collectives.patterns import Form, Pattern, ends, second_tree_position, tree_parent


@pytest.mark.parametrize("members", [2, 3, 8, 13])
@pytest.mark.parametrize("form", Form)
def test_positions_of_a_pattern_are_members(form: Form, members: int) -> None:
    if form is Form.EXCHANGE and members & members - 1:
        return
    sources, targets = ends(Pattern(form, 1, 1), members)

    assert len(sources) == len(targets) > 0
    assert all(0 <= at < members for at in (*sources.tolist(), *targets.tolist()))
    assert (sources != targets).all()


def children(members: int, position: int) -> list[int]:
    return [at for at in range(1, members) if tree_parent(members, at) == position]


@pytest.mark.parametrize("members", [2, 3, 4, 5, 8, 13, 16, 31])
def test_a_tree_joins_all_members(members: int) -> None:
    reached = {0}
    for _ in range(members):
        reached |= {child for at in reached for child in children(members, at)}

    assert reached == set(range(members))
    assert all(len(children(members, at)) <= 2 for at in range(members))


@pytest.mark.parametrize("members", [2, 3, 4, 5, 8, 13, 16, 31])
def test_inner_members_of_a_tree_are_leaves_of_the_other(members: int) -> None:
    inner = {at for at in range(members) if children(members, at)}

    assert len(inner & {second_tree_position(members, at) for at in inner}) <= 2
