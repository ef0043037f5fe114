"""The rounds of loops that are unrolled."""

from __future__ import annotations

import pytest

from hespas.program.work import OperandTraffic
from hespas.split.regions import LoopRound, rounds_of_regions
from hespas.stages import split
from programs import VECTOR, all_reduce, on_devices, settled, vector_main
from scheduled import kernel, loop, scheduled, sync

LOOP = f"""
%zero = stablehlo.constant dense<0> : tensor<i32>
%one = stablehlo.constant dense<1> : tensor<i32>
%end = stablehlo.constant dense<3> : tensor<i32>
%r:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, {VECTOR}
cond {{
  %c = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
}} do {{
  %n = stablehlo.add %i, %one : tensor<i32>
  %y = stablehlo.negate %x : {VECTOR}
  {all_reduce("%s", "%y")}
  stablehlo.return %n, %s : tensor<i32>, {VECTOR}
}}
"""


def test_rounds_of_a_schedule_are_its_kernels_and_collectives() -> None:
    function, lines = loop("r", "k", kernel("u", "v"), sync("w", "u"), count=3)
    program = scheduled(kernel("k", "a"), *lines, kernel("last", "r"), functions=function)

    graph = split(program)

    assert [(each.loop, each.number, each.count) for each in graph.rounds] == [
        ("out_r", 1, 3), ("out_r", 2, 3), ("out_r", 3, 3)
    ]  # fmt: skip
    inside = [at for each in graph.rounds for at in range(each.first, each.last + 1)]
    assert inside == list(range(1, len(graph.regions) - 1))


@pytest.mark.parametrize("strategy", ["linear_split", "individual_split"])
def test_rounds_of_an_exported_loop_follow_each_other(strategy: str) -> None:
    program = settled(on_devices(vector_main(LOOP, result="%r#1")))

    graph = split(program, strategy=strategy)

    assert [each.number for each in graph.rounds] == [1, 2, 3]
    collectives = [region.id for region in graph.collective_regions]
    for each, collective in zip(graph.rounds, collectives, strict=True):
        assert each.first <= collective <= each.last
    assert all(
        one.last < other.first for one, other in zip(graph.rounds, graph.rounds[1:], strict=False)
    )


def test_a_loop_without_communication_is_not_unrolled() -> None:
    function, lines = loop("r", "k", kernel("w", "v"), count=3)
    assert split(scheduled(kernel("k", "a"), *lines, functions=function)).rounds == ()


def test_a_region_with_two_rounds_belongs_to_the_former() -> None:
    rounds = [
        LoopRound(loop="l", number=1, count=2, first=0, last=2),
        LoopRound(loop="l", number=2, count=2, first=3, last=5),
    ]
    found = list(rounds_of_regions(rounds, [0, None, 1, 1, 2, None]))
    assert [(each.first, each.last) for each in found] == [(0, 1), (2, 2)]


def test_the_work_in_a_region_is_opened_once_for_what_is_stated() -> None:
    graph = split(scheduled(kernel("k", "a")))
    (region,) = graph.compute_regions
    functions, stated = graph.program.functions, {"mine": OperandTraffic()}
    assert region.costs(functions, {}) is region.costs(functions, {})
    assert region.costs(functions, {}) is not region.costs(functions, stated)
    assert region.costs(functions, {}) == region.costs(functions, stated)
