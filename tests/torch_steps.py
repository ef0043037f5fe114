"""Scripts of PyTorch, and their steps as hespas records them, each once in a test run."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hespas.compile.targets import GpuTarget, find_target
from hespas.program.recorded import (
    CollectiveCall,
    KernelCall,
    Operation,
    RecordedStep,
    decode_recorded,
)
from hespas.sources.options import TorchOptions
from hespas.sources.torch_step import TorchStep, record_torch

needs_torch = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("triton") is None, reason="needs hespas[torch]"
)
"""Marks tests that record: `make test-torch` runs them."""

NET = """
import os
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self, width, layers, vocabulary=1000):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.out = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)

def loss_of(net, ids):
    return F.cross_entropy(net(ids).flatten(0, 1).float(), ids.flatten())
"""

TRAIN = f"""{NET}
def train(layers: int = 2, width: int = 256, fused: bool | None = True):
    net = Net(width, layers).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(net.parameters(), fused=fused)
    def step():
        ids = torch.randint(0, 1000, (4, 128), device="cuda")
        loss_of(net, ids).backward()
        optimizer.step()
        optimizer.zero_grad()
    return step
"""
LOOP = f"""{NET}
import argparse
from torch.utils.data import DataLoader, Dataset

class Tokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randint(0, 1000, (128,))

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=256)
    net = Net(parser.parse_args().width, 2).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    for ids in DataLoader(Tokens(), batch_size=4, num_workers=2, persistent_workers=True):
        loss = loss_of(net, ids.cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    raise AssertionError("all steps have run")
"""
"""A script whose loop has the step of `TRAIN`, with batches that the host makes."""
COMPILED = f"""{NET}
def train(whole: bool = False, layers: int = 2):
    net = Net(256, layers).to("cuda", torch.bfloat16)
    loss = loss_of
    if whole:
        loss = torch.compile(loss_of)
    else:
        for layer in net.layers:
            layer.compile(fullgraph=True)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    def step():
        ids = torch.randint(0, 1000, (4, 128), device="cuda")
        loss(net, ids).backward()
        optimizer.step()
        optimizer.zero_grad()
    return step
"""

FSDP = f"""{NET}
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

class Again(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)

def train(layers: int = 2, recompute: bool = False, compiled: bool = False):
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("dp",))
    with torch.device("meta"):
        net = Net(256, layers)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for index, layer in enumerate(net.layers):
        if compiled:
            layer.compile(fullgraph=True)
        net.layers[index] = fully_shard(layer, mesh=mesh, mp_policy=policy)
        if recompute:
            net.layers[index] = Again(layer)
    fully_shard(net, mesh=mesh, mp_policy=policy)
    net.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    def step():
        ids = torch.randint(0, 1000, (4, 128), device="cuda")
        loss_of(net, ids).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    step.tokens = 4 * 128 * dist.get_world_size()
    return step
"""


def record(
    script: str,
    function: str = "train",
    *,
    devices: int = 1,
    part: str = "H100_80GB",
    eager: bool = False,
    torch_version: str | None = None,
    **arguments: object,
) -> RecordedStep:
    """Record the step that a function of a script returns, or a script without a function."""
    texts = tuple((name, str(value)) for name, value in arguments.items())
    options = TorchOptions(eager=eager, torch_version=torch_version)
    return _recorded(script, function, (devices, part), options, texts)


@cache
def _recorded(
    script: str,
    function: str,
    cluster: tuple[int, str],
    options: TorchOptions,
    arguments: tuple[tuple[str, str], ...],
) -> RecordedStep:
    devices, part = cluster
    target = find_target(part)
    assert isinstance(target, GpuTarget)
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        (Path(directory) / "train.py").write_text(script)
        patch.chdir(directory)
        step = TorchStep(
            module="train.py",
            function=function,
            arguments=dict(arguments) if function else {},
            words=() if function else tuple(f"--{name}={value}" for name, value in arguments),
            target=target,
            devices=devices,
            options=options,
        )
        return decode_recorded(record_torch(step)[0])


def operations(step: RecordedStep, name: str = "") -> list[Operation]:
    """Return the operations of a step, those whose names begin so."""
    calls = [call for call in step.calls if isinstance(call, Operation)]
    return [call for call in calls if call.name.startswith(name)]


def collectives(step: RecordedStep) -> list[CollectiveCall]:
    """Return the collectives of a step."""
    return [call for call in step.calls if isinstance(call, CollectiveCall)]


def kernel_calls(step: RecordedStep) -> list[KernelCall]:
    """Return the launches of Triton kernels of a step."""
    return [call for call in step.calls if isinstance(call, KernelCall)]


def bytes_after(step: RecordedStep) -> dict[str, int]:
    """Return the bytes that are held after a step, by role."""
    held: dict[str, int] = {}
    for storage in step.storages:
        if storage.freed is None:
            held[storage.role] = held.get(storage.role, 0) + storage.size_bytes
    return held


def peak_bytes(step: RecordedStep, *, block: int = 512) -> int:
    """Return the most bytes that are held at a time, in blocks of the allocator."""
    changes: dict[int, list[int]] = {}
    for storage in step.storages:
        size = -(-storage.size_bytes // block) * block
        begin = -1 if storage.allocated is None else storage.allocated
        changes.setdefault(begin, []).append(size)
        if storage.freed is not None:
            # What is freed before a call is gone when that call's output is there.
            changes.setdefault(storage.freed, []).insert(0, -size)
    held = peak = 0
    for position in sorted(changes):
        for change in changes[position]:
            held += change
            peak = max(peak, held)
    return peak
