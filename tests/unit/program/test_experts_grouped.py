from __future__ import annotations

import pytest
from msgspec.structs import replace

from expert_programs import gradient_alone, product_alone
from hespas.frontend.load import load_source
from hespas.program.attrs import CustomCallAttrs
from hespas.program.experts import GroupedProduct, grouped_product, steps_of_tiles
from hespas.program.program import Op, Value
from hespas.program.types import TensorType, element_type


def test_rows_and_groups_of_a_product_are_read() -> None:
    for text in (product_alone(), gradient_alone()):
        op = load_source(text.encode(), name="p.mlir").main.body.operations[0]
        assert grouped_product(op) == GroupedProduct(rows=64, groups=4)


def test_a_product_with_scales_has_rows_and_groups() -> None:
    op = load_source(product_alone().encode(), name="p.mlir").main.body.operations[0]
    scaled = replace(op, operands=(*op.operands, op.operands[1]))
    assert grouped_product(scaled) == GroupedProduct(rows=64, groups=4)


def _kernel(operands: list[tuple[str, tuple[int, ...]]], result: tuple[int, ...]) -> Op:
    def value(element: str, shape: tuple[int, ...]) -> Value:
        return Value(type=TensorType(element=element_type(element), shape=shape))

    return Op(
        dialect="stablehlo",
        kind="custom_call",
        operands=tuple([value(*operand) for operand in operands]),
        results=(value("bf16", result),),
        attrs=CustomCallAttrs(target="tpu_custom_call", backend_config="", called_functions=()),
    )


@pytest.mark.parametrize(
    ("arrays", "result"),
    [
        ([(1024, 512), (8, 512, 256)], (1024, 256)),
        ([(1024, 512), (8, 256, 512)], (1024, 256)),
        ([(512, 1024), (1024, 256)], (8, 512, 256)),
    ],
)
def test_a_kernel_of_a_tpu_is_known_by_its_arrays(
    arrays: list[tuple[int, ...]], result: tuple[int, ...]
) -> None:
    tables = [("i32", (1,)), ("i32", (9,)), ("i32", (11,)), ("i32", (11,))]
    op = _kernel([*tables, *(("bf16", shape) for shape in arrays)], result)
    assert grouped_product(op) == GroupedProduct(rows=1024, groups=8)
    # Without a table of where groups begin it is another kernel.
    assert grouped_product(_kernel([("bf16", shape) for shape in arrays], result)) is None


def test_a_tile_that_two_groups_share_is_touched_twice() -> None:
    assert steps_of_tiles((256, 256), 128) == 4
    assert steps_of_tiles((200, 56, 256), 128) == 2 + 1 + 2
    assert steps_of_tiles((0, 1, 0), 128) == 1
