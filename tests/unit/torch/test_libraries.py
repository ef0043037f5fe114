"""Which kernels of libraries torch calls on a part."""

from __future__ import annotations

import pytest

from hespas.program.recorded import HostWait
from torch_steps import collectives, needs_torch, operations, record

pytestmark = needs_torch

_ATTENTION = """
import torch
from torch.nn import functional as F

def train():
    make = lambda heads, dtype: torch.ones(1, heads, 64, 128, device="cuda", dtype=dtype)
    q, k = make(8, torch.bfloat16).requires_grad_(), make(2, torch.bfloat16)
    wide = make(8, torch.float32)
    mask = torch.ones(64, 64, device="cuda", dtype=torch.bool)
    bias = torch.zeros(8, 64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    def step():
        F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True).sum().backward()
        F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        F.scaled_dot_product_attention(q, q, q, attn_mask=bias).sum().backward()
        F.scaled_dot_product_attention(wide, wide, wide)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(q, q, q)
        F.rms_norm(q, (128,))
    return step
"""
_CUDNN, _FLASH, _EFFICIENT = "cudnn_attention", "flash_attention", "efficient_attention"


def _attention(
    part: str, torch_version: str | None = None, *, script: str = _ATTENTION
) -> list[str]:
    step = record(script, part=part, torch_version=torch_version)
    prefix = "aten::_scaled_dot_product_"
    return [
        call.name.removeprefix(prefix).removesuffix(".default") for call in operations(step, prefix)
    ]


@pytest.mark.parametrize(
    ("part", "version", "own", "masked"),
    [
        ("H100_80GB", None, _CUDNN, _CUDNN),
        ("H100_80GB", "2.5", _FLASH, _EFFICIENT),
        ("A100_SXM_80GB", None, _FLASH, _EFFICIENT),
    ],
)
def test_part_and_version_decide_which_kernel_computes_attention(
    part: str, version: str | None, own: str, masked: str
) -> None:
    learnt = [_EFFICIENT, f"{_EFFICIENT}_backward"]
    expected = [own, f"{own}_backward", masked, *learnt, _EFFICIENT, _FLASH]
    assert _attention(part, version) == expected


_LATENT = """
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

def train():
    make = lambda head: torch.ones(
        1, 8, 64, head, device="cuda", dtype=torch.bfloat16, requires_grad=True
    )
    q, v, odd = make(192), make(128), make(160)
    def step():
        F.scaled_dot_product_attention(q, q, v, is_causal=True).sum().backward()
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH], set_priority=True):
            F.scaled_dot_product_attention(q, q, v)
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
            F.scaled_dot_product_attention(odd, odd, v)
    return step
"""


@pytest.mark.parametrize(
    ("part", "default"), [("H100_80GB", _CUDNN), ("A100_SXM_80GB", _EFFICIENT)]
)
def test_latent_attention_has_longer_heads_of_queries(part: str, default: str) -> None:
    expected = [default, f"{default}_backward", _CUDNN, _EFFICIENT]
    assert _attention(part, script=_LATENT) == expected


def test_a_norm_is_one_kernel_of_torchs() -> None:
    assert operations(record(_ATTENTION), "aten::_fused_rms_norm")


_CONVOLUTION = """
import torch
from torch import nn

def train(last: bool):
    net = nn.Sequential(nn.Conv2d(8, 16, 3), nn.SiLU(), nn.Conv2d(16, 16, 3)).cuda()
    x = torch.ones(2, 8, 32, 32, device="cuda")
    if last:
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return lambda: net(x).sum().backward()
"""


def test_convolutions_keep_channels_last() -> None:
    for last in (False, True):
        step = record(_CONVOLUTION, last=last)
        convolutions = operations(step, "aten::convolution")
        assert [call.name for call in convolutions] == [
            "aten::convolution.default",
            "aten::convolution.default",
            "aten::convolution_backward.default",
            "aten::convolution_backward.default",
        ]
        strides = {call.outputs[0].strides[1] for call in convolutions}
        assert (strides == {1}) is last
        assert operations(step, "aten::silu_backward")


_NORMS = """
import os
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def train(synchronised: bool = True):
    torch.distributed.init_process_group("nccl")
    net = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    if synchronised:
        net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    net = DistributedDataParallel(net.to("cuda"), device_ids=[0])
    images = torch.randn(4, 8, 32, 32, device="cuda")
    return lambda: net(images).sum().backward()
"""


def test_norms_of_batches_are_synchronised() -> None:
    step, own = record(_NORMS, devices=4), record(_NORMS, devices=4, synchronised="false")
    # A mean, a deviation and a count in the forward pass, two sums in the backward pass.
    shapes = [(call.kind, call.inputs[0].shape) for call in collectives(step)]
    assert shapes[1:3] == [("all_gather", (2 * 8 + 1,)), ("all_reduce", (2 * 8,))]
    assert len(collectives(own)) == len(shapes) - 2
    # torch takes the ranks that have images by a mask, which the host waits for.
    assert any(isinstance(call, HostWait) for call in step.calls)
    norms = [call.name for call in operations(step) if "batch_norm" in call.name]
    assert norms == [
        "aten::batch_norm_stats.default",
        "aten::batch_norm_gather_stats_with_counts.default",
        "aten::batch_norm_elemt.default",
        "aten::batch_norm_backward_reduce.default",
        "aten::batch_norm_backward_elemt.default",
    ]


_PACKED = """
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

def train():
    net = torch.nn.GRU(8, 16, batch_first=True).cuda()
    lengths = torch.tensor([4, 3, 1])
    def step():
        rows = pack_padded_sequence(torch.randn(3, 4, 8, device="cuda"), lengths, batch_first=True)
        states, lasts = pad_packed_sequence(net(rows)[0], batch_first=True)
        assert lasts.tolist() == [4, 3, 1]
        states.sum().backward()
    return step
"""


def test_packed_rows_of_a_recurrent_layer_have_the_hosts_lengths() -> None:
    step = record(_PACKED, eager=True)
    cells = operations(step, "aten::_thnn_fused_gru_cell.default")
    assert [call.outputs[0].shape for call in cells] == [(3, 16), (2, 16), (2, 16), (1, 16)]
    backward = operations(step, "aten::_thnn_fused_gru_cell_backward")
    assert backward[-1].outputs[0].shape == (3, 48)
