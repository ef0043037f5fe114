"""Loops over layers: what is written out is the least, and the order stays."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.models.configuration import SHIPPED, read_configuration
from hespas.models.language import LanguageModel
from hespas.models.plan import Loop, Plan, layers_of, plan_of

T = TypeVar("T", bound=Hashable)


def all_of(items: Iterable[T | Loop[T]]) -> Iterator[T]:
    """Yield the layers in the order in which they are computed."""
    for item in items:
        if isinstance(item, Loop):
            loop = cast("Loop[T]", item)
            for _ in range(loop.times):
                yield from all_of(loop.body)
        else:
            yield item


def written(items: Sequence[T | Loop[T]]) -> int:
    loops = [cast("Loop[T]", item) for item in items if isinstance(item, Loop)]
    return len(items) - len(loops) + sum(written(loop.body) for loop in loops)


def items_of(plan: Plan[str]) -> tuple[str | Loop[str], ...]:
    return (*plan.first, *([] if plan.loop is None else [plan.loop]), *plan.last)


@given(st.text("ab", max_size=24))
def test_a_plan_has_all_layers_in_their_order(kinds: str) -> None:
    items = items_of(plan_of(tuple(kinds), dict.fromkeys(kinds, 1)))
    assert "".join(map(str, all_of(items))) == kinds
    assert sum(map(layers_of, items)) == len(kinds)
    assert written(items) <= len(kinds)


@pytest.mark.parametrize(
    ("kinds", "least"),
    [("a" * 80, 1), ("aaa" + "b" * 58, 4), ("aaaaab" * 8, 2), ("aaa", 1), ("abcd", 4)],
)
def test_regular_orders_are_one_loop(kinds: str, least: int) -> None:
    plan = plan_of(tuple(kinds), dict.fromkeys(kinds, 1))
    assert written(items_of(plan)) == least
    # Three layers before others are not worth a loop.
    assert not any(isinstance(item, Loop) for item in (*plan.first, *plan.last))


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", 13),
        ("nvidia/Nemotron-H-56B-Base-8K", 7),
        ("ibm-granite/granite-4.0-h-small", 3),
    ],
)
def test_few_layers_of_hybrids_are_written_out(name: str, least: int) -> None:
    model = read_configuration(SHIPPED / f"{name}.json").model
    assert isinstance(model, LanguageModel)
    plan = model.plan
    assert plan.loop is not None
    assert written((*plan.first, plan.loop, *plan.last)) == least
