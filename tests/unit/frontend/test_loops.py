from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import product

import pytest

from hespas.errors import ConfigError, ProgramError
from hespas.frontend.stablehlo import LoadOptions
from hespas.program.attrs import CaseAttrs, WhileAttrs
from programs import main_function, ops_of, read

COMPARE: dict[str, Callable[[int, int], bool]] = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "NE": operator.ne,
}
FOREVER = 100


def loop(
    start: str = "%start",
    limit: str = "%limit",
    *,
    direction: str = "LT",
    compared: str = "%i, {limit}",
    step: str = "%next = stablehlo.add %i, %step : tensor<i32>",
    constants: tuple[int, int, int] = (0, 10, 1),
    inside: str = "",
) -> str:
    """Return a program that counts; ``constants`` are start, limit and step."""
    first, last, by = constants
    return main_function(
        f"""
    %start = stablehlo.constant dense<{first}> : tensor<i32>
    %limit = stablehlo.constant dense<{last}> : tensor<i32>
    %step = stablehlo.constant dense<{by}> : tensor<i32>
    %r:2 = stablehlo.while(%i = {start}, %l = %limit) : tensor<i32>, tensor<i32>
    cond {{
      %c = stablehlo.compare {direction}, {compared.format(limit=limit)} : \
(tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }} do {{
      {inside}
      {step}
      stablehlo.return %next, %l : tensor<i32>, tensor<i32>
    }}
    return""",
        arguments="%n: tensor<i32>",
    )


def count(text: str, **told: int) -> int | None:
    options = LoadOptions(trip_counts={key.strip("_"): value for key, value in told.items()})
    (op,) = ops_of(read(text, options=options), "while")
    assert isinstance(op.attrs, WhileAttrs)
    return op.attrs.trip_count


def counted(direction: str, first: int, limit: int, step: int) -> int | None:
    rounds = 0
    while COMPARE[direction](first, limit):
        first, rounds = first + step, rounds + 1
        if rounds > FOREVER:
            return None
    return rounds


@pytest.mark.parametrize("direction", ["LT", "LE", "GT", "GE", "NE"])
@pytest.mark.parametrize("step", [-3, -1, 0, 1, 2])
def test_counts_are_those_of_counting(direction: str, step: int) -> None:
    for first, limit in product((-2, 0, 3), (-2, 0, 1, 7)):
        text = loop(direction=direction, constants=(first, limit, step))
        assert count(text) == counted(direction, first, limit, step), (first, limit)


def test_equality_is_not_guessed() -> None:
    assert count(loop(direction="EQ")) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (loop(direction="GT", compared="{limit}, %i"), 10),
        (loop(limit="%l"), 10),
        (loop(step="%next = stablehlo.add %step, %i : tensor<i32>"), 10),
        (
            loop(
                direction="GT",
                constants=(10, 0, 2),
                step="%next = stablehlo.subtract %i, %step : tensor<i32>",
            ),
            5,
        ),
        (
            loop(
                step="%one = stablehlo.constant dense<3> : tensor<i32>\n"
                "%next = stablehlo.add %i, %one : tensor<i32>"
            ),
            4,
        ),
        (loop(step="%next = stablehlo.subtract %step, %i : tensor<i32>"), None),
        (loop(step="%next = stablehlo.multiply %i, %step : tensor<i32>"), None),
        (loop(step="%next = stablehlo.add %i, %i : tensor<i32>"), None),
        (loop(start="%n"), None),
        (loop(limit="%n"), None),
        (loop(step="%next = stablehlo.add %i, %n : tensor<i32>"), None),
        (loop(compared="%l, %l"), None),
        (loop(compared="%limit, %limit"), None),
    ],
)
def test_wherever_the_constants_stand(text: str, expected: int | None) -> None:
    assert count(text) == expected


def test_constants_behind_operations_that_change_nothing() -> None:
    text = loop(start="%cast").replace(
        "%r:2",
        "%wide = stablehlo.convert %start : (tensor<i32>) -> tensor<i64>\n"
        "%back = stablehlo.convert %wide : (tensor<i64>) -> tensor<i32>\n"
        "%pair:2 = stablehlo.optimization_barrier %limit, %back : tensor<i32>, tensor<i32>\n"
        "%cast = mhlo.copy %pair#1 : tensor<i32>\n%r:2",
    )
    assert count(text) == 10


def test_a_limit_that_changes_in_the_body_is_unknown() -> None:
    text = loop(limit="%l").replace("stablehlo.return %next, %l", "stablehlo.return %next, %next")
    assert count(text) is None


def test_nested_loops_count_by_themselves() -> None:
    inner = """
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %q = stablehlo.while(%j = %zero) : tensor<i32> cond {
        %three = stablehlo.constant dense<3> : tensor<i32>
        %d = stablehlo.compare LT, %j, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %d : tensor<i1>
      } do {
        %up = stablehlo.add %j, %step : tensor<i32>
        stablehlo.return %up : tensor<i32>
      }"""
    loops = ops_of(read(loop(inside=inner)), "while")
    assert [op.attrs for op in loops] == [WhileAttrs(trip_count=10), WhileAttrs(trip_count=3)]


def test_what_the_user_says() -> None:
    unknown = loop(limit="%n")
    assert count(unknown, _=7) == 7
    assert count(unknown, _6=5) == 5
    assert count(unknown, _6=5, _=7) == 5
    assert count(loop(), _=7) == 10
    assert count(loop(), _6=3) == 3
    program = read(unknown, options=LoadOptions(trip_counts={"6": 5}))
    assert program.assumptions == ("test.mlir:6:12: the loop runs 5 times, as the user says",)
    assert read(loop(), options=LoadOptions(trip_counts={"": 5})).assumptions == ()


def test_a_line_without_a_loop_is_an_error() -> None:
    options = LoadOptions(trip_counts={"99": 4})
    with pytest.raises(ConfigError, match="there is no loop on line 99; lines of a loop: 6"):
        read(loop(), options=options)
    with pytest.raises(ConfigError, match="no branch on line 6; lines of a branch: none"):
        read(loop(), options=LoadOptions(branch_weights={"6": (1.0,)}))


BRANCHES = main_function(
    """
    %r = "stablehlo.case"(%i) ({
      %x = stablehlo.constant dense<1> : tensor<i32>
      stablehlo.return %x : tensor<i32>
    }, {
      stablehlo.return %i : tensor<i32>
    }) : (tensor<i32>) -> tensor<i32>
    return %r : tensor<i32>""",
    arguments="%i: tensor<i32>",
    results="tensor<i32>",
)


@pytest.mark.parametrize("line", ["", "3"])
def test_branch_weights(line: str) -> None:
    program = read(BRANCHES, options=LoadOptions(branch_weights={line: (0.75, 0.25)}))
    (op,) = ops_of(program, "case")
    assert op.attrs == CaseAttrs(weights=(0.75, 0.25))
    assert "branches are taken with weights [0.75, 0.25]" in program.assumptions[0]
    assert ops_of(read(BRANCHES), "case")[0].attrs == CaseAttrs(weights=None)


def test_as_many_weights_as_branches() -> None:
    with pytest.raises(ProgramError, match=r"case: 3 branch weights .* 2 branches"):
        read(BRANCHES, options=LoadOptions(branch_weights={"": (0.5, 0.25, 0.25)}))


def test_options_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="a trip count is -1; give 0 or more"):
        LoadOptions(trip_counts={"": -1})
    for weights in ((0.5, 0.4), (1.5, -0.5), ()):
        with pytest.raises(ConfigError, match="give shares that add to 1"):
            LoadOptions(branch_weights={"": weights})
