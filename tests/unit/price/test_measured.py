from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hespas.errors import ConfigError, HardwareError
from hespas.frontend.load import load_source
from hespas.hardware.device import MeasuredTables, NodeHardware
from hespas.hardware.presets import PRESETS_DIRECTORY, device_names, load_device
from hespas.prediction.configuration import read_configuration
from hespas.price.attention import attention_model
from hespas.price.estimate import Estimate
from hespas.price.gemm import Product, convolution_time
from hespas.price.measured import Measured, measured
from hespas.price.methods import EstimatorSpec, estimator
from hespas.price.ptx.kernels import kernel_pricer
from hespas.program.devices import with_device_count
from hespas.program.program import Program
from hespas.split.flatten import split_scheduled
from hespas.split.options import SplitOptions
from hespas.split.regions import RegionGraph
from hespas.split.strategies import split_program
from hespas.work.attention import Attention
from hespas.work.expand import Leaf, expand
from programs import main_function, read
from workloads import workload

H100 = load_device("H100_80GB")
SPEC = EstimatorSpec(device=H100)
LAUNCH_S = 3e-6
ALONE_S = 2.433e-6
"""What XLA measured on the H100 beyond the tables."""

KERNELS = """HloModule step, is_scheduled=true, num_partitions=1

%fused (p: bf16[4096,16384]) -> bf16[4096,16384] {
  %p = bf16[4096,16384] parameter(0)
  ROOT %n = bf16[4096,16384] negate(%p)
}

ENTRY %main (a: bf16[4096,2048], b: bf16[2048,16384]) -> bf16[4096,16384] {
  %a = bf16[4096,2048] parameter(0)
  %b = bf16[2048,16384] parameter(1)
  %d = bf16[4096,16384] dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %f = bf16[4096,16384] fusion(%d), kind=kLoop, calls=%fused
}
"""


def model(**factors: float) -> Measured:
    tables = MeasuredTables(part="H100_SXM", factors=factors)
    return measured(EstimatorSpec(device=replace(H100, measured=tables)), kernels=None)


def kernels() -> RegionGraph:
    program = with_device_count(
        load_source(KERNELS.encode(), name="step.hlo"), requested=1, system=None
    )
    return split_scheduled(program)


def total(graph: RegionGraph, using: Measured) -> Estimate:
    found = (using.estimate(region, graph.program) for region in graph.compute_regions)
    return sum(found, Estimate())


def plain(body: str, arguments: str, results: str, using: Measured) -> Estimate:
    program: Program = read(main_function(body, arguments=arguments, results=results))
    return total(split_program(program, SplitOptions()), using)


def test_kernels_of_a_compiled_program_take_tables_bytes_and_launches() -> None:
    found = total(kernels(), model())
    product = Product(type_name="bf16", m=4096, n=16384, k=2048)
    in_table_s = model().gemm.price(product).time_s
    assert found.per_op["stablehlo.dot_general"].time_s == pytest.approx(in_table_s + ALONE_S)
    moved = 2 * 2 * 4096 * 16384
    assert found.per_op["mhlo.fusion"].time_s == pytest.approx(
        LAUNCH_S + moved / (0.8897 * 3350e9), rel=1e-4
    )


def test_an_operation_of_a_program_that_is_not_compiled_launches_nothing() -> None:
    kind = "tensor<4096x4096xbf16>"
    found = plain(
        f"%r = stablehlo.negate %a : {kind}\nreturn %r : {kind}", f"%a: {kind}", kind, model()
    )
    assert found.time_s == pytest.approx(2 * 2 * 4096**2 / (0.8897 * 3350e9), rel=1e-4)


def test_notes_say_what_was_measured_where() -> None:
    found = total(kernels(), model())
    assert "products of bf16 from tables measured on NVIDIA H100 80GB HBM3" in found.notes
    assert any("89 % of the memory bandwidth" in each for each in found.notes)


def test_calibration_reaches_every_part() -> None:
    slower = total(kernels(), model(all=2.0))
    faster = total(kernels(), model())
    for name, launch_s in (
        ("stablehlo.dot_general", ALONE_S),
        ("mhlo.fusion", LAUNCH_S),
    ):
        busy_s = faster.per_op[name].time_s - launch_s
        assert slower.per_op[name].time_s == pytest.approx(2 * busy_s + launch_s)
    assert model(all=2.0).parameters != model().parameters
    assert model(kernels=1.3).parameters != model().parameters


