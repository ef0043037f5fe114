from __future__ import annotations

from hespas.frontend.load import load_source
from hespas.lower.assign import Assignment
from hespas.program.program import Op
from programs import main_function


def assigned(body: str, *, arguments: str, results: str) -> list[Op]:
    text = main_function(body, arguments=arguments, results=results)
    program = load_source(text.encode(), name="test.mlir")
    return list(Assignment().block(program.main.body).operations)


def copies(operations: list[Op]) -> int:
    return sum(op.kind == "copy" for op in operations)


HEADS, FLAT = "tensor<64x8x128xf32>", "tensor<64x1024xf32>"
SCORES = "tensor<8x64x64xf32>"


def test_a_transpose_is_another_name_for_the_same_bytes() -> None:
    made = "tensor<64x8xf32>"
    operations = assigned(
        f"""%t = stablehlo.transpose %a, dims = [1, 0] : (tensor<8x64xf32>) -> {made}
        %u = stablehlo.tanh %t : {made}
        %v = stablehlo.transpose %u, dims = [1, 0] : ({made}) -> tensor<8x64xf32>
        return %v : tensor<8x64xf32>""",
        arguments="%a: tensor<8x64xf32>",
        results="tensor<8x64xf32>",
    )
    assert not copies(operations)


def test_a_result_has_the_default_order() -> None:
    operations = assigned(
        """%t = stablehlo.transpose %a, dims = [1, 0] : (tensor<8x64xf32>) -> tensor<64x8xf32>
        return %t : tensor<64x8xf32>""",
        arguments="%a: tensor<8x64xf32>",
        results="tensor<64x8xf32>",
    )
    assert copies(operations) == 1
    assert operations[-1].operands[0].type == operations[-2].results[0].type


def scores(source: str) -> list[Op]:
    return assigned(
        f"""{source}
        %q = stablehlo.reshape %p : ({FLAT}) -> {HEADS}
        %s = stablehlo.dot_general %q, %q, batching_dims = [1] x [1], contracting_dims = [2] x [2]
          : ({HEADS}, {HEADS}) -> {SCORES}
        return %s : {SCORES}""",
        arguments="%a: tensor<64x256xf32>, %w: tensor<256x1024xf32>, %b: " + FLAT,
        results=SCORES,
    )


def test_a_product_writes_what_a_batched_one_reads_in_the_order_it_wants() -> None:
    product = f"""%p = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
      : (tensor<64x256xf32>, tensor<256x1024xf32>) -> {FLAT}"""
    assert copies(scores(product)) == 0


def test_an_argument_in_another_order_is_copied_once() -> None:
    assert copies(scores(f"%p = stablehlo.tanh %b : {FLAT}")) == 1


def test_a_reshape_that_needs_the_default_order_gets_it() -> None:
    operations = assigned(
        """%t = stablehlo.transpose %a, dims = [1, 0] : (tensor<8x64xf32>) -> tensor<64x8xf32>
        %u = stablehlo.reshape %t : (tensor<64x8xf32>) -> tensor<512xf32>
        return %u : tensor<512xf32>""",
        arguments="%a: tensor<8x64xf32>",
        results="tensor<512xf32>",
    )
    assert [op.kind for op in operations] == ["transpose", "copy", "reshape", "return"]


def test_a_product_writes_as_it_is_returned_through_a_barrier() -> None:
    left, made = "tensor<64x256xf32>", "tensor<64x128xf32>"
    operations = assigned(
        f"""%p = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
          : ({left}, tensor<256x128xf32>) -> {made}
        %t = stablehlo.transpose %p, dims = [1, 0] : ({made}) -> tensor<128x64xf32>
        %b:2 = stablehlo.optimization_barrier %a, %t : {left}, tensor<128x64xf32>
        return %b#1 : tensor<128x64xf32>""",
        arguments=f"%a: {left}, %w: tensor<256x128xf32>",
        results="tensor<128x64xf32>",
    )
    assert not copies(operations)


def test_what_a_loop_only_reads_lies_as_its_body_wants_it() -> None:
    square = "tensor<8x64x64xf32>"
    operations = assigned(
        f"""%i = stablehlo.constant dense<0> : tensor<i32>
        %m = stablehlo.broadcast_in_dim %b, dims = [1, 2] : (tensor<64x64xf32>) -> {square}
        %n:3 = stablehlo.while(%j = %i, %x = %a, %y = %m) : tensor<i32>, {square}, {square}
          cond {{
            %limit = stablehlo.constant dense<5> : tensor<i32>
            %less = stablehlo.compare LT, %j, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %less : tensor<i1>
          }} do {{
            %one = stablehlo.constant dense<1> : tensor<i32>
            %next = stablehlo.add %j, %one : tensor<i32>
            %t = stablehlo.transpose %x, dims = [0, 2, 1] : ({square}) -> {square}
            %u = stablehlo.add %t, %y : {square}
            %v = stablehlo.transpose %u, dims = [0, 2, 1] : ({square}) -> {square}
            stablehlo.return %next, %v, %y : tensor<i32>, {square}, {square}
          }}
        return %n#1 : {square}""",
        arguments=f"%a: {square}, %b: tensor<64x64xf32>",
        results=square,
    )
    (loop,) = [op for op in operations if op.kind == "while"]
    assert not copies(list(loop.regions[1].operations))
