from __future__ import annotations

from array import array

import pytest

from hespas.errors import ProgramError, UnsupportedError
from hespas.program.types import AsyncType, TensorType, TokenType, TupleType, size_bytes
from hespas.xla.mlir.text import (
    read_dense_integers,
    read_fields,
    read_integer,
    read_integers,
    read_rows,
    read_symbols,
    read_type,
    split_list,
)


@pytest.mark.parametrize(
    ("text", "bits", "size"),
    [
        ("tensor<f32>", 32, 4),
        ("tensor<2x3xbf16>", 16, 12),
        ("tensor<5xi1>", 8, 5),
        ("tensor<3xi4>", 4, 2),
        ("tensor<5xui2>", 2, 2),
        ("tensor<7xui8>", 8, 7),
        ("tensor<4xf4E2M1FN>", 4, 2),
        ("tensor<4xf8E4M3B11FNUZ>", 8, 4),
        ("tensor<2xcomplex<f64>>", 128, 32),
        ("tensor<0x9xf32>", 32, 0),
        ("tensor<3xindex>", 64, 24),
    ],
)
def test_tensors_have_the_size_that_xla_gives_them(text: str, bits: int, size: int) -> None:
    kind = read_type(text)
    assert isinstance(kind, TensorType)
    assert (kind.element.bits, kind.size_bytes, str(kind)) == (bits, size, text)


def test_tuples_tokens_and_bundles() -> None:
    inner = "tuple<tensor<2xf32>, tuple<tensor<3xi8>, !stablehlo.token>>"
    kind = read_type(inner)
    assert isinstance(kind, TupleType)
    assert size_bytes(kind) == 11
    assert read_type("!mhlo.token") == TokenType()
    bundle = read_type("!mhlo.async_bundle<tensor<4xf32>, tensor<16xf32>, tensor<i32>>")
    assert isinstance(bundle, AsyncType)
    assert size_bytes(bundle) == 84
    assert (
        str(read_type("!stablehlo.future<tensor<16xf32>>")) == "!stablehlo.future<tensor<16xf32>>"
    )


@pytest.mark.parametrize(
    "text",
    ["tensor<?x4xf32>", "tensor<*xf32>", "tensor<?xf32, #stablehlo.bounds<8>>"],
)
def test_a_dynamic_shape_says_what_mends_it(text: str) -> None:
    with pytest.raises(UnsupportedError, match=r"dynamic shape .* static shapes"):
        read_type(text)


@pytest.mark.parametrize(
    "text",
    ["tensor<4x!quant.uniform<i8:f32, 0.5>>", "tensor<4xi7>", "memref<4xf32>", "!foo.bar"],
)
def test_a_type_without_a_model_is_named(text: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        read_type(text)
    assert text in raised.value.message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("a", ["a"]),
        ("a, (b, c), <d, [e, {f, g}]>", ["a", "(b, c)", "<d, [e, {f, g}]>"]),
        ('x = "a, b", y = 1', ['x = "a, b"', "y = 1"]),
        ('x = "ends in \\\\", y = 1', ['x = "ends in \\\\"', "y = 1"]),
        ('x = "a \\22 b, c", y', ['x = "a \\22 b, c"', "y"]),
        ('x = "<(", y', ['x = "<("', "y"]),
        ("(a) -> b, c", ["(a) -> b", "c"]),
    ],
)
def test_lists_split_outside_brackets_and_strings(text: str, parts: list[str]) -> None:
    assert split_list(text) == parts


def test_integers() -> None:
    assert read_integer("-7 : i64") == -7
    assert read_integers("array<i64>") == ()
    assert read_integers("array<i64: 3, -1>") == (3, -1)
    assert read_integers("[4, 5]") == (4, 5)
    assert read_integers("dense<[1, 0]> : tensor<2xi64>") == (1, 0)
    with pytest.raises(ProgramError, match="not an integer"):
        read_integer("unit")


def test_dense_integers_in_all_three_spellings() -> None:
    assert read_rows("dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>") == ((0, 1), (2, 3))
    assert read_rows("dense<7> : tensor<2x3xi64>") == ((7, 7, 7), (7, 7, 7))
    assert read_rows("dense<> : tensor<0x0xi64>") == ()
    blob = array("q", [*range(128)]).tobytes().hex().upper()
    rows = read_rows(f'dense<"0x{blob}"> : tensor<2x64xi64>')
    assert rows == (tuple(range(64)), tuple(range(64, 128)))
    assert read_rows("dense<[[0, 1], [2, -1]]> : tensor<2x2xi64>")[1] == (2, -1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dense<[1, 2]> : tensor<3xi64>", "2 elements, not 3"),
        ("dense_resource<x> : tensor<3xi64>", "not a dense list"),
        ("[1, 2]", "not a dense list"),
    ],
)
def test_dense_integers_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        read_dense_integers(text)


def test_rows_need_two_dimensions() -> None:
    with pytest.raises(ProgramError, match="not a list of lists"):
        read_rows("dense<[1, 2]> : tensor<2xi64>")


def test_fields_and_symbols() -> None:
    fields = read_fields('#a.b<mesh = @m, axes = [#a.c<name = "x", size = 2>]>')
    assert fields == {"mesh": "@m", "axes": '[#a.c<name = "x", size = 2>]'}
    assert read_symbols('[@plain_1, @"b c.d", @e$f-g]') == ("plain_1", "b c.d", "e$f-g")
    assert read_symbols("") == ()
