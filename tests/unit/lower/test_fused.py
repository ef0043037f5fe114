from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from hespas.frontend.load import load_source
from hespas.lower.fused import fused
from hespas.program.attrs import FusionAttrs
from hespas.program.program import (
    Block,
    Op,
    Program,
    Value,
    all_ops,
    is_communication_op,
    values_read,
)
from hespas.program.text import private_function_text
from hespas.program.types import size_bytes
from hespas.work.gemm import gemms
from programs import main_function

MATRIX = "tensor<256x1024xf32>"


def read(text: str) -> Program:
    return load_source(text.encode(), name="test.mlir")


def one_matrix(body: str, *, result: str = "%r", kind: str = MATRIX) -> Program:
    return read(
        main_function(f"{body}\nreturn {result} : {kind}", arguments=f"%a: {MATRIX}", results=kind)
    )


def kernels(program: Program) -> list[Op]:
    return [op for op in program.main.body.operations if not op.traits.runs_nothing]


def inside(op: Op) -> list[str]:
    return [each.kind for region in op.regions for each in region.operations]


def undefined(block: Block, outer: set[Value]) -> Iterator[Value]:
    known = set(outer)
    known.update(block.arguments)
    for op in block.operations:
        yield from (value for value in values_read(op) if value not in known)
        known.update(op.results)


def test_a_chain_of_elementwise_operations_is_one_kernel() -> None:
    program = one_matrix(
        f"""%b = stablehlo.add %a, %a : {MATRIX}
        %c = stablehlo.tanh %b : {MATRIX}
        %r = stablehlo.multiply %c, %b : {MATRIX}"""
    )
    (kernel,) = kernels(fused(program))
    assert kernel.kind == "fusion"
    assert inside(kernel) == ["add", "tanh", "multiply", "return"]
    assert kernel.instruction == "loop_multiply_fusion"


def test_a_product_stands_alone_and_what_is_around_it_does_not_cross_it() -> None:
    square = "tensor<1024x1024xf32>"
    program = read(
        main_function(
            f"""%b = stablehlo.add %a, %a : {square}
            %c = stablehlo.dot_general %b, %b, contracting_dims = [1] x [0]
              : ({square}, {square}) -> {square}
            %d = stablehlo.tanh %c : {square}
            return %d : {square}""",
            arguments=f"%a: {square}",
            results=square,
        )
    )
    assert [op.kind for op in kernels(fused(program))] == ["fusion", "dot_general", "fusion"]


def test_an_addition_to_a_product_is_the_librarys() -> None:
    square = "tensor<1024x1024xf32>"
    program = read(
        main_function(
            f"""%c = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
              : ({square}, {square}) -> {square}
            %d = stablehlo.add %c, %b : {square}
            return %d : {square}""",
            arguments=f"%a: {square}, %b: {square}",
            results=square,
        )
    )
    (kernel,) = kernels(fused(program))
    assert inside(kernel) == ["dot_general", "add", "return"]
    assert len(gemms(kernel)) == 1


