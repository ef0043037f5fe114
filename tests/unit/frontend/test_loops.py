from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import product

import pytest

from hespas.program.attrs import WhileAttrs
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


def count(text: str) -> int | None:
    (op,) = ops_of(read(text), "while")
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
