from dataclasses import replace
from pathlib import Path

import pytest

from hespas.errors import ConfigError, HardwareError
from hespas.frontend.load import load_source
from hespas.hardware.device import MeasuredTables
from hespas.hardware.presets import load_device
from hespas.price.driver import Estimator
from hespas.price.estimate import Estimate
from hespas.price.kernel import (
    COLUMN_REDUCTION,
    LOOP,
    NARROW_REDUCTION,
    ROW_REDUCTION,
    TRANSPOSE,
    kernel_of,
)
from hespas.price.methods import EstimatorSpec, estimator
from hespas.price.ptx.kernels import kernel_pricer
from hespas.program.kernels import CompiledKernels
from hespas.program.program import Op, Program
from hespas.split.strategies import split_options, split_program
from hespas.work.expand import Leaf, expand

HLO = """
HloModule step, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%loop (p: f32[67108864]) -> f32[67108864] {
  %p = f32[67108864]{0} parameter(0)
  ROOT %n = f32[67108864]{0} negate(%p)
}

%copied (p: bf16[4096,4096]) -> bf16[4096,4096] {
  %p = bf16[4096,4096]{1,0} parameter(0)
  ROOT %n = bf16[4096,4096]{1,0} negate(%p)
}

%rows (p: f32[512,4096]) -> f32[512] {
  %p = f32[512,4096]{1,0} parameter(0)
  %zero = f32[] constant(0)
  ROOT %r = f32[512]{0} reduce(%p, %zero), dimensions={1}, to_apply=%sum
}

%columns (p: f32[512,4096]) -> f32[4096] {
  %p = f32[512,4096]{1,0} parameter(0)
  %zero = f32[] constant(0)
  ROOT %r = f32[4096]{0} reduce(%p, %zero), dimensions={0}, to_apply=%sum
}

%turned (p: f32[512,4096]) -> f32[4096,512] {
  %p = f32[512,4096]{1,0} parameter(0)
  ROOT %t = f32[4096,512]{1,0} transpose(%p), dimensions={1,0}
}

%narrow (q: f32[32768,64]) -> f32[64] {
  %q = f32[32768,64]{1,0} parameter(0)
  %zero = f32[] constant(0)
  ROOT %r = f32[64]{0} reduce(%q, %zero), dimensions={0}, to_apply=%sum
}

ENTRY %main (a: f32[67108864], b: bf16[4096,4096], c: f32[512,4096],
    d: f32[32768,64]) -> (f32[67108864]) {
  %a = f32[67108864]{0} parameter(0)
  %b = bf16[4096,4096]{1,0} parameter(1)
  %c = f32[512,4096]{1,0} parameter(2)
  %fusion.1 = f32[67108864]{0} fusion(%a), kind=kLoop, calls=%loop
  %fusion.2 = bf16[4096,4096]{1,0} fusion(%b), kind=kLoop, calls=%copied
  %fusion.3 = f32[512]{0} fusion(%c), kind=kInput, calls=%rows
  %fusion.4 = f32[4096]{0} fusion(%c), kind=kInput, calls=%columns
  %fusion.5 = f32[4096,512]{1,0} fusion(%c), kind=kInput, calls=%turned
  %d = f32[32768,64]{1,0} parameter(3)
  %fusion.6 = f32[64]{0} fusion(%d), kind=kInput, calls=%narrow
  ROOT %tuple = (f32[67108864]{0}) tuple(%fusion.1)
}
"""
H100 = load_device("H100_80GB")


@pytest.fixture(scope="module")
def program() -> Program:
    return load_source(HLO.encode(), name="step.hlo")


def fusions(program: Program) -> dict[str, Op]:
    operations = program.main.body.operations
    return {op.instruction: op for op in operations if op.kind == "fusion"}


def leaf_of(op: Op) -> Leaf:
    (leaf,) = expand(op)
    assert isinstance(leaf, Leaf)
    return leaf


def priced(using: Estimator, program: Program) -> Estimate:
    graph = split_program(program, split_options())
    return sum((using.estimate(each, program) for each in graph.compute_regions), Estimate())


def test_kinds_of_kernels_follow_from_what_a_fusion_holds(program: Program) -> None:
    kinds = {name: kernel_of(op).category for name, op in fusions(program).items()}
    assert kinds == {
        "fusion.1": LOOP,
        "fusion.2": LOOP,
        "fusion.3": ROW_REDUCTION,
        "fusion.4": COLUMN_REDUCTION,
        "fusion.5": TRANSPOSE,
        "fusion.6": NARROW_REDUCTION,
    }


def test_without_ptx_a_reduction_of_few_rows_streams(program: Program) -> None:
    pricer = kernel_pricer(H100, None)
    assert pricer is not None
    readings = {name: pricer.read(leaf_of(op)) for name, op in fusions(program).items()}
    rows, columns, narrow = (readings[f"fusion.{at}"].terms.memory_s for at in (3, 4, 6))
    assert narrow < columns < rows
    assert all(each.analysis is None for each in readings.values())


