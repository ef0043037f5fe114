from __future__ import annotations

from hespas.frontend.load import load_source
from hespas.lower.fused import Writer, fused
from hespas.memory.usage import memory_use
from hespas.program.program import Op, Program
from hespas.work.expand import expand, total

TOKENS = "tensor<256xi32>"
WIDE = "tensor<256x4096xbf16>"
ROWS = "tensor<4096x64xbf16>"
OUT = "tensor<256x64xbf16>"


def _program(returned: str = "%out", type_: str = OUT) -> Program:
    """Look up rows of a table by a product with one-hot rows."""
    numbers = "tensor<256x4096xi32>"
    product = "stablehlo.dot_general %hot, %table, contracting_dims = [1] x [0]"
    text = f"""module {{
  func.func @main(%tokens: {TOKENS}, %table: {ROWS}) -> {type_} {{
    %i = stablehlo.iota dim = 1 : {numbers}
    %t = stablehlo.broadcast_in_dim %tokens, dims = [0] : ({TOKENS}) -> {numbers}
    %is = stablehlo.compare EQ, %t, %i : ({numbers}, {numbers}) -> tensor<256x4096xi1>
    %hot = stablehlo.convert %is : (tensor<256x4096xi1>) -> {WIDE}
    %out = {product} : ({WIDE}, {ROWS}) -> {OUT}
    return {returned} : {type_.strip("()")}
  }}
}}"""
    return load_source(text.encode(), name="test.mlir")


def _kernels(program: Program) -> list[Op]:
    return [op for op in program.main.body.operations if op.kind in {"fusion", "dot_general"}]


def test_a_tpu_makes_one_hot_rows_inside_of_the_product() -> None:
    made = fused(_program(), writer=Writer.TPU)
    (kernel,) = _kernels(made)
    assert [op.kind for op in kernel.regions[0].operations].count("dot_general") == 1
    assert memory_use(made).temporary_bytes == 0


def test_a_gpu_writes_them_into_memory() -> None:
    made = fused(_program())
    assert [op.kind for op in _kernels(made)] == ["fusion", "dot_general"]
    assert memory_use(made).temporary_bytes == 256 * 4096 * 2


def test_what_is_returned_is_written() -> None:
    both = fused(_program("%out, %hot", f"({OUT}, {WIDE})"), writer=Writer.TPU)
    assert [op.kind for op in _kernels(both)] == ["fusion", "dot_general"]


CACHE, PART = "tensor<8x1024x96xf8E4M3FN>", "tensor<8x1024x64xf8E4M3FN>"
QUERIES, SCORES = "tensor<8x4x64xbf16>", "tensor<8x4x1024xbf16>"


def _over_cache(cut: str, read: str) -> Program:
    """Multiply queries and a cache of 8 bits, which is widened before."""
    wide = read.replace("f8E4M3FN", "bf16")
    text = f"""module {{
  func.func @main(%q: {QUERIES}, %cache: {CACHE}) -> {SCORES} {{
    {cut}
    %wide = stablehlo.convert %read : ({read}) -> {wide}
    %one = stablehlo.reshape %wide : ({wide}) -> tensor<8x1x1024x64xbf16>
    %turned = stablehlo.reshape %one : (tensor<8x1x1024x64xbf16>) -> {wide}
    %out = stablehlo.dot_general %q, %turned, batching_dims = [0] x [0],
      contracting_dims = [2] x [2] : ({QUERIES}, {wide}) -> {SCORES}
    return %out : {SCORES}
  }}
}}"""
    return load_source(text.encode(), name="test.mlir")


def test_a_tpu_cuts_a_part_of_a_cache_inside_of_the_product() -> None:
    whole, part = CACHE.replace("f8E4M3FN", "bf16"), PART.replace("f8E4M3FN", "bf16")
    cut = f"%read = stablehlo.slice %cache [0:8, 0:1024, 0:64] : ({whole}) -> {part}"
    text = f"""module {{
  func.func @main(%q: {QUERIES}, %cache: {whole}) -> {SCORES} {{
    {cut}
    %out = stablehlo.dot_general %q, %read, batching_dims = [0] x [0],
      contracting_dims = [2] x [2] : ({QUERIES}, {part}) -> {SCORES}
    return %out : {SCORES}
  }}
}}"""
    (kernel,) = _kernels(fused(load_source(text.encode(), name="test.mlir"), writer=Writer.TPU))
    assert total(expand(kernel)).bytes_read == 2 * 8 * 4 * 64 + 2 * 8 * 1024 * 64


def test_a_tpu_widens_a_part_of_a_cache_inside_of_the_product() -> None:
    cut = f"%read = stablehlo.slice %cache [0:8, 0:1024, 0:64] : ({CACHE}) -> {PART}"
    (kernel,) = _kernels(fused(_over_cache(cut, PART), writer=Writer.TPU))
    assert [op.kind for op in kernel.regions[0].operations].count("convert") == 1
    assert total(expand(kernel)).bytes_read == 2 * 8 * 4 * 64 + 8 * 1024 * 64
