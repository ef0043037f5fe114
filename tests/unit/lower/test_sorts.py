from __future__ import annotations

import pytest
from msgspec.structs import replace

from hespas.frontend.load import load_source
from hespas.lower.fused import fused
from hespas.lower.sorts import LIBRARY_SORTS
from hespas.program.attrs import CustomCallAttrs
from hespas.program.program import Op
from hespas.work.expand import expand, total
from hespas.work.sorts import launches_of, sort_launches
from programs import main_function
from rewriting import rewritten


def sorted_ops(*types: str, by: int = 1, dimension: int = 0, like_numpy: bool = False) -> list[Op]:
    values = [f"%x{at}" for at in range(len(types))]
    inner = ", ".join(
        f"%{side}{at}: tensor<{kind.rsplit('x')[-1][:-1]}>"
        for at, kind in enumerate(types)
        for side in "ab"
    )
    scalars = [f"tensor<{kind.rsplit('x')[-1][:-1]}>" for kind in types]
    canonical = (
        f"%z = stablehlo.abs %a0 : {scalars[0]}" if like_numpy else ""
    )  # what `jax.lax.sort` does about zeros and NaNs, in short
    compares = (
        canonical
        + "\n"
        + "\n".join(
            f"%c{at} = stablehlo.compare LT, %a{at}, %b{at} : "
            f"({scalars[at]}, {scalars[at]}) -> tensor<i1>"
            for at in range(by)
        )
    )
    result = f"%r:{len(types)}" if len(types) > 1 else "%r"
    names = ", ".join(f"%r#{at}" for at in range(len(types))) if len(types) > 1 else "%r"
    both = ", ".join(types)
    returned = f"({both})" if len(types) > 1 else both
    text = main_function(
        f"""{result} = "stablehlo.sort"({", ".join(values)}) ({{
        ^bb0({inner}):
          {compares}
          stablehlo.return %c{by - 1} : tensor<i1>
        }}) {{dimension = {dimension} : i64}} : ({both}) -> {returned}
        return {names} : {both}""",
        arguments=", ".join(f"{v}: {t}" for v, t in zip(values, types, strict=True)),
        results=both,
    )
    return list(load_source(text.encode(), name="test.mlir").main.body.operations[:-1])


# What jaxlib 0.10.2 launches for H100.
@pytest.mark.parametrize(
    ("types", "dimension", "launches"),
    [
        (("tensor<4096xf32>",), 0, 1),
        (("tensor<8192xf32>",), 0, 3),
        (("tensor<16384xf32>",), 0, 6),
        (("tensor<131072x64xi32>",), 0, 21),
        (("tensor<1048576xf32>", "tensor<1048576xi32>", "tensor<1048576xi32>"), 0, 55),
        (("tensor<1024x4096xf32>",), 1, 1),
    ],
)
def test_a_network_sorts_in_as_many_kernels_as_the_compilers(
    types: tuple[str, ...], dimension: int, launches: int
) -> None:
    (op,) = sorted_ops(*types, dimension=dimension)
    assert sort_launches(op) == launches
    assert launches_of(op) == (launches, launches)
    assert rewritten([op], LIBRARY_SORTS) == [op]


PACKED = ["bitcast_convert", "convert", "convert", "or", "custom_call", "convert", "convert"]


# What jaxlib 0.10.2 compiles for H100.
@pytest.mark.parametrize(
    ("types", "like_numpy", "kinds"),
    [
        (("tensor<32768xi32>",), False, ["custom_call"]),
        (("tensor<32768xf16>",), False, ["custom_call"]),
        (("tensor<32768xf32>",), True, ["bitcast_convert", "custom_call"]),
        (("tensor<32768xf32>", "tensor<32768xi32>"), True, PACKED),
        (("tensor<32768xf32>", "tensor<32768xi32>"), False, ["custom_call"]),
        (("tensor<32768xui16>", "tensor<32768xi64>"), False, ["custom_call"]),
        (("tensor<32768xi32>", "tensor<32768xbf16>"), False, ["custom_call"]),
    ],
)
def test_long_sorts_are_the_librarys(
    types: tuple[str, ...], kinds: list[str], *, like_numpy: bool
) -> None:
    ops = sorted_ops(*types, like_numpy=like_numpy)
    made = rewritten(ops, LIBRARY_SORTS)
    assert [op.kind for op in made] == kinds
    made_values = [value for op in made for value in op.results]
    assert all(value in made_values for value in ops[0].results)


