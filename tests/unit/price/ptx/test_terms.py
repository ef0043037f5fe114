import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from hespas.frontend.load import load_source
from hespas.hardware.microarchitecture import load_microarchitecture
from hespas.price.kernel import COLUMN_REDUCTION, LOOP, TRANSPOSE, kernel_of
from hespas.price.ptx.categories import terms_by_category
from hespas.price.ptx.terms import (
    KernelAnalysis,
    KernelTerms,
    Product,
    memory_turns,
    pipe_cycles,
    reasons,
    terms_of,
)
from hespas.program.program import Op

from .conftest import COLUMNS, STREAM, analyse, launch

GPU = load_microarchitecture("H100_80GB")
BANDWIDTH = 3.35e12


def stream(blocks: int = 2**19) -> KernelAnalysis:
    return analyse(STREAM, launch("stream", blocks=blocks, threads=128))


def columns(blocks: int = 32) -> KernelAnalysis:
    return analyse(COLUMNS, launch("columns", blocks=blocks, threads=1024))


def terms(kernel: KernelAnalysis, bytes_moved: float) -> KernelTerms:
    return terms_of(kernel, GPU, bytes_moved=bytes_moved, memory_bandwidth_bytes_per_s=BANDWIDTH)


def test_a_stream_takes_what_memory_takes_and_nothing_of_l2() -> None:
    found = terms(stream(), 2 * 4 * 2**26)
    assert found.memory_s == pytest.approx(2 * 4 * 2**26 / (BANDWIDTH * GPU.memory_efficiency))
    assert found.l2_s == 0


