"""Copies for loops have the type that the loops convert them to."""

from __future__ import annotations

from hespas.frontend.load import load_source
from hespas.lower.fused import Writer, fused
from hespas.lower.loops import with_narrow_carried
from hespas.memory.usage import memory_use
from hespas.program.program import Block, Op, Program
from hespas.program.types import TensorType

STORED = "tensor<256x8x512xf32>"
TURNED = "tensor<8x256x512xf32>"
PART = "tensor<1x256x512xf32>"
READ = """%c = stablehlo.convert %p : (tensor<256x512xf32>) -> tensor<256x512xbf16>
      %y = stablehlo.dot_general %x, %c, contracting_dims = [1] x [0]
        : (tensor<256x256xbf16>, tensor<256x512xbf16>) -> tensor<256x512xbf16>"""
WHOLE = """%s = stablehlo.convert %x : (tensor<256x256xbf16>) -> tensor<256x256xf32>
      %f = stablehlo.dot_general %s, %p, contracting_dims = [1] x [0]
        : (tensor<256x256xf32>, tensor<256x512xf32>) -> tensor<256x512xf32>
      %y = stablehlo.convert %f : (tensor<256x512xf32>) -> tensor<256x512xbf16>"""


def program(read: str = READ, result: str = "l#1") -> Program:
    kind = "tensor<256x256xbf16>" if result == "l#1" else TURNED
    text = f"""module {{
  func.func @main(%w: {STORED}, %a: tensor<256x256xbf16>) -> {kind} {{
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %limit = stablehlo.constant dense<8> : tensor<i32>
    %t = stablehlo.transpose %w, dims = [1, 0, 2] : ({STORED}) -> {TURNED}
    %l:3 = stablehlo.while(%i = %zero, %x = %a, %v = %t)
        : tensor<i32>, tensor<256x256xbf16>, {TURNED}
    cond {{
      %more = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %next = stablehlo.add %i, %one : tensor<i32>
      %d = stablehlo.dynamic_slice %v, %i, %zero, %zero, sizes = [1, 256, 512]
        : ({TURNED}, tensor<i32>, tensor<i32>, tensor<i32>) -> {PART}
      %p = stablehlo.reshape %d : ({PART}) -> tensor<256x512xf32>
      {read}
      %z = stablehlo.slice %y [0:256, 0:256] : (tensor<256x512xbf16>) -> tensor<256x256xbf16>
      stablehlo.return %next, %z, %v : tensor<i32>, tensor<256x256xbf16>, {TURNED}
    }}
    return %{result} : {kind}
  }}
}}"""
    return load_source(text.encode(), name="test.mlir")


def carried(block: Block) -> list[str]:
    """Return the types of the numbers of the large tensors that the loop is given."""
    (loop,) = [op for op in block.operations if op.kind == "while"]
    kinds = [value.type for value in loop.operands]
    for region in loop.regions:
        assert [value.type for value in region.arguments] == kinds
    assert [value.type for value in loop.results] == kinds
    assert [value.type for value in loop.regions[1].operations[-1].operands] == kinds
    return [kind.element.name for kind in kinds if isinstance(kind, TensorType) and kind.rank == 3]


def converts(block: Block) -> list[Op]:
    return [op for op in block.operations if op.kind == "convert"]


def test_a_copy_whose_parts_are_converted_is_narrow() -> None:
    block = with_narrow_carried(program().main.body)
    assert carried(block) == ["bf16"]
    (loop,) = [op for op in block.operations if op.kind == "while"]
    assert len(converts(block)) == 1
    assert not converts(loop.regions[1])


def test_what_is_read_as_it_is_stays_so() -> None:
    assert carried(with_narrow_carried(program(WHOLE).main.body)) == ["f32"]


def test_what_is_read_behind_the_loop_stays_so() -> None:
    assert carried(with_narrow_carried(program(result="l#2").main.body)) == ["f32"]


def test_on_tpus_the_copy_takes_half() -> None:
    copied_bytes = 256 * 8 * 512 * 4
    gpu, tpu = (
        memory_use(fused(program(), writer=writer)).temporary_bytes
        for writer in (Writer.GPU, Writer.TPU)
    )
    assert gpu > copied_bytes
    assert copied_bytes / 2 < tpu < copied_bytes