def test_a_reduction_takes_in_what_it_reads_and_shares_its_kernel() -> None:
    program = read(
        main_function(
            f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
            %b = stablehlo.exponential %a : {MATRIX}
            %s = stablehlo.reduce(%b init: %zero) applies stablehlo.add across dimensions = [1]
              : ({MATRIX}, tensor<f32>) -> tensor<256xf32>
            return %b, %s : {MATRIX}, tensor<256xf32>""",
            arguments=f"%a: {MATRIX}",
            results=f"{MATRIX}, tensor<256xf32>",
        )
    )
    (kernel,) = kernels(fused(program))
    assert [len(kernel.results), len(kernel.operands)] == [2, 1]


def test_a_norm_of_rows_is_one_kernel() -> None:
    program = one_matrix(
        f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
        %b = stablehlo.multiply %a, %a : {MATRIX}
        %s = stablehlo.reduce(%b init: %zero) applies stablehlo.add across dimensions = [1]
          : ({MATRIX}, tensor<f32>) -> tensor<256xf32>
        %t = stablehlo.rsqrt %s : tensor<256xf32>
        %u = stablehlo.broadcast_in_dim %t, dims = [0] : (tensor<256xf32>) -> {MATRIX}
        %r = stablehlo.multiply %a, %u : {MATRIX}"""
    )
    assert len(kernels(fused(program))) == 1


def test_a_norm_of_one_row_is_two_kernels() -> None:
    row = "tensor<1x4096xf32>"
    program = read(
        main_function(
            f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
            %b = stablehlo.multiply %a, %a : {row}
            %s = stablehlo.reduce(%b init: %zero) applies stablehlo.add across dimensions = [1]
              : ({row}, tensor<f32>) -> tensor<1xf32>
            %t = stablehlo.rsqrt %s : tensor<1xf32>
            %u = stablehlo.broadcast_in_dim %t, dims = [0] : (tensor<1xf32>) -> {row}
            %r = stablehlo.multiply %a, %u : {row}
            return %r : {row}""",
            arguments=f"%a: {row}",
            results=row,
        )
    )
    assert len(kernels(fused(program))) == 2


def test_a_softmax_and_a_layer_norm_of_rows_are_one_kernel_each() -> None:
    """As XLA compiles both: what is computed of a row's sums alone stays with the row."""
    scalar, row = "tensor<f32>", "tensor<256xf32>"
    softmax = one_matrix(
        f"""%zero = stablehlo.constant dense<0.0> : {scalar}
        %low = stablehlo.constant dense<0xFF800000> : {scalar}
        %lows = stablehlo.broadcast_in_dim %low, dims = [] : ({scalar}) -> {row}
        %m = stablehlo.reduce(%a init: %low) applies stablehlo.maximum across dimensions = [1]
          : ({MATRIX}, {scalar}) -> {row}
        %n = stablehlo.maximum %lows, %m : {row}
        %k = stablehlo.broadcast_in_dim %n, dims = [0] : ({row}) -> {MATRIX}
        %d = stablehlo.subtract %a, %k : {MATRIX}
        %e = stablehlo.exponential %d : {MATRIX}
        %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1]
          : ({MATRIX}, {scalar}) -> {row}
        %t = stablehlo.broadcast_in_dim %s, dims = [0] : ({row}) -> {MATRIX}
        %r = stablehlo.divide %e, %t : {MATRIX}"""
    )
    norm = one_matrix(
        f"""%zero = stablehlo.constant dense<0.0> : {scalar}
        %size = stablehlo.constant dense<1024.0> : {scalar}
        %sizes = stablehlo.broadcast_in_dim %size, dims = [] : ({scalar}) -> {row}
        %s = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [1]
          : ({MATRIX}, {scalar}) -> {row}
        %m = stablehlo.divide %s, %sizes : {row}
        %k = stablehlo.broadcast_in_dim %m, dims = [0] : ({row}) -> {MATRIX}
        %d = stablehlo.subtract %a, %k : {MATRIX}
        %q = stablehlo.multiply %d, %d : {MATRIX}
        %v = stablehlo.reduce(%q init: %zero) applies stablehlo.add across dimensions = [1]
          : ({MATRIX}, {scalar}) -> {row}
        %w = stablehlo.divide %v, %sizes : {row}
        %x = stablehlo.rsqrt %w : {row}
        %y = stablehlo.broadcast_in_dim %x, dims = [0] : ({row}) -> {MATRIX}
        %r = stablehlo.multiply %d, %y : {MATRIX}"""
    )
    assert [len(kernels(fused(program))) for program in (softmax, norm)] == [1, 1]


def test_a_kernel_that_normalises_rows_has_no_other_result() -> None:
    program = read(
        main_function(
            f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
        %e = stablehlo.exponential %a : {MATRIX}
        %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1]
          : ({MATRIX}, tensor<f32>) -> tensor<256xf32>
        %b = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<256xf32>) -> {MATRIX}
        %r = stablehlo.divide %e, %b : {MATRIX}
        %o = stablehlo.negate %a : {MATRIX}
        return %r, %o : {MATRIX}, {MATRIX}""",
            arguments=f"%a: {MATRIX}",
            results=f"{MATRIX}, {MATRIX}",
        )
    )
    assert [len(op.results) for op in kernels(fused(program))] == [1, 1]


def test_a_row_that_something_else_decides_too_is_normalised_by_a_kernel_of_its_own() -> None:
    program = read(
        main_function(
            f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
        %s = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [1]
          : ({MATRIX}, tensor<f32>) -> tensor<256xf32>
        %t = stablehlo.multiply %s, %b : tensor<256xf32>
        %u = stablehlo.broadcast_in_dim %t, dims = [0] : (tensor<256xf32>) -> {MATRIX}
        %r = stablehlo.multiply %a, %u : {MATRIX}
        return %r, %t : {MATRIX}, tensor<256xf32>""",
            arguments=f"%a: {MATRIX}, %b: tensor<256xf32>",
            results=f"{MATRIX}, tensor<256xf32>",
        )
    )
    assert len(kernels(fused(program))) > 1


@pytest.mark.parametrize(
    ("donated", "copies"), [("", 1), (" {tf.aliasing_output = 0 : i32}", 0)], ids=["kept", "given"]
)
def test_an_argument_that_is_kept_is_copied_before_a_part_of_it_is_updated(
    donated: str, copies: int
) -> None:
    part = "tensor<1x1024xf32>"
    program = read(
        main_function(
            f"""%r = stablehlo.dynamic_update_slice %a, %b, %at, %at
          : ({MATRIX}, {part}, tensor<i32>, tensor<i32>) -> {MATRIX}
        return %r : {MATRIX}""",
            arguments=f"%a: {MATRIX}{donated}, %b: {part}, %at: tensor<i32>",
            results=MATRIX,
        )
    )
    kinds = [op.kind for op in kernels(fused(program))]
    assert kinds == ["copy"] * copies + ["fusion"]


def test_a_norm_of_columns_is_two_kernels() -> None:
    program = one_matrix(
        f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
        %s = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0]
          : ({MATRIX}, tensor<f32>) -> tensor<1024xf32>
        %u = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<1024xf32>) -> {MATRIX}
        %r = stablehlo.multiply %a, %u : {MATRIX}"""
    )
    assert len(kernels(fused(program))) == 2


def test_a_loops_body_is_fused_and_keeps_its_count() -> None:
    program = one_matrix(
        f"""%i = stablehlo.constant dense<0> : tensor<i32>
        %n:2 = stablehlo.while(%j = %i, %x = %a) : tensor<i32>, {MATRIX}
          cond {{
            %limit = stablehlo.constant dense<5> : tensor<i32>
            %less = stablehlo.compare LT, %j, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %less : tensor<i1>
          }} do {{
            %one = stablehlo.constant dense<1> : tensor<i32>
            %next = stablehlo.add %j, %one : tensor<i32>
            %y = stablehlo.add %x, %x : {MATRIX}
            %z = stablehlo.tanh %y : {MATRIX}
            stablehlo.return %next, %z : tensor<i32>, {MATRIX}
          }}""",
        result="%n#1",
    )
    copy, loop = kernels(fused(program))
    assert copy.kind == "copy"  # the argument is not donated, and a loop changes what it carries
    assert loop.attrs == next(op for op in all_ops(program) if op.kind == "while").attrs
    assert [inside(op) for op in loop.regions[1].operations if op.kind == "fusion"] == [
        ["constant", "add", "return"],
        ["add", "tanh", "return"],
    ]


def test_what_a_compiler_made_is_left_alone(fused_llama: Program) -> None:
    assert fused(fused_llama) is fused_llama


def test_a_fused_program_is_modelled(fused_llama: Program, llama: Program) -> None:
    assert (llama.fidelity, fused_llama.fidelity) == ("exported", "fused")
    assert fused_llama.aliases == llama.aliases


def test_every_value_is_made_before_it_is_read(fused_llama: Program) -> None:
    assert not list(undefined(fused_llama.main.body, set()))
    for op in kernels(fused_llama):
        for region in op.regions:
            assert not list(undefined(region, set()))


def test_arguments_and_results_are_the_same(llama: Program, fused_llama: Program) -> None:
    before, after = llama.main, fused_llama.main
    assert [v.type for v in after.body.arguments] == [v.type for v in before.body.arguments]
    assert [v.type for v in after.results] == [v.type for v in before.results]


def test_the_products_are_those_of_the_program(llama: Program, fused_llama: Program) -> None:
    def flops(program: Program) -> int:
        return sum(gemm.flops for op in program.main.body.operations for gemm in gemms(op))

    assert flops(fused_llama) == flops(llama)


def test_collectives_move_what_they_moved(llama: Program, fused_llama: Program) -> None:
    def moved(program: Program) -> Counter[str]:
        found: Counter[str] = Counter()
        for op in filter(is_communication_op, all_ops(program)):
            kind = "all_reduce" if op.kind == "reduce_scatter" else op.kind
            found[kind] += sum(size_bytes(value.type) for value in op.operands)
        return found

    assert moved(fused_llama) == moved(llama)


def test_the_same_program_gives_the_same_kernels(llama: Program, fused_llama: Program) -> None:
    again = fused(llama)
    assert private_function_text(again.main) == private_function_text(fused_llama.main)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_collectives_are_combined(llama: Program, fused_llama: Program, kind: str) -> None:
    started = [op for op in all_ops(fused_llama) if op.kind == kind]
    assert 1 <= len(started) <= 10
    del llama


def sums_of_rows(count: int) -> Program:
    """Return a program that adds rows of matrices to zeros, and one that reads the zeros too."""
    zeros = f"%zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {MATRIX}"
    sums = "\n".join(
        f"""%s{at} = "stablehlo.scatter"(%zeros, %rows, %m{at}) ({{
          ^bb0(%x: tensor<f32>, %y: tensor<f32>):
            %sum = stablehlo.add %x, %y : tensor<f32>
            stablehlo.return %sum : tensor<f32>
        }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
          inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}
          : ({MATRIX}, tensor<256x1xi32>, {MATRIX}) -> {MATRIX}
        %m{at + 1} = stablehlo.tanh %s{at} : {MATRIX}"""
        for at in range(count)
    )
    return read(
        main_function(
            f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
            {zeros}
            %m0 = stablehlo.maximum %a, %zeros : {MATRIX}
            {sums}
            return %m{count} : {MATRIX}""",
            arguments=f"%a: {MATRIX}, %rows: tensor<256x1xi32>",
            results=MATRIX,
        )
    )