def test_many_small_blocks_are_limited_by_their_turnover() -> None:
    found = terms(stream(), 2 * 4 * 2**26)
    share = -(-(2**19) // GPU.multiprocessors)
    assert found.turnover_s == pytest.approx(share * 4 * GPU.warp_turnover_cycles / GPU.clock_hz)
    assert found.limit == "block turnover"
    assert found.time_s == pytest.approx(found.turnover_s + GPU.launch_s)


def test_scalar_stores_cost_l2_three_times_their_bytes_more() -> None:
    kernel = columns()
    moved = 2 * 2.0 * 4096 * 4096
    found = terms(kernel, moved)
    assert found.l2_s == pytest.approx(3 * moved / 2 / GPU.l2_bandwidth_bytes_per_s)
    assert memory_turns(kernel) == pytest.approx(200 / 256)
    assert "4x L2 write sectors: 2-byte stores at 8-byte stride" in "; ".join(
        reasons(found, kernel)
    )


def test_the_busiest_multiprocessor_decides() -> None:
    one, two = (terms(columns(GPU.multiprocessors + extra), 1.0) for extra in (0, 1))
    assert two.pipe_s == pytest.approx(2 * one.pipe_s)
    assert two.l1_s == pytest.approx(2 * one.l1_s)


@given(
    memory=st.floats(0, 1),
    l2=st.floats(0, 1),
    l1=st.floats(0, 1),
    pipe=st.floats(0, 1),
    turnover=st.floats(0, 1),
)
def test_a_kernel_takes_at_least_its_largest_limit_and_at_most_all(
    memory: float, l2: float, l1: float, pipe: float, turnover: float
) -> None:
    found = KernelTerms(
        memory_s=memory,
        l2_s=l2,
        l1_s=l1,
        pipe_s=pipe,
        pipe="issue",
        turnover_s=turnover,
        launch_s=1e-6,
    )
    limits = (memory, l2, l1, pipe, turnover)
    assert max(limits) <= found.time_s <= sum(limits) + 1e-6 + 1e-12
    slower = replace(found, l2_s=2 * l2, pipe_s=2 * pipe)
    assert slower.time_s >= found.time_s


def test_slower_parts_never_make_a_kernel_faster() -> None:
    kernel, moved = columns(300), 3e8
    fast = terms(kernel, moved).time_s
    for figure in ("clock_hz", "l2_bandwidth_bytes_per_s", "issue_lanes", "memory_efficiency"):
        gpu = msgspec.structs.replace(GPU, **{figure: getattr(GPU, figure) / 2})
        slow = terms_of(
            kernel, gpu, bytes_moved=moved, memory_bandwidth_bytes_per_s=BANDWIDTH
        ).time_s
        assert slow >= fast
    assert terms(kernel, 2 * moved).time_s > fast


def test_work_for_either_pipe_goes_where_there_is_room() -> None:
    kernel = stream(1)
    base = pipe_cycles(kernel, GPU)
    more = changed(kernel.slots, either=kernel.slots.either + 1000)
    balanced = pipe_cycles(changed(kernel, slots=more), GPU)
    assert balanced["fused"] == base["fused"]
    assert balanced["logic"] == pytest.approx(
        32 * (more.logic + more.fused + more.either) / (GPU.logic_lanes + GPU.fused_lanes)
    )


def test_a_short_kernel_is_its_launch() -> None:
    found = terms(stream(1), 1024)
    assert found.limit == "launch"
    assert reasons(found, stream(1)) == ("shorter than its launch",)
    assert "no PTX" in reasons(found, None)[0]


def transposed(shape: tuple[int, ...], order: tuple[int, ...], element: str) -> Op:
    made = [shape[dimension] for dimension in order]
    before, after = ("x".join([*map(str, each), element]) for each in (shape, made))
    text = (
        f"func.func @main(%x: tensor<{before}>) -> tensor<{after}> {{\n"
        f"  %y = stablehlo.transpose %x, dims = {[*order]} : "
        f"(tensor<{before}>) -> tensor<{after}>\n"
        f"  return %y : tensor<{after}>\n}}"
    )
    return load_source(text.encode(), name="transposed.mlir").main.body.operations[0]


@pytest.mark.parametrize(
    ("shape", "order", "element", "compiled"),
    [
        ((8192, 8192), (1, 0), "f32", 0.96),
        ((8192, 8192), (1, 0), "bf16", 0.88),
        ((8192, 8192), (1, 0), "i8", 0.58),
        ((64, 4096, 320), (0, 2, 1), "bf16", 0.85),
        ((64, 64, 64, 320), (0, 3, 1, 2), "f32", 0.96),
        ((16, 2048, 16, 128), (0, 2, 3, 1), "bf16", 0.85),
        ((1048576, 32), (1, 0), "i8", 0.61),
        ((1048576, 8), (1, 0), "f32", 0.81),
        ((16, 1024, 1024, 2), (0, 3, 1, 2), "f32", 0.89),
        ((64, 512, 512, 3), (0, 3, 1, 2), "bf16", 0.77),
        ((16, 1024, 1024, 4), (0, 3, 1, 2), "bf16", 0.65),
        ((16, 1024, 1024, 6), (0, 3, 1, 2), "f32", 0.48),
        ((16, 4, 1024, 1024), (0, 2, 3, 1), "bf16", 0.98),
    ],
)
def test_transposes_reach_the_bandwidth_that_their_compiled_kernels_reach(
    shape: tuple[int, ...], order: tuple[int, ...], element: str, compiled: float
) -> None:
    op = transposed(shape, order, element)
    moved = 2.0 * {"i8": 1, "bf16": 2, "f32": 4}[element] * math.prod(shape)
    found = terms_by_category(
        kernel_of(op),
        GPU,
        category=kernel_of(op).category,
        bytes_moved=moved,
        memory_bandwidth_bytes_per_s=BANDWIDTH,
    )
    streaming_s = moved / (BANDWIDTH * GPU.memory_efficiency)
    assert streaming_s / (found.time_s - found.launch_s) == pytest.approx(compiled, abs=0.035)


def test_a_transpose_that_fills_no_tile_is_a_loop() -> None:
    assert kernel_of(transposed((8192, 8192), (1, 0), "f32")).category == TRANSPOSE
    assert kernel_of(transposed((64, 64, 64, 320), (0, 3, 1, 2), "f32")).category == TRANSPOSE
    assert kernel_of(transposed((64, 512, 512, 3), (0, 3, 1, 2), "f32")).category == LOOP
    assert kernel_of(transposed((16, 2048, 16, 128), (0, 2, 1, 3), "f32")).category == LOOP


def reduced(shape: tuple[int, int, int], element: str) -> str:
    """Return a kernel that sums the rows of matrices in 32 bits."""
    size, made = ",".join(map(str, shape)), f"{shape[0]},{shape[2]}"
    widened = "bitcast" if element == "f32" else "convert"
    return f"""
HloModule step

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}}

%columns (p: {element}[{size}]) -> f32[{made}] {{
  %p = {element}[{size}]{{2,1,0}} parameter(0)
  %z = f32[] constant(0)
  %c = f32[{size}]{{2,1,0}} {widened}(%p)
  ROOT %r = f32[{made}]{{1,0}} reduce(%c, %z), dimensions={{1}}, to_apply=%add
}}

ENTRY %main (p: {element}[{size}]) -> f32[{made}] {{
  %p = {element}[{size}]{{2,1,0}} parameter(0)
  ROOT %f = f32[{made}]{{1,0}} fusion(%p), kind=kInput, calls=%columns
}}
"""


@pytest.mark.parametrize(
    ("shape", "element", "compiled_us"),
    [
        ((4, 4096, 128), "bf16", 10.71),
        ((1, 4096, 1024), "bf16", 11.11),
        ((2, 1024, 512), "f32", 5.19),
        ((16, 1024, 256), "f32", 8.88),
        ((64, 1024, 512), "f32", 48.57),
        ((256, 1024, 512), "bf16", 100.3),
    ],
)
def test_reductions_of_few_columns_leave_multiprocessors_idle(
    shape: tuple[int, int, int], element: str, compiled_us: float
) -> None:
    category, time_s = reduced_s(shape, element)
    assert category != LOOP
    assert time_s * 1e6 == pytest.approx(compiled_us, rel=0.12)


@pytest.mark.parametrize(
    ("shape", "compiled_us"),
    [
        ((128, 256, 4096), 188.1),
        ((1, 4096, 32768), 219.2),
        ((9, 4096, 4096), 249.9),
    ],
)
def test_sums_of_many_columns_take_longer_the_more_rows_a_block_has(
    shape: tuple[int, int, int], compiled_us: float
) -> None:
    category, time_s = reduced_s(shape, "f32")
    assert category == COLUMN_REDUCTION
    assert time_s * 1e6 == pytest.approx(compiled_us, rel=0.15)


@pytest.mark.parametrize(
    ("shape", "compiled_us"),
    [
        ((2048, 2, 4096), 25.69),
        ((8192, 8, 512), 31.39),
        ((4096, 31, 128), 14.73),
        ((65536, 4, 64), 20.04),
    ],
)
def test_sums_of_few_rows_are_loops(shape: tuple[int, int, int], compiled_us: float) -> None:
    category, time_s = reduced_s(shape, "bf16")
    assert category == LOOP
    assert time_s * 1e6 == pytest.approx(compiled_us, rel=0.12)


def reduced_s(shape: tuple[int, int, int], element: str) -> tuple[str, float]:
    program = load_source(reduced(shape, element).encode(), name="step.hlo")
    op = next(each for each in program.main.body.operations if each.kind == "fusion")
    moved = {"bf16": 2.0, "f32": 4.0}[element] * math.prod(shape) + 4.0 * shape[0] * shape[2]
    category = kernel_of(op).category
    found = terms_by_category(
        kernel_of(op),
        GPU,
        category=category,
        bytes_moved=moved,
        memory_bandwidth_bytes_per_s=BANDWIDTH,
    )
    return category, found.time_s


TWO_RESULTS = """
HloModule step

%both (p: bf16[4,1024,1024]) -> (bf16[4,1024,1024], bf16[1024,1024,4]) {
  %p = bf16[4,1024,1024]{2,1,0} parameter(0)
  %n = bf16[4,1024,1024]{2,1,0} negate(%p)
  %t = bf16[1024,1024,4]{2,1,0} transpose(%n), dimensions={1,2,0}
  ROOT %r = (bf16[4,1024,1024]{2,1,0}, bf16[1024,1024,4]{2,1,0}) tuple(%n, %t)
}

ENTRY %main (p: bf16[4,1024,1024]) -> (bf16[4,1024,1024], bf16[1024,1024,4]) {
  %p = bf16[4,1024,1024]{2,1,0} parameter(0)
  ROOT %f = (bf16[4,1024,1024]{2,1,0}, bf16[1024,1024,4]{2,1,0}) fusion(%p), kind=kLoop, calls=%both
}
"""


def test_a_second_result_in_another_order_is_stored_in_parts_of_sectors() -> None:
    program = load_source(TWO_RESULTS.encode(), name="step.hlo")
    op = next(each for each in program.main.body.operations if each.kind == "fusion")
    found = terms_by_category(
        kernel_of(op),
        GPU,
        category=kernel_of(op).category,
        bytes_moved=1.0,
        memory_bandwidth_bytes_per_s=BANDWIDTH,
    )
    assert found.l2_s == pytest.approx(2**22 * (32 - 2) / GPU.l2_bandwidth_bytes_per_s)


def test_products_run_while_their_operands_come() -> None:
    product = Product(datatype="bf16", flops=2.0 * 128 * 256 * 4096, is_of_warp=False)
    tile = changed(columns(blocks=132), products=(product,))
    rate = {"bf16": 4096.0}
    found = terms_of(
        tile,
        GPU,
        bytes_moved=1e6,
        memory_bandwidth_bytes_per_s=BANDWIDTH,
        tensor_flops_per_cycle=rate,
    )
    cycles = product.flops / 4096 / GPU.pipe_efficiency
    assert found.tensor_s == pytest.approx(cycles / GPU.clock_hz)
    assert found.time_s == pytest.approx(
        max(found.tensor_s, terms(changed(tile, products=()), 1e6).time_s - GPU.launch_s)
        + GPU.launch_s
    )
    by_warps = changed(tile, products=(changed(product, is_of_warp=True),))
    slower = terms_of(
        by_warps,
        GPU,
        bytes_moved=1e6,
        memory_bandwidth_bytes_per_s=BANDWIDTH,
        tensor_flops_per_cycle=rate,
    )
    assert GPU.warp_product_share is not None
    assert slower.tensor_s == pytest.approx(found.tensor_s / GPU.warp_product_share)


def test_products_without_tensor_cores_take_the_lanes_that_multiply_and_add() -> None:
    product = Product(datatype="f16", flops=1e6, is_of_warp=False)
    found = terms(changed(columns(), products=(product,)), 0.0)
    assert found.tensor_s == pytest.approx(
        1e6 / (2 * GPU.fused_lanes) / GPU.pipe_efficiency / GPU.clock_hz
    )
