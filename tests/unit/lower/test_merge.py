"""Which kernels of several results there are: sums, as shared memory holds them, and slices."""

from __future__ import annotations

from pathlib import Path

import pytest

import hespas
from compilers import needs_gpu
from hespas.frontend.load import load_source
from hespas.lower.fused import fused
from hespas.memory.usage import memory_use
from hespas.program.program import Program
from programs import main_function

ROWS, COLUMNS = 4096, 512
MATRIX = f"tensor<{ROWS}x{COLUMNS}xf32>"


def _sums(count: int, *, along: int) -> str:
    """Return a program that sums so many functions of the same matrix along a dimension."""
    kept = COLUMNS if along == 0 else ROWS
    kind = f"tensor<{kept}xf32>"
    lines = [
        "%z = stablehlo.constant dense<0.0> : tensor<f32>",
        f"%f0 = stablehlo.negate %a : {MATRIX}",
    ]
    for at in range(count):
        lines.append(f"%f{at + 1} = stablehlo.multiply %f{at}, %a : {MATRIX}")
        lines.append(
            f"%r{at} = stablehlo.reduce(%f{at + 1} init: %z) applies stablehlo.add across "
            f"dimensions = [{along}] : ({MATRIX}, tensor<f32>) -> {kind}"
        )
    results = ", ".join(f"%r{at}" for at in range(count))
    kinds = ", ".join([kind] * count)
    return main_function(
        "\n".join([*lines, f"return {results} : {kinds}"]),
        arguments=f"%a: {MATRIX}",
        results=kinds,
    )


@pytest.mark.parametrize(("along", "most"), [(0, 2), (1, 4)])
def test_a_kernel_has_as_many_sums_as_shared_memory_holds(along: int, most: int) -> None:
    """Two of columns in f32: of each, 4 x 32 x 33 numbers stay in 48 KiB. Rows need far less."""
    made = fused(load_source(_sums(4, along=along).encode(), name="test.mlir"))
    sums = [
        sum(each.kind == "reduce" for each in op.regions[0].operations)
        for op in made.main.body.operations
        if op.kind == "fusion"
    ]
    assert max(sums) == most
    assert sum(sums) >= 4


PART = "tensor<1024x512xf32>"


def _parts(lines: str, *results: str, kind: str = PART) -> str:
    """Return a program that makes results of parts of a matrix; ``P0`` is its first quarter."""
    for at in range(4):
        part = f"stablehlo.slice %a [{1024 * at}:{1024 * (at + 1)}, 0:512]"
        lines = lines.replace(f"P{at}", f"{part} : ({MATRIX}) -> {PART}")
    kinds = ", ".join([kind] * len(results))
    return main_function(
        f"{lines}\nreturn {', '.join(results)} : {kinds}",
        arguments=f"%a: {MATRIX}",
        results=kinds,
    )


APART = {
    "parts alone": (_parts("%0 = P0\n%1 = P1\n%2 = P2", "%0", "%1", "%2"), 3),
    "parts of which something is made": (
        _parts(
            f"%0 = P0\n%1 = P1\n%2 = stablehlo.tanh %0 : {PART}\n%3 = stablehlo.sine %1 : {PART}",
            "%2",
            "%3",
        ),
        2,
    ),
    "parts that share elements": (
        _parts(
            f"%0 = P0\n%1 = stablehlo.slice %a [512:1536, 0:512] : ({MATRIX}) -> {PART}\n"
            f"%2 = stablehlo.tanh %0 : {PART}\n%3 = stablehlo.sine %1 : {PART}",
            "%2",
            "%3",
        ),
        1,
    ),
    "several parts each": (
        _parts(
            f"%0 = P0\n%1 = P1\n%2 = P2\n%3 = P3\n%4 = stablehlo.add %0, %1 : {PART}\n"
            f"%5 = stablehlo.multiply %2, %3 : {PART}",
            "%4",
            "%5",
        ),
        1,
    ),
    "a part and what is made of it": (
        _parts(f"%0 = P0\n%1 = stablehlo.sine %0 : {PART}", "%0", "%1"),
        1,
    ),
}


