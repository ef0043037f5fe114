from __future__ import annotations

import pytest

from hespas.errors import ConfigError, ProgramError
from hespas.split.flatten import split_scheduled
from hespas.split.modules import region_modules
from hespas.split.options import SplitOptions, SplitStrategy
from hespas.split.regions import RegionGraph
from hespas.split.strategies import split_program
from hespas.tasks.build import region_name
from scheduled import V, done, kernel, loop, scheduled, start, sync


def waits(graph: RegionGraph) -> list[tuple[str, tuple[str, ...]]]:
    names = [region_name(region) for region in graph.regions]
    return [
        (name, tuple([names[at] for at in producers]))
        for name, producers in zip(names, graph.producers, strict=True)
    ]


def test_kernels_follow_one_another_and_an_asynchronous_collective_runs_beside_them() -> None:
    graph = split_scheduled(
        scheduled(
            kernel("k0", "a"),
            start("r", "k0"),
            kernel("k1", "a"),
            kernel("k2", "k1"),
            done("d", "r"),
            kernel("k3", "d"),
        )
    )
    assert waits(graph) == [
        ("k0", ()),
        ("r", ("k0",)),
        ("k1", ("k0",)),
        ("k2", ("k1",)),
        ("k3", ("r", "k2")),
    ]


def test_kernels_wait_for_a_synchronous_collective() -> None:
    graph = split_scheduled(scheduled(kernel("k0", "a"), sync("r", "k0"), kernel("k1", "a")))
    assert waits(graph) == [("k0", ()), ("r", ("k0",)), ("k1", ("r",))]


def test_a_collective_that_starts_behind_the_end_of_another_waits_for_it() -> None:
    graph = split_scheduled(
        scheduled(start("r", "a"), done("d", "r"), start("s", "d"), done("e", "s"))
    )
    assert waits(graph) == [("r", ()), ("s", ("r",))]


def test_what_makes_no_data_is_no_kernel() -> None:
    graph = split_scheduled(
        scheduled(
            "%b = f32[16,16] bitcast(%a)",
            "%c = f32[256] bitcast(%b)",
            f"%t = ({V}, f32[16,16]) tuple(%c, %b)",
            f"%g = {V} get-tuple-element(%t), index=0",
            kernel("k", "g"),
        )
    )
    assert waits(graph) == [("k", ())]


def test_a_loop_with_a_collective_runs_round_by_round() -> None:
    function, lines = loop("l", "a", start("r", "v"), kernel("k", "v"), done("w", "r"))
    graph = split_scheduled(scheduled(*lines[:-1], lines[-1], functions=function))
    # The counter is a kernel too.
    first, second = waits(graph)[:3], waits(graph)[3:6]
    assert first == [("next", ()), ("r", ("next",)), ("k", ("next",))]
    assert second == [("next", ("r", "k")), ("r", ("next",)), ("k", ("next",))]
    assert len(graph.regions) == 9


def test_a_loop_without_a_collective_is_one_region() -> None:
    function, lines = loop("l", "a", kernel("w", "v"))
    graph = split_scheduled(scheduled(*lines, functions=function))
    assert waits(graph) == [("out_l", ())]


def test_a_loop_that_communicates_must_tell_its_rounds() -> None:
    function, lines = loop("l", "a", sync("w", "v"), count=None)
    unreadable = function.replace("%one = s32[] constant(1)", "%one = s32[] add(%i, %i)")
    with pytest.raises(ProgramError, match="the trip count of this loop is unknown"):
        split_scheduled(scheduled(*lines, functions=unreadable))


def test_equal_kernels_are_one_module() -> None:
    function, lines = loop("l", "a", kernel("k", "v"), sync("w", "k"))
    graph = split_scheduled(scheduled(*lines, kernel("last", "l"), functions=function))
    modules = region_modules(graph)
    names = [region_name(region) for region in graph.regions]
    module_of = dict(zip(names, modules.module_of_region, strict=True))
    assert module_of["k"] == module_of["last"]
    assert len(modules.modules) == 3


@pytest.mark.parametrize("strategy", SplitStrategy)
def test_the_strategy_does_not_matter(strategy: SplitStrategy) -> None:
    program = scheduled(kernel("k", "a"), sync("r", "k"))
    graph = split_program(program, SplitOptions(strategy=strategy))
    assert len(graph.regions) == 2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (SplitOptions(merge=True), "merge"),
        (SplitOptions(block_limit=3), "block_lim"),
        (SplitOptions(separator="stablehlo.dot"), "separator"),
    ],
)
def test_options_of_other_cuts_are_refused(options: SplitOptions, named: str) -> None:
    with pytest.raises(ConfigError, match=f"^step.hlo: {named} has no effect on a program that"):
        split_program(scheduled(kernel("k", "a")), options)
