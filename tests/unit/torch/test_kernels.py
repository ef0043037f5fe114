"""Compiled steps: Triton kernels, what they read and write, and their PTX."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hespas.program.recorded import RecordedStep, decode_recorded
from torch_steps import (
    COMPILED,
    TRAIN,
    bytes_after,
    collectives,
    kernel_calls,
    needs_torch,
    operations,
    peak_bytes,
    record,
)

pytestmark = needs_torch


def test_equal_layers_are_compiled_once() -> None:
    step = record(COMPILED)
    forward = [call for call in kernel_calls(step) if call.phase == "forward"]
    count = len(forward) // 2
    assert count > 0
    assert [call.kernel for call in forward[:count]] == [call.kernel for call in forward[count:]]
    assert {call.scope.split(".")[1] for call in forward[:count]} == {"0"}
    assert {call.scope.split(".")[1] for call in forward[count:]} == {"1"}
    assert step.is_compiled


def test_products_stay_with_libraries_and_holds_are_those_of_eager_mode() -> None:
    compiled, eager = record(COMPILED), record(TRAIN)
    assert len(operations(compiled, "aten::mm")) == len(operations(eager, "aten::mm"))
    assert bytes_after(compiled) == bytes_after(eager)
    assert peak_bytes(compiled) <= peak_bytes(eager)


def test_a_kernel_has_ptx_for_the_part_and_a_grid_for_each_configuration() -> None:
    step = record(COMPILED)
    kernels = {kernel.name: kernel for kernel in step.kernels}
    for call in kernel_calls(step):
        kernel = kernels[call.kernel]
        assert len(call.grids) == len(kernel.configurations)
        assert all(min(grid) >= 1 for grid in call.grids)
        for configuration in kernel.configurations:
            assert ".target sm_90a" in configuration.ptx
            assert configuration.threads % 32 == 0
    assert set(kernels) == {call.kernel for call in kernel_calls(step)}


def test_a_kernel_says_what_it_reads_and_writes() -> None:
    step = record(COMPILED)
    gelu = next(call for call in kernel_calls(step) if "gelu" in call.kernel)
    assert [tensor.shape for tensor in gelu.reads] == [(512, 1024)]
    assert [tensor.shape for tensor in gelu.writes] == [(4, 128, 1024)]
    # 2^19 elements, in blocks of 1024 or 512.
    assert {grid[0] for grid in gelu.grids} <= {512, 1024}


def test_a_step_that_is_compiled_whole_has_its_modules() -> None:
    step = record(COMPILED, whole=True)
    forward = [call for call in operations(step, "aten::mm") if call.phase == "forward"]
    assert [call.scope for call in forward] == [
        "layers.0.up",
        "layers.0.down",
        "layers.1.up",
        "layers.1.down",
        "out",
    ]
    assert {call.place for call in forward[:4]} == {forward[0].place}
    assert forward[0].place.startswith("train.py:")
    assert bytes_after(step) == bytes_after(record(TRAIN))


def test_without_compilation_nothing_is_compiled() -> None:
    eager = record(COMPILED, eager=True)
    assert not eager.kernels
    assert not eager.is_compiled
    assert [call.name for call in operations(eager)] == [
        call.name for call in operations(record(TRAIN))
    ]


def test_the_example_recomputes_every_second_product_of_a_block() -> None:
    script = Path("examples/torch_llama.py").read_text()
    step = record(script, devices=8, layers=1, batch=2)
    assert step.mesh == (("dp_shard", 8),)
    assert step.tokens == 8 * 2 * 8192
    again = [call for call in operations(step, "aten::mm") if call.phase == "recompute"]
    assert [call.scope for call in again] == [
        "layers.0.attention.wo",
        "layers.0.feed_forward.w3",
        "layers.0.attention.wk",
    ]
    assert [call.kind for call in collectives(step)].count("reduce_scatter") == 2


_IN_8_BITS = """
import torch
from torch.nn import functional as F

def multiplied(x, w):
    scale = x.abs().max() / 448
    small = (x / scale).to(torch.float8_e4m3fn)
    return F.relu(torch._scaled_mm(small, w, scale.float(), scale.float(), out_dtype=x.dtype))

def train():
    compiled = torch.compile(multiplied)
    x = torch.ones(64, 128, device="cuda", dtype=torch.bfloat16)
    w = torch.ones(256, 128, device="cuda").to(torch.float8_e4m3fn).t()
    return lambda: compiled(x, w)
"""


def test_products_in_8_bits_are_written_into_buffers_of_compiled_code() -> None:
    step = record(_IN_8_BITS)
    (call,) = operations(step, "aten::_scaled_mm")
    assert [tensor.shape for tensor in call.outputs] == [(64, 256)]
    assert {kernel.name[:11] for kernel in step.kernels} == {"triton_red_", "triton_poi_"}


_TUNED = """
import torch

def train(mode: str = "default"):
    net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU())
    net = torch.compile(net.to("cuda", torch.bfloat16), mode=mode)
    def step():
        net(torch.ones(512, 512, device="cuda", dtype=torch.bfloat16)).sum().backward()
    return step
"""


@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
def test_modes_that_time_kernels_have_those_of_the_default_mode(mode: str) -> None:
    plain, tuned = record(_TUNED), record(_TUNED, mode=mode)
    assert operations(plain)
    assert operations(tuned) == operations(plain)
    assert [call.grids for call in kernel_calls(tuned)] == [
        call.grids for call in kernel_calls(plain)
    ]


_AGAIN = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x):
        self.last = self.inner
        x = x + torch.tensor([1.0], device="cuda")
        return checkpoint(self.attend, x, use_reentrant=False)

    def attend(self, x):
        heads = self.inner(x).view(2, 128, 4, 16).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=DROPPED)

def train():
    net = torch.compile(Net().to("cuda", torch.bfloat16))
    x = torch.randn(2, 128, 64, device="cuda", dtype=torch.bfloat16)
    return lambda: net(x).sum().backward()
"""


@pytest.mark.parametrize("dropped", ["0.0", "0.1"])
def test_compiled_attention_that_is_computed_again_is_recorded_twice_and_its_gradient_once(
    dropped: str,
) -> None:
    step = record(_AGAIN.replace("DROPPED", dropped))
    attention = operations(step, "aten::_scaled_dot_product")
    assert ["backward" in call.name for call in attention] == [False, False, True]


_OTHER_TORCH = "HESPAS_CUDA_TORCH"


@pytest.mark.skipif(
    _OTHER_TORCH not in os.environ,
    reason=f"needs torch's CUDA wheel beside its CPU wheel: its Python, in {_OTHER_TORCH}",
)
def test_kernels_of_the_cuda_wheel_are_those_of_the_cpu_wheel(tmp_path: Path) -> None:
    script, file = tmp_path / "train.py", tmp_path / "step.json"
    script.write_text(COMPILED)
    words = ("export", f"torch:{script}:train", "--cluster", "1xH100_80GB", "-o", str(file))
    python = os.environ[_OTHER_TORCH]
    subprocess.run([python, "-m", "hespas", *words], check=True, cwd=tmp_path)
    other, own = decode_recorded(file.read_bytes()), record(COMPILED)
    assert [call.kernel for call in kernel_calls(other)] == [
        call.kernel for call in kernel_calls(own)
    ]
    assert _instructions(other) == _instructions(own)


def _instructions(step: RecordedStep) -> list[list[str]]:
    """Return the instructions of all kernels, without the paths of their sources."""
    return [
        [text for line in each.ptx.splitlines() if (text := line.strip()).endswith(";")]
        for kernel in step.kernels
        for each in kernel.configurations
    ]
