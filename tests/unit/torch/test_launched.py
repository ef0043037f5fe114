"""Triton kernels that a script launches itself."""

from __future__ import annotations

import pytest

from hespas.errors import UnsupportedError
from torch_steps import kernel_calls, needs_torch, operations, record

pytestmark = needs_torch

OWN = """
import torch
import triton
import triton.language as tl

@triton.jit
def scale(x, y, factor, count, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * width + at, mask=at < width)
        tl.store(y + row * width + at, value * factor, mask=at < width)

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in SIZES]

@triton.autotune(configs=CONFIGS, key=["width"])
@triton.heuristics({"IS_EVEN": lambda named: named["width"] % named["BLOCK"] == 0})
@triton.jit
def add_one(x, width, BLOCK: tl.constexpr, IS_EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if IS_EVEN:
        tl.store(x + at, tl.load(x + at) + 1)
    else:
        tl.store(x + at, tl.load(x + at, mask=at < width) + 1, mask=at < width)

def train(rows=512, width=1000):
    x = torch.randn(int(rows), int(width), device="cuda")
    def step():
        y = torch.empty_like(x)
        scale[(x.shape[0],)](x, y, 2.0, x.numel(), x.shape[1], BLOCK=256, num_warps=2)
        scale[(y.shape[0],)](y, x, 2.0, x.numel(), x.shape[1], BLOCK=256, num_warps=2)
        add_one[lambda named: (triton.cdiv(y.numel(), named["BLOCK"]),)](y, y.numel())
        add_one.best_config.kwargs["BLOCK"]
    return step
""".replace("SIZES", "((128, 1), (1024, 4))")


def test_a_launch_of_ones_own_is_recorded() -> None:
    step = record(OWN, eager=True)
    first, second, _ = kernel_calls(step)
    assert (first.kernel, first.grids, first.integers) == (
        "scale",
        ((512, 1, 1),),
        (None, None, None, 512_000, 1000),
    )
    assert first.reads == second.writes
    assert first.writes == second.reads
    assert first.place.startswith("train.py:")
    kernel = next(kernel for kernel in step.kernels if kernel.name == "scale")
    assert [each.threads for each in kernel.configurations] == [64]
    assert ".target sm_90a" in kernel.configurations[0].ptx
    assert not step.is_compiled


def test_a_tuned_kernel_has_all_configurations() -> None:
    step = record(OWN, eager=True)
    tuned = kernel_calls(step)[-1]
    assert tuned.kernel == "add_one"
    assert tuned.grids == ((4000, 1, 1), (500, 1, 1))
    kernel = next(kernel for kernel in step.kernels if kernel.name == "add_one")
    assert [each.threads for each in kernel.configurations] == [32, 128]


def test_a_kernel_of_other_sizes_has_another_name() -> None:
    script = OWN.replace("BLOCK=256, num_warps=2)\n        scale", "BLOCK=128)\n        scale")
    assert [call.kernel for call in kernel_calls(record(script, eager=True))] == [
        "scale",
        "scale_1",
        "add_one",
    ]


def test_launches_stand_between_compiled_parts() -> None:
    script = OWN.replace(
        "y = torch.empty_like(x)", "y = torch.compile(lambda value: value.exp() + value)(x)"
    )
    step = record(script)
    assert [call.kernel.partition("_")[0] for call in kernel_calls(step)] == [
        "triton",
        "scale",
        "scale",
        "add",
    ]
    assert step.is_compiled


def test_a_kernel_inside_of_torch_compile_has_its_integers() -> None:
    script = OWN.replace("    def step():", "    @torch.compile\n    def step():").replace(
        '        add_one.best_config.kwargs["BLOCK"]\n', "        x.copy_(y)\n"
    )
    calls = kernel_calls(record(script))
    assert [call.kernel for call in calls][:3] == ["scale", "scale", "add_one"]
    assert calls[0].integers == (None, None, None, 512_000, 1000)


def test_no_configuration_that_fits_is_an_error() -> None:
    script = OWN.replace("((128, 1), (1024, 4))", "((3, 1),)")
    with pytest.raises(UnsupportedError, match=r"no configuration of the Triton kernel add_one"):
        record(script, eager=True)


def test_operations_are_recorded_beside_launches() -> None:
    script = OWN.replace("add_one.best", "(x + y).sum()\n        add_one.best")
    assert len(operations(record(script, eager=True), "aten::add")) == 1


DESCRIBED = """
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def add_one(source, target, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0) * ROWS
    for column in range(0, width, COLUMNS):
        target.store([row, column], source.load([row, column]) + 1)

def train():
    x = torch.randn(512, 256, device="cuda", dtype=torch.bfloat16)
    def step():
        y = torch.empty_like(x)
        described = [TensorDescriptor.from_tensor(each, [128, 64]) for each in (x, y)]
        add_one[(4,)](*described, 256, 128, 64)
    return step
"""


def test_tensors_that_descriptors_describe_are_read_and_written() -> None:
    (call,) = kernel_calls(record(DESCRIBED, eager=True))
    assert [tensor.shape for tensor in call.reads] == [(512, 256)]
    assert [tensor.shape for tensor in call.writes] == [(512, 256)]
    assert call.reads != call.writes
    sizes = (512, 256, 256, 1)
    assert call.integers == (None, *sizes, None, *sizes, 256)
    (before,) = kernel_calls(record(DESCRIBED, eager=True, part="A100_SXM_80GB"))
    pointer = (None, *sizes, None, None, *sizes)
    assert before.integers == (*pointer, *pointer, 256)
    assert {tensor.storage for tensor in (*before.reads, *before.writes)} == {
        tensor.storage for tensor in (*call.reads, *call.writes)
    }