def test_a_kernel_is_found_by_its_instruction(program: Program, kernels: CompiledKernels) -> None:
    pricer = kernel_pricer(H100, kernels)
    assert pricer is not None
    found = {name: pricer.read(leaf_of(op)) for name, op in fusions(program).items()}
    read = {name: each.analysis.name for name, each in found.items() if each.analysis}
    assert read == {"fusion.1": "stream", "fusion.2": "columns"}
    assert found["fusion.2"].terms.l2_s > 0 == found["fusion.4"].terms.l2_s


def test_the_method_adds_kernels_up(program: Program, kernels: CompiledKernels) -> None:
    using = estimator("kernel", EstimatorSpec(device=H100, kernels=kernels))
    pricer = kernel_pricer(H100, kernels)
    assert pricer is not None
    expected = sum(pricer.read(leaf_of(op)).terms.time_s for op in fusions(program).values())
    assert priced(using, program).time_s == pytest.approx(expected)
    assert using.parameters != estimator("kernel", EstimatorSpec(device=H100)).parameters
    assert "PTX" in " ".join(using.assumptions(program))


def test_measured_asks_for_kernels_too(program: Program, kernels: CompiledKernels) -> None:
    read = priced(estimator("measured", EstimatorSpec(device=H100, kernels=kernels)), program)
    by_kind = priced(estimator("measured", EstimatorSpec(device=H100)), program)
    assert read.time_s != by_kind.time_s


def test_calibration_multiplies_what_is_beside_the_launch(program: Program) -> None:
    slow = replace(H100, measured=MeasuredTables(part="H100_SXM", factors={"kernels": 2.0}))
    plain, calibrated = kernel_pricer(H100, None), kernel_pricer(slow, None)
    assert plain is not None
    assert calibrated is not None
    leaf = leaf_of(fusions(program)["fusion.1"])
    launch_s = plain.gpu.launch_s
    usual, slower = plain.price(leaf), calibrated.price(leaf)
    assert slower.time_s - launch_s == pytest.approx(2 * (usual.time_s - launch_s))


def test_calibration_does_not_beat_the_memory(program: Program) -> None:
    fast = replace(H100, measured=MeasuredTables(part="H100_SXM", factors={"kernels": 0.01}))
    plain, calibrated = kernel_pricer(H100, None), kernel_pricer(fast, None)
    assert plain is not None
    assert calibrated is not None
    leaf = leaf_of(fusions(program)["fusion.1"])
    at_peak_s = leaf.work.bytes_moved / H100.memory_bandwidth_bytes_per_s
    found = calibrated.price(leaf)
    assert found.time_s == pytest.approx(at_peak_s + plain.gpu.launch_s)


def test_an_inside_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "microarchitecture.json"
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"microarchitecture\.json"):
        kernel_pricer(replace(H100, microarchitecture=file), None)


def test_a_program_that_is_not_compiled_has_no_kernels_yet() -> None:
    text = """func.func @main(%a: tensor<1024x1024xf32>) -> tensor<1024x1024xf32> {
      %b = stablehlo.negate %a : tensor<1024x1024xf32>
      return %b : tensor<1024x1024xf32>
    }"""
    program = load_source(text.encode(), name="plain.mlir")
    pricer = kernel_pricer(H100, None)
    assert pricer is not None
    found = priced(estimator("kernel", EstimatorSpec(device=H100)), program)
    assert found.time_s == pytest.approx(
        2 * 4 * 1024**2 / (H100.memory_bandwidth_bytes_per_s * pricer.gpu.memory_efficiency * 0.95),
        rel=1e-3,  # what a negation for each element adds
    )
    assert any("not compiled" in note for note in found.notes)


def test_a_device_whose_inside_is_not_described_is_refused() -> None:
    with pytest.raises(HardwareError, match="is not described"):
        estimator("kernel", EstimatorSpec(device=load_device("TPUv3")))
    assert kernel_pricer(load_device("TPUv3"), None) is None


def test_a_kernel_that_cannot_be_followed_is_reported_and_priced_by_its_category(
    program: Program, kernels: CompiledKernels
) -> None:
    lost = kernels.ptx["stream"].replace("neg.f32", "bra.uni $NOWHERE;\n neg.f32")
    broken = CompiledKernels(launches=kernels.launches, ptx={**kernels.ptx, "stream": lost})
    pricer = kernel_pricer(H100, broken)
    assert pricer is not None
    reading = pricer.read(leaf_of(fusions(program)["fusion.1"]))
    assert reading.analysis is None
    (note,) = reading.notes
    assert "kernel fusion.1: priced by its category, for it can't be read" in note
    assert (
        note
        in priced(estimator("kernel", EstimatorSpec(device=H100, kernels=broken)), program).notes
    )
