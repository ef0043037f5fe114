"""All-gathers move the type that is read, as XLA's CollectiveQuantizer and libtpu make them."""

from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.lower.collectives import NARROW_GATHERS
from rewriting import rewritten

GATHER = """%g = "stablehlo.all_gather"(%w) {all_gather_dim = 0 : i64,
      replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}
      : (tensor<2x6xf32>) -> tensor<8x6xf32>"""
CONVERT = "%r = stablehlo.convert %g : (tensor<8x6xf32>) -> tensor<8x6xbf16>"
TURNED = """%t = stablehlo.transpose %g, dims = [1, 0] : (tensor<8x6xf32>) -> tensor<6x8xf32>
    %r = stablehlo.convert %t : (tensor<6x8xf32>) -> tensor<6x8xbf16>"""
WIDE = "%r = stablehlo.convert %g : (tensor<8x6xf32>) -> tensor<8x6xf64>"
WHOLE = "%r = stablehlo.convert %g : (tensor<8x6xf32>) -> tensor<8x6xi8>"
GATHERED = [
    ("convert", "tensor<2x6xbf16>"),
    ("all_gather", "tensor<8x6xbf16>"),
]
AS_IT_WAS = [("all_gather", "tensor<8x6xf32>"), ("convert", "tensor<8x6xbf16>")]


def made(body: str, results: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    names, kinds = (", ".join(each) for each in zip(*results, strict=True))
    text = f"""module attributes {{mhlo.num_partitions = 4 : i32}} {{
    func.func @main(%w: tensor<2x6xf32>) -> ({kinds}) {{
    {body}
    return {names} : {kinds}
    }} }}"""
    block = load_source(text.encode(), name="test").main.body
    operations = rewritten(
        block.operations[:-1], NARROW_GATHERS, results=block.operations[-1].operands
    )
    known = set(block.arguments)
    for op in operations:
        assert known.issuperset(op.operands)
        known.update(op.results)
    assert known.issuperset(block.operations[-1].operands)
    return [(op.kind, str(op.results[0].type)) for op in operations]


BF16 = (("%r", "tensor<8x6xbf16>"),)


def test_what_is_read_in_bf16_is_gathered_in_bf16() -> None:
    assert made(f"{GATHER}\n{CONVERT}", BF16) == GATHERED


def test_a_transpose_may_stand_between() -> None:
    found = made(f"{GATHER}\n{TURNED}", (("%r", "tensor<6x8xbf16>"),))
    assert found == [*GATHERED, ("transpose", "tensor<6x8xbf16>")]


@pytest.mark.parametrize(
    ("body", "results"),
    [
        (CONVERT, (*BF16, ("%g", "tensor<8x6xf32>"))),
        (f"{CONVERT}\n%n = stablehlo.negate %g : tensor<8x6xf32>", BF16),
        (WIDE, (("%r", "tensor<8x6xf64>"),)),
        (WHOLE, (("%r", "tensor<8x6xi8>"),)),
    ],
)
def test_what_something_else_reads_or_does_not_narrow_stays(
    body: str, results: tuple[tuple[str, str], ...]
) -> None:
    assert made(f"{GATHER}\n{body}", results)[0] == AS_IT_WAS[0]
