"""Steps that torchtitan published in December 2024 and June 2025, with the software of that time.

`examples/torch_llama.py` is the same step with today's: PyTorch's fused norm and a compiled loss.
Then the norm was written in operations, and the loss was not compiled. Parallelised as torchtitan
does it (pytorch/torchtitan@b5bcd76, BSD-3-Clause): FSDP2, every second product computed again.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Literal

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "torch_llama.py"


def example() -> ModuleType:
    """Return the example as a module."""
    spec = importlib.util.spec_from_file_location("torch_llama", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    # torch.compile looks modules up by name.
    sys.modules["torch_llama"] = module
    spec.loader.exec_module(module)
    return module


class Norm(nn.Module):
    """RMSNorm as torch 2.6 ran it: operations in f32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale each row to a mean square of one."""
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(
            x
        ) * self.weight


def in_8_bits(model: nn.Module, recipe: Literal["tensorwise", "rowwise"]) -> None:
    """Multiply in 8 bits in the layers, as torchtitan 0.1.0 did.

    Its checkpointing keeps the greatest magnitudes, and no product in 8 bits.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: PLC0415

    config = Float8LinearConfig.from_recipe_name(recipe)
    convert_to_float8_training(
        model, config=config, module_filter_fn=lambda _, name: "output" not in name
    )


def divided_by_tensors(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide products over the mesh, and the rest by tokens, as torchtitan 0.1.0 did.

    Source: pytorch/torchtitan, models/llama3/infra/parallelize.py, ``apply_tp``.
    """
    by_tokens = Shard(1)
    of_model = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=by_tokens),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(
            input_layouts=by_tokens, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    parallelize_module(model, mesh, of_model)
    gathered = {"input_layouts": (by_tokens,), "desired_input_layouts": (Replicate(),)}
    with_rotation = {name: (*layouts, None) for name, layouts in gathered.items()}
    columns = ("attention.wq", "attention.wk", "attention.wv", "feed_forward.w1", "feed_forward.w3")
    of_block = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(**with_rotation),
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(**gathered),
        **{name: ColwiseParallel() for name in columns},
        "attention.wo": RowwiseParallel(output_layouts=by_tokens),
        "feed_forward.w2": RowwiseParallel(output_layouts=by_tokens),
    }
    for block in model.layers.values():
        parallelize_module(block, mesh, of_block)


def train(
    *,
    compiled: bool,
    batch: int = 2,
    sequence: int = 8192,
    float8: Literal["", "tensorwise", "rowwise"] = "",
    tp: int = 1,
):
    """Return a step of Llama 3.1 8B; ``compiled`` compiles each block.

    With ``float8`` the step is that of June 2025 (torchtitan 0.1.0): it needs torchao, and the loss
    is compiled where ``tp`` devices do not divide it.
    """
    llama = example()
    llama.KEPT.add(torch.ops.aten.max.default)
    nn.RMSNorm, fused = Norm, nn.RMSNorm
    ranks = int(os.environ["WORLD_SIZE"])
    meshes = init_device_mesh("cuda", (ranks // tp, tp), mesh_dim_names=("dp", "tp"))
    mesh = meshes["dp"]
    with torch.device("meta"):
        model = llama.Llama("8B", None, sequence)
    nn.RMSNorm = fused
    if float8:
        in_8_bits(model, float8)
    if tp > 1:
        divided_by_tensors(model, meshes["tp"])
    for name, block in model.layers.items():
        wrapped = checkpoint_wrapper(
            block, context_fn=llama.every_second_product, preserve_rng_state=False
        )
        if compiled:
            wrapped.compile(fullgraph=True)
        model.layers[name] = wrapped
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    last = str(len(model.layers) - 1)
    for name, block in model.layers.items():
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=name != last)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.zeros(batch, sequence, dtype=torch.long, device="cuda")

    loss_of = torch.compile(llama.loss_of) if float8 and tp == 1 else llama.loss_of

    def step():
        optimizer.zero_grad()
        with loss_parallel() if tp > 1 else nullcontext():
            logits = model(tokens)
            loss = loss_of(logits, tokens)
            del logits
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()

    step.tokens = ranks // tp * batch * sequence
    return step
