"""How long kernels of TPUs take, against units that are counted by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from msgspec import structs

import hespas
from hespas.hardware.device import Device, TensorCore
from hespas.hardware.presets import device_names, load_device
from hespas.price.graph import GraphEstimate
from hespas.price.roofline import Roofline
from hespas.price.tpu import CompilerEstimator, PricedKernel, matrix_unit_s, priced_kernel
from hespas.program.attrs import MOSAIC
from hespas.program.program import Program
from hespas.program.work import CustomCallCost, StatedWork, Work
from hespas.work.expand import Leaf
from hespas.work.mosaic.kernel import kernel_load
from mosaic_kernels import flash_attention, kernels, lowered, matmul, shape, splash_attention

V5E, V5P, V6E = (load_device(f"TPU{name}") for name in ("v5e", "v5p", "v6e"))
LARGE = 4096


def product(*, parallel: bool = False, size: int = LARGE) -> Program:
    block = min(size, 1024)
    blocks = (block, block, min(size, 512))
    made = matmul(size, size, size, blocks=blocks, parallel=parallel)
    return lowered(made, shape(size, size), shape(size, size))


def priced(program: Program, device: Device) -> PricedKernel:
    (op,) = kernels(program)
    found = priced_kernel(op, device)
    assert found is not None
    return found


def seconds(program: Program, device: Device) -> float:
    return priced(program, device).at_peak.time_s


def estimated(
    program: Program, device: Device, custom_calls: Mapping[str, CustomCallCost] | None = None
) -> GraphEstimate:
    graph = hespas.stages.split(program)
    return hespas.stages.estimate(graph, device, method="roofline", custom_calls=custom_calls)


def test_a_large_product_takes_what_the_matrix_unit_needs() -> None:
    assert seconds(product(), V5E) == pytest.approx(2 * LARGE**3 / 197e12)
    # Four rows and four columns of blocks: a faster matrix unit waits for memory.
    moved = 2 * LARGE**2 * (4 + 4 + 1)
    assert seconds(product(), V6E) == pytest.approx(moved / 1640e9)


def test_a_small_product_fills_a_part_of_the_unit() -> None:
    (op,) = kernels(product(size=128))
    load = kernel_load(op)
    core = V6E.tensor_core
    assert core is not None
    assert core.matrix_unit_size == 256
    assert matrix_unit_s(load, V6E, core) == pytest.approx(4 * 2 * 128**3 / 918e12)


def test_a_kernel_without_a_parallel_dimension_runs_on_one_of_two_cores() -> None:
    alone, shared = seconds(product(), V5P), seconds(product(parallel=True), V5P)
    assert alone == pytest.approx(2 * shared)
    assert any("one core" in note for note in priced(product(), V5P).at_peak.notes)


def test_a_causal_mask_takes_about_half_of_the_time() -> None:
    qkv = (shape(8, 8192, 128),) * 3
    times = [
        seconds(lowered(splash_attention(8192, 8, is_causal=mask, block=512), *qkv), V5E)
        for mask in (True, False)
    ]
    assert times[0] / times[1] == pytest.approx(17 / 32, rel=0.05)


@pytest.mark.parametrize("name", [name for name in device_names() if name.startswith("TPU")])
def test_every_tpu_prices_kernels(name: str) -> None:
    device = load_device(name)
    assert seconds(product(), device) > 2 * LARGE**3 / device.rate("bf16") * 0.999


def test_a_program_names_its_kernels_and_divides_their_time() -> None:
    q = shape(1, 4, 2048, 128)
    found = estimated(lowered(flash_attention(is_causal=True), q, q, q), V6E).total
    (name,) = found.per_op
    assert name == "stablehlo.custom_call _flash_attention_kernel"
    assert found.per_op[name].bound.known_s == pytest.approx(found.time_s)
    assert any("kernels of Pallas" in note for note in found.notes)


def test_the_work_that_a_user_states_goes_first() -> None:
    stated = {MOSAIC: StatedWork(work=Work(flops=(("bf16", 918 * 10**6),)))}
    assert estimated(product(), V6E, stated).total.time_s == pytest.approx(1e-6)


def test_without_a_description_of_the_units_the_peaks_price_a_kernel() -> None:
    plain = replace(V6E, tensor_core=None)
    (op,) = kernels(product())
    assert priced_kernel(op, plain) is None
    assert estimated(product(), plain).total.time_s > 0


def test_more_units_are_faster() -> None:
    program = lowered(flash_attention(is_causal=True), *(shape(1, 4, 2048, 128),) * 3)
    fast = replace(V6E, memory_bandwidth_bytes_per_s=1e15)
    core = fast.tensor_core
    assert isinstance(core, TensorCore)
    wide = structs.replace(core, arithmetic=2 * core.arithmetic)
    assert seconds(program, replace(fast, tensor_core=wide)) < seconds(program, fast)


def test_a_schedule_adds_what_peaks_overlap() -> None:
    program = lowered(flash_attention(is_causal=True), *(shape(1, 4, 2048, 128),) * 3)
    found = priced(program, V6E)
    core, clock_hz = V6E.tensor_core, V6E.clock_hz
    assert core is not None
    assert clock_hz is not None
    steps_s = 4 * 16 * 16 * core.step_cycles / clock_hz
    assert found.scheduled.time_s > found.at_peak.time_s + steps_s


def test_a_compiled_program_takes_the_schedule() -> None:
    (op,) = kernels(product())
    compiled = CompilerEstimator(clock_hz=1.75e9, roofline=Roofline(device=V6E))
    price = compiled.price(Leaf(op=op, work=kernel_load(op).work), is_kernel=True)
    assert price.cost.time_s == pytest.approx(priced(product(), V6E).scheduled.time_s)
    assert price.label == "stablehlo.custom_call kernel"
