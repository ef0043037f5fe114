"""What the compiler for TPUs makes of small programs; no TPU is there."""

from __future__ import annotations

import pytest

from compilers import needs_tpu
from hespas.compile.compiler import compile_program
from hespas.compile.job import ANY_LAYOUT, Layout
from hespas.compile.options import CompileOptions
from hespas.errors import ConfigError
from programs import all_reduce, on_devices, vector_main

pytestmark = needs_tpu

REDUCED = on_devices(vector_main(all_reduce("%r", "%a"))).encode()


@pytest.mark.parametrize(
    ("target", "layout", "topology"),
    [
        ("TPUv5e", ANY_LAYOUT, "v5e:2x2"),
        ("TPUv4", Layout(topology="2x2x1"), "v4:2x2x1"),
    ],
)
def test_a_partitioned_program_is_compiled(target: str, layout: Layout, topology: str) -> None:
    made = compile_program(REDUCED, name="a.mlir", target=target, layout=layout)
    assert (made.topology, made.replicas * made.partitions) == (topology, 4)
    assert "is_scheduled=true" in made.hlo_text
    assert "all-reduce" in made.hlo_text
    assert made.memory.argument_bytes > 0
    assert made.memory.generated_code_bytes > 0
    assert made.kernels is None
    assert "its partitions were compiled as replicas" in made.notes


def test_a_flag_that_a_tpu_has_not_is_named() -> None:
    options = CompileOptions(flags={"xla_tpu_no_such_flag": "1"})
    with pytest.raises(ConfigError, match="the compiler has no flag xla_tpu_no_such_flag"):
        compile_program(REDUCED, name="a.mlir", target="TPUv5e", options=options)
