"""What lies in the host's memory, by hespas and by the compilers' own analysis; none is there."""

from __future__ import annotations

import pytest

from compilers import needs_gpu, needs_tpu
from hespas.compile.compiler import compile_program
from hespas.frontend.load import load_source
from hespas.memory.usage import memory_use
from hespas.split.flatten import split_scheduled

MATRIX = "tensor<1024x1024xf32>"
ONE_BYTES = 1024 * 1024 * 4
SAVED = f"""
func.func public @main(%x: {MATRIX}) -> ({MATRIX} {{mhlo.memory_kind = "pinned_host"}}, {MATRIX}) {{
  %y = stablehlo.add %x, %x : {MATRIX}
  %saved = stablehlo.custom_call @annotate_device_placement(%y) {{has_side_effect = true,
      mhlo.frontend_attributes = {{_xla_buffer_placement = "pinned_host"}}}}
      : ({MATRIX}) -> {MATRIX}
  %z = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : ({MATRIX}, {MATRIX}) -> {MATRIX}
  return %saved, %z : {MATRIX}, {MATRIX}
}}
"""


@pytest.mark.parametrize(
    "target",
    [pytest.param("H100_SXM", marks=needs_gpu), pytest.param("TPUv5e", marks=needs_tpu)],
)
def test_memory_of_the_host_is_as_the_compiler_says(target: str) -> None:
    compiled = compile_program(SAVED.encode(), name="saved", target=target)
    program = load_source(compiled.hlo_proto, name="saved")
    use = memory_use(program)
    assert use.host_bytes == compiled.memory.host_bytes == ONE_BYTES
    assert use.output_bytes == pytest.approx(compiled.memory.output_bytes, rel=0.05)
    (moved,) = split_scheduled(program).host_transfers
    assert (moved.traffic.to_host_bytes, moved.traffic.from_host_bytes) == (ONE_BYTES, 0)