def test_kernels_that_are_no_products_are_priced_as_they_are_read() -> None:
    read_kernels = kernel_pricer(H100, None)
    assert read_kernels is not None
    found, by_bytes = (
        total(kernels(), measured(SPEC, kernels=read_kernels)),
        total(kernels(), model()),
    )
    (fusion,) = (op for op in kernels().program.main.body.operations if op.kind == "fusion")
    (leaf,) = expand(fusion)
    assert isinstance(leaf, Leaf)
    expected_s = read_kernels.time_s(read_kernels.read(leaf))
    assert found.per_op["mhlo.fusion"].time_s == pytest.approx(expected_s)
    assert expected_s != pytest.approx(by_bytes.per_op["mhlo.fusion"].time_s)
    assert found.per_op["stablehlo.dot_general"] == by_bytes.per_op["stablehlo.dot_general"]


def test_a_convolution_reaches_the_part_of_its_roofline_that_its_product_reaches() -> None:
    body = """
    %r = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [1, 1], pad = [[1, 1], [1, 1]]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<64x56x56x64xbf16>, tensor<3x3x64x64xbf16>) -> tensor<64x56x56x64xbf16>
    return %r : tensor<64x56x56x64xbf16>"""
    image, kernel = "tensor<64x56x56x64xbf16>", "tensor<3x3x64x64xbf16>"
    found = plain(body, f"%x: {image}, %w: {kernel}", image, model())
    product = Product(type_name="bf16", m=64 * 56 * 56, n=64, k=9 * 64)
    moved_s = (2 * (2 * 64**2 * 56**2 + 9 * 64**2) - 52428800) / (0.8897 * 3350e9)
    unfolded_s = (
        2 * (product.m * product.k + product.n * product.k + product.m * product.n) / 3350e9
    )
    own_s = max(product.flops / 989.5e12, 2 * (2 * 64**2 * 56**2 + 9 * 64**2) / 3350e9)
    expected = max(model().gemm.price(product).time_s * own_s / unfolded_s, moved_s)
    assert found.time_s == pytest.approx(expected, rel=1e-3)
    assert any("convolutions reach the part of their roofline" in note for note in found.notes)


def test_a_convolution_limited_by_arithmetic_is_its_product() -> None:
    gemm = model().gemm
    product = Product(type_name="bf16", m=8192, n=2048, k=4608)
    assert convolution_time(gemm, product, 1e6).time_s == gemm.price(product).time_s


def test_few_input_features_count_as_a_whole_vector() -> None:
    body = """
    %r = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {stride = [2, 2], pad = [[0, 0], [0, 0]]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
      : (tensor<64x229x229x3xf16>, tensor<7x7x3x64xf16>) -> tensor<64x112x112x64xf16>
    return %r : tensor<64x112x112x64xf16>"""
    image, kernel = "tensor<64x229x229x3xf16>", "tensor<7x7x3x64xf16>"
    found = plain(body, f"%x: {image}, %w: {kernel}", "tensor<64x112x112x64xf16>", model())
    product = Product(type_name="f16", m=64 * 112 * 112, n=64, k=7 * 7 * 8)
    moved = 2 * (64 * 229**2 * 3 + 7 * 7 * 3 * 64 + 64 * 112**2 * 64)
    expected = convolution_time(model().gemm, product, moved)
    assert found.time_s == pytest.approx(expected.time_s)
    assert expected.time_s < model().gemm.price(product).time_s


def attention(**changes: object) -> Attention:
    base = Attention(
        batch=2,
        heads=16,
        key_heads=16,
        query_length=4096,
        key_length=4096,
        head_size=128,
        value_size=128,
        is_causal=True,
        is_backward=False,
        has_bias=False,
        dropout_rate=0.0,
        window=0,
        multiplied="bf16",
    )
    return replace(base, **changes)  # pyright: ignore[reportArgumentType]


