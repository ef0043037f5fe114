"""Tables of scalars reach kernels through functions, loops and the text of a region."""

from __future__ import annotations

import jax
import pytest

from hespas.frontend.load import load_source
from hespas.program.attrs import CustomCallAttrs, DeviceTables, Table
from hespas.program.program import Op, Program, all_ops
from mosaic_kernels import kernels, lowered, shape, splash_attention

CALL = (
    'stablehlo.custom_call @tpu_custom_call(%t, %x) {backend_config = ""} '
    ": (tensor<2xi32>, tensor<8xf32>) -> tensor<8xf32>"
)


def tables(program: Program) -> list[tuple[Table, ...]]:
    found = [op.attrs for op in all_ops(program) if op.kind == "custom_call"]
    kinds = [attrs.tables for attrs in found if isinstance(attrs, CustomCallAttrs)]
    return [kernel[0].tables if kernel else () for kernel in kinds]


def text(called: list[str]) -> bytes:
    calls = "\n".join(
        f"%r{position} = func.call @kernel({table}, %x) : "
        "(tensor<2xi32>, tensor<8xf32>) -> tensor<8xf32>"
        for position, table in enumerate(called)
    )
    return f"""
    func.func @main(%x: tensor<8xf32>, %given: tensor<2xi32>) -> tensor<8xf32> {{
      %a = stablehlo.constant dense<[3, 4]> : tensor<2xi32>
      %b = stablehlo.constant dense<[5, 6]> : tensor<2xi32>
      {calls}
      return %r0 : tensor<8xf32>
    }}
    func.func @kernel(%t: tensor<2xi32>, %x: tensor<8xf32>) -> tensor<8xf32> {{
      %r = {CALL}
      return %r : tensor<8xf32>
    }}""".encode()


@pytest.mark.parametrize(
    ("called", "known"),
    [
        (["%a"], (3, 4)),
        (["%a", "%a"], (3, 4)),
        (["%a", "%b"], None),
        (["%a", "%given"], None),
        (["%given", "%a"], None),
    ],
)
def test_a_function_knows_a_table_that_all_its_callers_give(
    called: list[str], known: tuple[int, ...] | None
) -> None:
    (call_tables,) = tables(load_source(text(called), name="test"))
    assert call_tables == (() if known is None else (Table(operand=0, numbers=known),))


@pytest.mark.parametrize(("handed_on", "is_known"), [("%t", True), ("%u", False)])
def test_a_loop_knows_a_table_that_stays(handed_on: str, *, is_known: bool) -> None:
    source = f"""
    func.func @main(%x0: tensor<8xf32>, %u: tensor<2xi32>) -> tensor<8xf32> {{
      %a = stablehlo.constant dense<[3, 4]> : tensor<2xi32>
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %n = stablehlo.constant dense<5> : tensor<i32>
      %r:3 = stablehlo.while(%i = %zero, %t = %a, %x = %x0)
        : tensor<i32>, tensor<2xi32>, tensor<8xf32>
      cond {{
        %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      }} do {{
        %y = {CALL}
        %next = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %next, {handed_on}, %y : tensor<i32>, tensor<2xi32>, tensor<8xf32>
      }}
      return %r#2 : tensor<8xf32>
    }}"""
    (call_tables,) = tables(load_source(source.encode(), name="test"))
    assert bool(call_tables) is is_known


def test_a_mask_reaches_attention_in_a_scan_over_layers() -> None:
    attention = splash_attention(512, 1, is_causal=True)

    def step(q: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, _: (attention(x, x, x), None), q, length=3)[0]

    (op,) = kernels(lowered(step, shape(1, 512, 128)))
    assert _numbers(op)


def _numbers(op: Op) -> tuple[int, ...]:
    assert isinstance(op.attrs, CustomCallAttrs)
    (kind,) = op.attrs.tables
    assert len(kind.tables) == 2
    # The blocks of a causal mask: 0 is empty, 1 is on the diagonal, 2 is full.
    masks = kind.tables[1].numbers
    assert sorted(masks) == [0] * 6 + [1] * 4 + [2] * 6
    return masks


@pytest.mark.parametrize(
    ("values", "known"), [(", ".join(map(str, range(100))), tuple(range(100))), ("...", None)]
)
def test_hlo_keeps_the_numbers_of_a_table(values: str, known: tuple[int, ...] | None) -> None:
    source = f"""HloModule m, is_scheduled=true
    ENTRY e {{
      x = f32[8]{{0}} parameter(0)
      t = s32[100]{{0}} constant({{{values}}})
      ROOT c = f32[8]{{0}} custom-call(t, x), custom_call_target="tpu_custom_call"
    }}"""
    (call_tables,) = tables(load_source(source.encode(), name="test"))
    assert call_tables == (() if known is None else (Table(operand=0, numbers=known),))


CUT = """
    %all = stablehlo.constant dense<[[1, 2], [3, 4], [5, 6]]> : tensor<3x2xi32>
    %rows = stablehlo.constant dense<[0, 2, 0, 1]> : tensor<4xi32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %at = stablehlo.partition_id : tensor<ui32>
    %one = stablehlo.dynamic_slice %rows, %at, sizes = [1]
      : (tensor<4xi32>, tensor<ui32>) -> tensor<1xi32>
    %row = stablehlo.reshape %one : (tensor<1xi32>) -> tensor<i32>
    %cut = stablehlo.dynamic_slice %all, %row, %zero, sizes = [1, 2]
      : (tensor<3x2xi32>, tensor<i32>, tensor<i32>) -> tensor<1x2xi32>
    %t = stablehlo.reshape %cut : (tensor<1x2xi32>) -> tensor<2xi32>
"""


@pytest.mark.parametrize(
    ("partitions", "kinds"), [(4, [(2, (1, 2)), (1, (5, 6)), (1, (3, 4))]), (1, [])]
)
def test_each_device_knows_its_part_of_a_table(
    partitions: int, kinds: list[tuple[int, tuple[int, ...]]]
) -> None:
    source = f"""
    module attributes {{mhlo.num_partitions = {partitions} : i32}} {{
    func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {{{CUT}
      %r = {CALL}
      return %r : tensor<8xf32>
    }} }}"""
    program = load_source(source.encode(), name="test")
    (attrs,) = [op.attrs for op in all_ops(program) if isinstance(op.attrs, CustomCallAttrs)]
    assert attrs.tables == tuple(
        DeviceTables(devices=devices, tables=(Table(operand=0, numbers=row),))
        for devices, row in kinds
    )


def test_a_region_without_the_constants_keeps_what_each_device_has() -> None:
    alone = CALL.replace(
        'backend_config = ""',
        'backend_config = "", devices_of_tables = array<i64: 3, 1>, '
        "table_of_operand_0 = dense<[[1, 2], [5, 6]]> : tensor<2x2xi64>",
    )
    source = f"""func.func @main(%t: tensor<2xi32>, %x: tensor<8xf32>) -> tensor<8xf32> {{
      %r = {alone}
      return %r : tensor<8xf32>
    }}"""
    (op,) = [table for table in all_ops(load_source(source.encode(), name="test"))
             if isinstance(table.attrs, CustomCallAttrs)]  # fmt: skip
    assert isinstance(op.attrs, CustomCallAttrs)
    numbers = [(table.devices, table.tables[0].numbers) for table in op.attrs.tables]
    assert numbers == [(3, (1, 2)), (1, (5, 6))]