# What jaxlib 0.10.2 compiles for H100.
@pytest.mark.parametrize(
    "types",
    [
        ("tensor<64x32768xf64>",),
        ("tensor<64x32768xi64>", "tensor<64x32768xi32>"),
        ("tensor<64x32768xf16>", "tensor<64x32768xi32>"),
        ("tensor<64x32768xi16>", "tensor<64x32768xi32>"),
        ("tensor<64x32768xi32>", "tensor<64x32768xi8>"),
    ],
)
def test_long_sorts_of_other_types_are_the_compilers_own(types: tuple[str, ...]) -> None:
    ops = sorted_ops(*types, dimension=1)
    assert rewritten(ops, LIBRARY_SORTS) == ops


# What jaxlib 0.10.2 compiles for H100.
@pytest.mark.parametrize(
    ("kind", "is_library"),
    [
        ("tensor<64x8200xui32>", True),
        ("tensor<64x8136xui32>", False),
        ("tensor<48x12000xui32>", False),
        ("tensor<8x131072xui32>", False),
        ("tensor<22400xui32>", True),
        ("tensor<21300xui32>", False),
        ("tensor<1024xui16>", True),
        ("tensor<256x2200xui16>", True),
        ("tensor<64x4000xui16>", False),
        ("tensor<2048x1400xui8>", True),
        ("tensor<8x131072xui8>", False),
        ("tensor<256x17300xui64>", True),
        ("tensor<64x131072xui64>", False),
        ("tensor<64x15602077xui32>", True),
        ("tensor<1024x1000000xui32>", False),
    ],
)
def test_rows_are_the_librarys_where_they_are_many_and_long(kind: str, *, is_library: bool) -> None:
    ops = sorted_ops(kind, dimension=kind.count("x") - 1)
    assert (rewritten(ops, LIBRARY_SORTS) != ops) == is_library


def test_stable_sorts_of_rows_go_by_places_too() -> None:
    (op,) = sorted_ops("tensor<4096x8192xf32>", dimension=1)
    stable = replace(op, attributes=(*op.attributes, ("is_stable", "true")))
    made = rewritten([stable], LIBRARY_SORTS)
    assert [each.kind for each in made] == ["iota", "sort"]
    assert len(made[1].results) == 2


def test_a_sort_by_two_keys_is_the_compilers_own() -> None:
    ops = sorted_ops("tensor<32768xf32>", "tensor<32768xi32>", by=2)
    assert rewritten(ops, LIBRARY_SORTS) == ops


def test_a_fused_program_passes_over_its_data_once_for_each_byte_of_the_key() -> None:
    text = b"""module {
      func.func public @main(%x: tensor<65536xi32>) -> tensor<65536xi32> {
        %r = "stablehlo.sort"(%x) ({
        ^bb0(%a: tensor<i32>, %b: tensor<i32>):
          %c = stablehlo.compare LT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
        }) {dimension = 0 : i64} : (tensor<65536xi32>) -> tensor<65536xi32>
        return %r : tensor<65536xi32>
      }
    }"""
    body = fused(load_source(text, name="test.mlir")).main.body
    (call,) = [op for op in body.operations if op.kind == "custom_call"]
    assert isinstance(call.attrs, CustomCallAttrs)
    assert call.attrs.target == "xla.gpu.ext.cub_sort_keys"
    work = total(expand([call]))
    size = 65536 * 4
    assert (work.bytes_read, work.bytes_written) == (5 * size, 4 * size)
    assert launches_of(call) == (6, 1)