def test_attention_is_scaled_by_flops_from_its_table() -> None:
    using = attention_model(H100)
    forward = using.price(attention())
    assert 100e-6 < forward.time_s < 1e-3
    assert forward.time_s >= attention().flops / 989.5e12
    gradient = using.price(attention(is_backward=True))
    assert gradient.time_s == pytest.approx(2.5 * forward.time_s / 0.77)
    whole = using.price(attention(is_causal=False))
    assert whole.time_s == pytest.approx(forward.time_s * 2 * 4096 / 4097)
    longer = using.price(attention(query_length=8192, key_length=8192))
    assert longer.time_s > 3 * forward.time_s
    assert len(forward.notes) == 1


@pytest.mark.parametrize(
    ("node", "generation", "ratio", "is_nearest"),
    [
        ("A100_SXM_80GB", "Ampere", 0.86, False),
        ("L40S_48GB", "Ampere", 0.86, True),
        ("H100_80GB", "Hopper", 0.77, False),
        ("H200_141GB", "Hopper", 0.77, False),
        ("B200_180GB", "Hopper", 0.77, True),
    ],
)
def test_gradients_of_attention_run_at_the_rate_published_for_their_generation(
    node: str, generation: str, ratio: float, is_nearest: bool
) -> None:
    using = attention_model(load_device(node))
    forward, gradient = attention(), attention(is_backward=True)
    rate, backward_rate = (each.flops / using.price(each).time_s for each in (forward, gradient))
    assert backward_rate == pytest.approx(ratio * rate)
    (note,) = [each for each in using.price(gradient).notes if "gradients" in each]
    assert f"gradients of attention run at {ratio:g} of the measured rate" in note
    assert generation in note
    assert "FlashAttention-" in note
    assert ("nearest" in note) == is_nearest
    assert not any("gradients" in each for each in using.price(forward).notes)


def test_a_device_is_needed_and_one_that_tables_serve() -> None:
    with pytest.raises(ConfigError, match="method 'measured' needs a device"):
        estimator("measured", EstimatorSpec())
    with pytest.raises(HardwareError, match="no tables of measured kernels"):
        estimator("measured", EstimatorSpec(device=load_device("TPUv3")))
    assert estimator("measured", SPEC).method == "measured"


def test_every_kernel_of_a_compiled_step_is_priced() -> None:
    name = "llama3_100m_h100_4.hlo"
    program = with_device_count(load_source(workload(name), name=name), requested=None, system=None)
    found = total(split_scheduled(program), model())
    assert set(found.per_op) >= {"mhlo.fusion", "stablehlo.custom_call"}
    assert 20e-3 < found.time_s < 60e-3


CONFIGURATIONS = sorted((PRESETS_DIRECTORY / "nodes").glob("*/measured/config.json"))


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: file.parent.parent.name)
def test_every_node_with_tables_has_a_configuration_that_works(file: Path) -> None:
    configured = read_configuration(file).values
    hardware = configured["hardware"]
    assert isinstance(hardware, NodeHardware)
    assert hardware.node == file.parent.parent.name
    spec = EstimatorSpec(device=load_device(hardware.node), hardware=hardware)
    assert estimator(str(configured["method"]), spec).method == "measured"


def test_nodes_without_a_configuration_have_no_tables() -> None:
    configured = {file.parent.parent.name for file in CONFIGURATIONS}
    assert {name for name in device_names() if load_device(name).measured is not None} == configured


def test_a_factorisation_of_a_library_is_no_faster_than_its_arithmetic() -> None:
    kind = "tensor<4096x4096xf32>"
    text = main_function(
        '%r, %i = "stablehlo.custom_call"(%a) {call_target_name = "cusolver_potrf_ffi"} : '
        f"({kind}) -> ({kind}, tensor<i32>)\nreturn %r : {kind}",
        arguments=f"%a: {kind}",
        results=kind,
    )
    (leaf,) = expand(load_source(text.encode(), name="test.mlir").main.body.operations[:1])
    assert isinstance(leaf, Leaf)
    method = measured(SPEC, kernels=kernel_pricer(H100, None))
    timing = method.time(leaf, is_kernel=True)
    flops_s = leaf.work.total_flops / 67e12
    assert flops_s < timing.time_s < 1.05 * flops_s
    assert any("peak rate of its arithmetic" in note for note in timing.notes)
