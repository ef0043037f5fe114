"""What the compiler for TPUs makes of small programs; no TPU is there."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

import hespas
from compilers import needs_tpu
from hespas.compile.compiler import compile_program
from hespas.compile.job import ANY_LAYOUT, Layout
from hespas.compile.options import CompileOptions
from hespas.errors import ConfigError, HardwareError
from hespas.frontend.load import load_source
from hespas.hardware.device import Device
from hespas.hardware.presets import load_device
from hespas.program.program import Program
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


PRODUCT = """
func.func @main(%a: tensor<2048x2048xbf16>, %b: tensor<2048x2048xbf16>) -> tensor<2048x2048xbf16> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<2048x2048xbf16>, tensor<2048x2048xbf16>) -> tensor<2048x2048xbf16>
  return %0 : tensor<2048x2048xbf16>
}
"""


def test_a_product_takes_the_cycles_that_its_multiplications_do() -> None:
    made = compile_program(
        PRODUCT.encode(), name="a.mlir", target="TPUv5e", layout=Layout(devices=1)
    )
    program = load_source(made.hlo_proto, name="a.hlo.pb")
    found = [op.estimated_cycles for op in program.main.body.operations]
    cycles = sum(each for each in found if each is not None)
    # Four matrix units of 128 x 128.
    assert 0.5 < 2 * 2048**3 / cycles / (4 * 128 * 128 * 2) < 1
    calibrated = load_device("TPUv5e")
    assert calibrated.tensor_core is not None
    core = msgspec.structs.replace(calibrated.tensor_core, product_cycles=1.0)
    assert _product_s(program, replace(calibrated, tensor_core=core)) == pytest.approx(
        cycles / 1.5e9, rel=1e-9
    )
    at_peak_s = 2 * 2048**3 / calibrated.rate("bf16")
    assert _product_s(program, calibrated) == pytest.approx(at_peak_s, rel=1e-9)


def _product_s(program: Program, device: Device) -> float:
    priced = hespas.stages.estimate(
        hespas.stages.split(program), device, method="compiler"
    ).total.per_op
    return sum(each.time_s for name, each in priced.items() if "without cycles" not in name)


def test_a_program_that_needs_more_memory_than_there_is_is_reported_so() -> None:
    large = PRODUCT.replace("2048x2048", "131072x131072")
    with pytest.raises(HardwareError, match=r"does not fit.*\(96.00G\).*\(15.75G\)"):
        compile_program(large.encode(), name="a.mlir", target="TPUv5e", layout=Layout(devices=1))


def test_a_flag_that_a_tpu_has_not_is_named() -> None:
    options = CompileOptions(flags={"xla_tpu_no_such_flag": "1"})
    with pytest.raises(ConfigError, match="the compiler has no flag xla_tpu_no_such_flag"):
        compile_program(REDUCED, name="a.mlir", target="TPUv5e", options=options)
