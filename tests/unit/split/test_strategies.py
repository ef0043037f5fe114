from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import ConfigError
from hespas.frontend.load import load_program
from hespas.split.options import SeparatorPolicy, SplitOptions, SplitStrategy
from hespas.split.regions import Collective, RegionGraph, operations_of
from hespas.split.strategies import split_program
from programs import VECTOR, all_reduce, main_function, on_devices, settled, vector_main

INDIVIDUAL = SplitOptions(strategy=SplitStrategy.INDIVIDUAL)
DOT = "stablehlo.dot_general"
EXAMPLE = Path(__file__).parents[3] / "examples" / "llama3_100m_fsdp4.mlir"


def kinds(graph: RegionGraph) -> list[list[str]]:
    return [[op.kind for op in operations_of(region)] for region in graph.regions]


def chain(*names: str) -> str:
    """Return a program of operations, each on the one before; ``+`` is an all_reduce."""
    lines: list[str] = []
    last = "%a"
    for at, name in enumerate(names):
        made = f"%v{at}"
        if name == "+":
            lines.append(all_reduce(made, last, channel=at + 1))
        elif name == "dot":
            lines.append(
                f"%m{at} = stablehlo.reshape {last} : ({VECTOR}) -> tensor<8x1xf32>\n"
                f"%d{at} = stablehlo.dot_general %m{at}, %w, contracting_dims = [1] x [0] : "
                f"(tensor<8x1xf32>, tensor<1x1xf32>) -> tensor<8x1xf32>\n"
                f"{made} = stablehlo.reshape %d{at} : (tensor<8x1xf32>) -> {VECTOR}"
            )
        elif name == "constant":
            lines.append(f"%c{at} = stablehlo.constant dense<{at}.0> : {VECTOR}")
            lines.append(f"{made} = stablehlo.add {last}, %c{at} : {VECTOR}")
        else:
            lines.append(f"{made} = stablehlo.{name} {last} : {VECTOR}")
        last = made
    body = "\n".join(lines)
    return on_devices(
        main_function(
            f"{body}\nreturn {last} : {VECTOR}",
            arguments=f"%a: {VECTOR}, %w: tensor<1x1xf32>",
            results=VECTOR,
        )
    )


def test_the_llama_example_has_the_published_counts() -> None:
    program = load_program(EXAMPLE)
    graph = split_program(program, SplitOptions())
    assert len(graph.compute_regions) == 374
    assert len(graph.collective_regions) == 372


def test_linear_cuts_at_collectives_only() -> None:
    graph = split_program(settled(chain("abs", "tanh", "+", "+", "sine", "+")), SplitOptions())
    assert kinds(graph) == [
        ["abs", "tanh"],
        ["all_reduce"],
        ["all_reduce"],
        ["sine"],
        ["all_reduce"],
    ]
    assert graph.producers == ((), (0,), (1,), (2,), (3,))
    assert [region.id for region in graph.regions] == [0, 1, 2, 3, 4]
    assert [isinstance(region, Collective) for region in graph.regions] == [
        False, True, True, False, True,
    ]  # fmt: skip


def test_individual_makes_a_region_of_every_operation_but_constants() -> None:
    graph = split_program(settled(chain("abs", "constant", "+")), INDIVIDUAL)
    assert kinds(graph) == [["abs"], ["add"], ["all_reduce"]]
    assert graph.producers == ((), (0,), (1,))
    (constant,) = graph.regions[1].constants
    assert constant.kind == "constant"


@pytest.mark.parametrize(
    ("limit", "sizes"), [(1, [1, 1, 1, 1, 1]), (2, [2, 1, 1, 1]), (3, [3, 1, 1]), (None, [3, 1, 1])]
)
def test_the_block_limit(limit: int | None, sizes: list[int]) -> None:
    program = settled(chain("abs", "tanh", "sine", "+", "cosine"))
    graph = split_program(program, SplitOptions(block_limit=limit))
    assert [len(group) for group in kinds(graph)] == sizes


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (
            SeparatorPolicy.ISOLATED,
            [["abs", "reshape"], ["dot_general"], ["reshape", "tanh"], ["all_reduce"], ["sine"]],
        ),
        (
            SeparatorPolicy.END_BLOCK,
            [["abs", "reshape", "dot_general"], ["reshape", "tanh"], ["all_reduce"], ["sine"]],
        ),
        (
            SeparatorPolicy.START_BLOCK,
            [["abs", "reshape"], ["dot_general", "reshape", "tanh"], ["all_reduce"], ["sine"]],
        ),
    ],
)
def test_where_a_separator_goes(policy: SeparatorPolicy, expected: list[list[str]]) -> None:
    options = SplitOptions(separator=DOT, separator_policy=policy)
    graph = split_program(settled(chain("abs", "dot", "tanh", "+", "sine")), options)
    assert kinds(graph) == expected


