"""Twice the operations take about twice the steps, whatever is shared."""

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from hespas.frontend.load import load_source
from hespas.lower.fused import fused
from hespas.program.program import Program

ROWS = "tensor<64x64xf32>"


def _program(lines: list[str], results: list[str]) -> Program:
    kinds = ", ".join([ROWS] * len(results))
    text = "\n".join(
        [
            f"func.func @main(%a: {ROWS}, %b: {ROWS}) -> ({kinds}) {{",
            *lines,
            f"return {', '.join(results)} : {kinds}\n}}",
        ]
    )
    return load_source(text.encode(), name="large.mlir")


def chain_of_products(count: int) -> Program:
    """Return products one after another, all with the same operand."""
    lines, last = list[str](), "%a"
    for number in range(count // 2):
        product = f"stablehlo.dot_general {last}, %b, contracting_dims = [1] x [0]"
        lines += [
            f"%p{number} = {product} : ({ROWS}, {ROWS}) -> {ROWS}",
            f"%s{number} = stablehlo.add %p{number}, %b : {ROWS}",
        ]
        last = f"%s{number}"
    return _program(lines, [last])


def many_results(count: int) -> Program:
    """Return sums of one value with many others, each of them a result."""
    lines = list[str]()
    for number in range(count // 2):
        lines += [
            f"%c{number} = stablehlo.constant dense<{number}.5> : {ROWS}",
            f"%s{number} = stablehlo.add %a, %c{number} : {ROWS}",
        ]
    return _program(lines, [f"%s{number}" for number in range(count // 2)])


def _calls(program: Program) -> int:
    """Return how many functions the model of fusion calls."""
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        del frame, arg
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        fused(program)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("program", [chain_of_products, many_results])
def test_twice_the_operations_take_twice_the_steps(program: Callable[[int], Program]) -> None:
    small, large = (_calls(program(count)) for count in (1500, 3000))
    assert large < 2.5 * small
