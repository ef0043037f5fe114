"""A training step of Llama 3.1 in stages of a pipeline, sharded by FSDP2 inside of each stage.

Each rank builds the blocks of its own stages, as torchtitan does:

    hespas run torch:examples/torch_pipeline.py:train --cluster 16xH100_80GB --set stages=4

hespas records one rank of each stage, with no GPU, and runs all stages together.
"""

# torch is not installed where types are checked.
# pyright: reportFunctionMemberAccess=false, reportMissingImports=false
# pyright: reportMissingParameterType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUntypedBaseClass=false

from __future__ import annotations

import os
from typing import Literal

import torch
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch_llama import HEAD, SIZES, VOCABULARY, Block, loss_of

SCHEDULES = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
}


class Stage(nn.Module):
    """Some blocks; the first stage has the embedding too, and the last one the output."""

    def __init__(self, size: str, blocks: range, count: int, sequence: int) -> None:
        super().__init__()
        width, hidden, heads, kv_heads, _ = SIZES[size]
        self.tok_embeddings = nn.Embedding(VOCABULARY, width) if blocks.start == 0 else None
        self.layers = nn.ModuleDict(
            {str(number): Block(width, hidden, heads, kv_heads) for number in blocks}
        )
        is_last = blocks.stop == count
        self.norm = nn.RMSNorm(width, eps=1e-5) if is_last else None
        self.output = nn.Linear(width, VOCABULARY, bias=False) if is_last else None
        rotation = torch.empty(sequence, HEAD // 2, dtype=torch.complex64)
        self.register_buffer("rotation", rotation, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply what this stage has, to tokens or to what the stage before made of them."""
        h = x if self.tok_embeddings is None else self.tok_embeddings(x)
        for layer in self.layers.values():
            h = layer(h, self.rotation)
        if self.norm is None or self.output is None:
            return h
        return self.output(self.norm(h))


def sharded(stage: Stage, mesh, *, compiled: bool) -> Stage:
    """Compile and shard a stage, block by block; weights stay gathered between micro-batches."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in stage.layers.values():
        if compiled:
            block.compile(fullgraph=True)
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(stage, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    return stage.to_empty(device="cuda")


def train(
    *,
    size: Literal["8B", "70B"] = "8B",
    layers: int | None = None,
    stages: int = 4,
    schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b",
    chunks: int = 1,
    micro_batches: int = 8,
    sequence: int = 8192,
    compiled: bool = True,
):
    """Return one step; a rank takes in ``micro_batches`` sequences, and has ``chunks`` stages."""
    ranks = int(os.environ["WORLD_SIZE"])
    axes = ("pp", "dp_shard")
    mesh = init_device_mesh("cuda", (stages, ranks // stages), mesh_dim_names=axes)
    place, count = mesh.get_local_rank("pp"), layers or SIZES[size][-1]
    each, device = count // (stages * chunks), torch.device("cuda")
    own = []
    for number in range(place, stages * chunks, stages):
        with torch.device("meta"):
            part = Stage(size, range(number * each, (number + 1) * each), count, sequence)
        part = sharded(part, mesh["dp_shard"], compiled=compiled)
        group = mesh.get_group("pp")
        own.append(pipelining.PipelineStage(part, number, stages * chunks, device, group=group))
    run = SCHEDULES[schedule](
        own if schedule == "interleaved" else own[0], micro_batches, loss_fn=loss_of
    )
    parameters = [parameter for stage in own for parameter in stage.submod.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-4, fused=True)

    def step():
        optimizer.zero_grad()
        tokens = torch.randint(0, VOCABULARY, (micro_batches, sequence + 1), device="cuda")
        given = (tokens[:, :-1],) if place == 0 else ()
        labels = {"target": tokens[:, 1:]} if place == stages - 1 else {}
        run.step(*given, **labels, return_outputs=False)
        optimizer.step()

    # hespas reads it, for its tokens a second.
    step.tokens = ranks // stages * micro_batches * sequence
    return step