def test_zeros_that_sums_are_scattered_to_are_written_once_for_each() -> None:
    made = kernels(fused(sums_of_rows(3)))
    (zeros,) = [op for op in made if inside(op) == ["constant", "broadcast_in_dim", "return"]]
    assert len(zeros.results) == 3
    scattered = [
        op.operands[op.attrs.in_place[0].operand]
        for op in made
        if "scatter" in inside(op)
        if isinstance(op.attrs, FusionAttrs)
    ]
    assert sorted(map(zeros.results.index, scattered)) == [0, 1, 2]


@pytest.mark.parametrize(("operand", "is_apart"), [("%b", True), ("%zeros", False)])
def test_what_loads_more_than_it_makes_is_not_computed_for_each_row_that_is_gathered(
    operand: str, is_apart: bool
) -> None:
    rows = "tensor<100000x256xf32>"
    program = read(
        main_function(
            f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
            %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {rows}
            %m = stablehlo.maximum %a, {operand} : {rows}
            %r = "stablehlo.gather"(%m, %at) {{dimension_numbers = #stablehlo.gather<
              offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0],
              index_vector_dim = 1>, slice_sizes = array<i64: 1, 256>}}
              : ({rows}, tensor<1000000x1xi32>) -> tensor<1000000x256xf32>
            return %r : tensor<1000000x256xf32>""",
            arguments=f"%a: {rows}, %b: {rows}, %at: tensor<1000000x1xi32>",
            results="tensor<1000000x256xf32>",
        )
    )
    assert (len(kernels(fused(program))) > 1) == is_apart


def test_zeros_of_one_sum_are_written_over() -> None:
    made = kernels(fused(sums_of_rows(1)))
    assert not [op for op in made if op.kind == "copy"]
    (scatter,) = [op for op in made if "scatter" in inside(op)]
    assert isinstance(scatter.attrs, FusionAttrs)
    assert scatter.attrs.in_place


def test_what_is_written_and_comes_of_many_arrays_is_read_not_computed_again() -> None:
    """As XLA, which computes nothing inside a reader that the caller has too."""
    square, half = "tensor<64x64xf32>", "tensor<32x64xf32>"
    names = [f"%a{at}" for at in range(9)]
    sums = [
        f"%s{at} = stablehlo.add {f'%s{at - 1}' if at else '%a8'}, %a{at} : {square}"
        for at in range(8)
    ]
    program = read(
        main_function(
            "\n".join(sums)
            + f"""
            %c = stablehlo.slice %s7 [0:32, 0:64] : ({square}) -> {half}
            %r = stablehlo.negate %c : {half}
            return %s7, %r : {square}, {half}""",
            arguments=", ".join(f"{name}: {square}" for name in names),
            results=f"{square}, {half}",
        )
    )
    assert sorted(len(each.operands) for each in kernels(fused(program))) == [1, 9]
