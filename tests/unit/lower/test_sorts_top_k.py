from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.lower.sorts import top_k
from programs import main_function
from rewriting import rewritten


def kinds(
    rows: int,
    length: int,
    most: int,
    *,
    direction: str = "GT",
    start: int = 0,
    element: str = "f32",
    for_tpu: bool = True,
) -> list[str]:
    given, places = f"tensor<{rows}x{length}x{element}>", f"tensor<{rows}x{length}xi32>"
    bounds = f"[0:{rows}, {start}:{start + most}]"
    text = main_function(
        f"""%i = stablehlo.iota dim = 1 : {places}
        %s:2 = "stablehlo.sort"(%x, %i) ({{
        ^bb0(%a: tensor<{element}>, %b: tensor<{element}>, %c: tensor<i32>, %d: tensor<i32>):
          %g = stablehlo.compare {direction}, %a, %b
            : (tensor<{element}>, tensor<{element}>) -> tensor<i1>
          stablehlo.return %g : tensor<i1>
        }}) {{dimension = 1 : i64}} : ({given}, {places}) -> ({given}, {places})
        %v = stablehlo.slice %s#0 {bounds} : ({given}) -> tensor<{rows}x{most}x{element}>
        %p = stablehlo.slice %s#1 {bounds} : ({places}) -> tensor<{rows}x{most}xi32>
        return %v, %p : tensor<{rows}x{most}x{element}>, tensor<{rows}x{most}xi32>""",
        arguments=f"%x: {given}",
        results=f"tensor<{rows}x{most}x{element}>, tensor<{rows}x{most}xi32>",
    )
    *operations, end = load_source(text.encode(), name="test.mlir").main.body.operations
    return [op.kind for op in rewritten(operations, top_k(for_tpu=for_tpu), results=end.operands)]


SORTED = ["iota", "sort", "slice", "slice"]


# What libtpu 0.0.42 compiles for v5e.
@pytest.mark.parametrize(
    ("rows", "length", "most", "calls"),
    [
        (64, 1024, 8, True),
        (8192, 4096, 8, True),
        (64, 4096, 40, True),
        (4096, 256, 2, True),
        (64, 512, 8, False),
        (8, 256, 8, False),
        (64, 4096, 1000, False),
    ],
)
def test_long_rows_of_which_few_are_read_are_a_call(
    rows: int, length: int, most: int, *, calls: bool
) -> None:
    assert kinds(rows, length, most) == (["custom_call"] if calls else SORTED)


# What jaxlib 0.10.2 compiles for H100.
@pytest.mark.parametrize(
    ("length", "most", "element", "calls"),
    [
        (128256, 16, "f32", True),
        (128256, 17, "f32", False),
        (1024, 8, "f32", True),
        (1023, 8, "f32", False),
        (32768, 8, "bf16", True),
        (32768, 8, "f16", False),
        (32768, 8, "i32", False),
    ],
)
def test_gpus_have_a_kernel_for_up_to_sixteen_of_long_rows(
    length: int, most: int, element: str, *, calls: bool
) -> None:
    made = kinds(64, length, most, element=element, for_tpu=False)
    assert made == (["custom_call"] if calls else SORTED)


def test_other_sorts_stay() -> None:
    assert kinds(8, 4096, 8, direction="LT") == SORTED
    assert kinds(8, 4096, 8, start=1) == SORTED