def _count(made: Program) -> int:
    return sum(op.kind == "fusion" for op in made.main.body.operations)


@pytest.mark.parametrize(("program", "count"), APART.values(), ids=APART.keys())
def test_kernels_that_read_parts_without_a_common_element_stay_apart(
    program: str, count: int
) -> None:
    assert _count(fused(load_source(program.encode(), name="parts.mlir"))) == count


@needs_gpu
@pytest.mark.parametrize(("program", "count"), APART.values(), ids=APART.keys())
def test_the_compiler_keeps_the_same_kernels_apart(
    program: str, count: int, tmp_path: Path
) -> None:
    file = tmp_path / "parts.mlir"
    file.write_text(program)
    assert _count(hespas.optimise(file, "H100_80GB")) == count


def test_slices_that_are_sorted_one_after_another_are_not_all_there_at_once() -> None:
    """The matrix, its sorted parts and all of them together are; of slices one, or two."""
    parts, rows = 8, ROWS // 8
    kind, stacked = f"tensor<{rows}x{COLUMNS}xf32>", f"tensor<{parts}x{rows}x{COLUMNS}xf32>"
    one = f"tensor<1x{rows}x{COLUMNS}xf32>"
    lines = [
        f"""%s{at} = stablehlo.slice %a [{rows * at}:{rows * (at + 1)}, 0:{COLUMNS}]
              : ({MATRIX}) -> {kind}
            %o{at} = "stablehlo.sort"(%s{at}) <{{dimension = 1 : i64, is_stable = true}}> ({{
              ^bb0(%x: tensor<f32>, %y: tensor<f32>):
                %c = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
                stablehlo.return %c : tensor<i1>
            }}) : ({kind}) -> {kind}
            %r{at} = stablehlo.reshape %o{at} : ({kind}) -> {one}"""
        for at in range(parts)
    ]
    names = ", ".join(f"%r{at}" for at in range(parts))
    kinds = ", ".join([one] * parts)
    end = f"%0 = stablehlo.concatenate {names}, dim = 0 : ({kinds}) -> {stacked}\nreturn %0"
    program = main_function(
        "\n".join([*lines, f"{end} : {stacked}"]), arguments=f"%a: {MATRIX}", results=stacked
    )
    peak_bytes = memory_use(fused(load_source(program.encode(), name="test.mlir"))).peak_bytes
    matrix_bytes = 4 * ROWS * COLUMNS
    assert 3 * matrix_bytes <= peak_bytes <= (3 + 2 / parts) * matrix_bytes


@pytest.mark.parametrize("along", [0, 1])
def test_what_puts_values_side_by_side_writes_nothing_else(along: int) -> None:
    """XLA's kernel of a concatenation has one result: a sum of it is a kernel of its own."""
    kept, whole = (1024, "tensor<512x1024xf32>") if along == 0 else (512, "tensor<512x1024xf32>")
    half = "tensor<512x512xf32>"
    text = main_function(
        f"""%z = stablehlo.constant dense<0.0> : tensor<f32>
        %n = stablehlo.negate %a : {half}
        %e = stablehlo.exponential %a : {half}
        %c = stablehlo.concatenate %n, %e, dim = 1 : ({half}, {half}) -> {whole}
        %s = stablehlo.reduce(%c init: %z) applies stablehlo.add across dimensions = [{along}]
            : ({whole}, tensor<f32>) -> tensor<{kept}xf32>
        return %c, %s : {whole}, tensor<{kept}xf32>""",
        arguments=f"%a: {half}",
        results=f"{whole}, tensor<{kept}xf32>",
    )
    made = fused(load_source(text.encode(), name="test.mlir"))
    kernels = [op for op in made.main.body.operations if op.kind == "fusion"]
    assert [len(op.results) for op in kernels] == [1, 1]