@pytest.mark.parametrize("policy", [SeparatorPolicy.END_BLOCK, SeparatorPolicy.START_BLOCK])
def test_a_collective_named_as_separator_stays_a_region_of_its_own(policy: SeparatorPolicy) -> None:
    options = SplitOptions(separator="stablehlo.all_reduce", separator_policy=policy)
    graph = split_program(settled(chain("abs", "+", "sine")), options)
    assert kinds(graph) == [["abs"], ["all_reduce"], ["sine"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_limit": 0}, "block_lim is 0; give 1 or more"),
        ({"block_limit": 4, "strategy": SplitStrategy.INDIVIDUAL}, "block_lim has no effect"),
        ({"separator": DOT, "strategy": SplitStrategy.INDIVIDUAL}, "separator has no effect"),
        ({"separator_policy": SeparatorPolicy.END_BLOCK}, "separator_policy has no"),
    ],
)
def test_options_that_change_nothing_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SplitOptions(**options)  # pyright: ignore[reportArgumentType]


def test_a_separator_that_occurs_nowhere() -> None:
    with pytest.raises(ConfigError, match=r"'stablehlo\.dot_general' occurs nowhere"):
        split_program(settled(chain("abs")), SplitOptions(separator=DOT))


def test_outputs_that_a_block_uses_itself_are_kept() -> None:
    text = on_devices(
        main_function(
            f"""
    %0 = stablehlo.abs %a : {VECTOR}
    %1 = stablehlo.tanh %0 : {VECTOR}
    %dead = stablehlo.sine %0 : {VECTOR}
    {all_reduce("%2", "%1")}
    %3 = stablehlo.add %2, %0 : {VECTOR}
    return %3, %1, %a : {VECTOR}, {VECTOR}, {VECTOR}""",
            arguments=f"%a: {VECTOR}",
            results=f"{VECTOR}, {VECTOR}, {VECTOR}",
        )
    )
    graph = split_program(settled(text), SplitOptions())
    first, reduce, last = graph.regions
    absolute, tangent, _ = operations_of(first)
    assert first.outputs == (absolute.results[0], tangent.results[0])
    assert first.inputs == graph.arguments
    assert last.inputs == (reduce.outputs[0], absolute.results[0])
    assert graph.producers == ((), (0,), (0, 1))
    assert graph.results == (last.outputs[0], tangent.results[0], graph.arguments[0])


def test_a_collective_keeps_the_constants_it_takes() -> None:
    body = f"%c = stablehlo.constant dense<1.0> : {VECTOR}\n" + all_reduce("%r", "%c")
    graph = split_program(settled(on_devices(vector_main(body))), SplitOptions())
    (region,) = graph.regions
    assert [op.kind for op in region.constants] == ["constant"]
    assert region.inputs == ()


def test_a_program_of_nothing() -> None:
    graph = split_program(settled(vector_main("", result="%a")), SplitOptions())
    assert (graph.regions, graph.results) == ((), graph.arguments)


def test_a_long_chain_from_a_constant_takes_linear_time() -> None:
    depth = 10_000
    lines = [f"%v0 = stablehlo.constant dense<1.0> : {VECTOR}"]
    lines += [f"%v{at} = stablehlo.add %v{at - 1}, %v{at - 1} : {VECTOR}" for at in range(1, depth)]
    lines.append(all_reduce("%r", f"%v{depth - 1}"))
    program = settled(on_devices(vector_main("\n".join(lines))))
    linear = split_program(program, SplitOptions())
    assert [len(operations_of(region)) for region in linear.compute_regions][:2] == [1023, 1024]
    individual = split_program(program, INDIVIDUAL)
    assert len(individual.regions) == depth
    merged = SplitOptions(strategy=SplitStrategy.INDIVIDUAL, merge=True)
    assert len(split_program(program, merged).regions) == 2
