"""A training step of Llama 3.1 in PyTorch: FSDP2, selective checkpointing, one compilation a block.

Parallelised as torchtitan does it (https://github.com/pytorch/torchtitan, BSD-3-Clause):

    hespas run torch:examples/torch_llama.py:train --cluster 8xH100_80GB --set batch=2

hespas calls `train`, and the step that it returns, with no GPU.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Literal

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

VOCABULARY, HEAD = 128_256, 128
# Width, width of the feed-forward, heads, heads of keys and values, layers.
SIZES = {"8B": (4096, 14_336, 32, 8, 32), "70B": (8192, 28_672, 64, 8, 80)}


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.repeats = heads // kv_heads
        self.wq = nn.Linear(width, heads * HEAD, bias=False)
        self.wk = nn.Linear(width, kv_heads * HEAD, bias=False)
        self.wv = nn.Linear(width, kv_heads * HEAD, bias=False)
        self.wo = nn.Linear(heads * HEAD, width, bias=False)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """Mix the tokens of each sequence."""
        batch, sequence, _ = x.shape
        layers = (self.wq, self.wk, self.wv)
        q, k, v = (layer(x).view(batch, sequence, -1, HEAD) for layer in layers)
        q, k = rotated(q, rotation), rotated(k, rotation)
        k, v = (each.repeat_interleave(self.repeats, dim=2) for each in (k, v))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, sequence, -1))


def rotated(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Turn pairs of numbers by angles that grow with the position."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turned = torch.view_as_real(pairs * rotation[: x.shape[1]].view(1, x.shape[1], 1, -1))
    return turned.flatten(3).type_as(x)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the gated layers."""
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """One layer."""

    def __init__(self, width: int, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, kv_heads)
        self.feed_forward = FeedForward(width, hidden)
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.ffn_norm = nn.RMSNorm(width, eps=1e-5)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        """Apply attention and the feed-forward, each on top of its input."""
        h = x + self.attention(self.attention_norm(x), rotation)
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    """Token embeddings, blocks, and the logits."""

    def __init__(self, size: str, layers: int | None, sequence: int) -> None:
        super().__init__()
        width, hidden, heads, kv_heads, count = SIZES[size]
        self.tok_embeddings = nn.Embedding(VOCABULARY, width)
        blocks = {str(i): Block(width, hidden, heads, kv_heads) for i in range(layers or count)}
        self.layers = nn.ModuleDict(blocks)
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.output = nn.Linear(width, VOCABULARY, bias=False)
        rotation = torch.empty(sequence, HEAD // 2, dtype=torch.complex64)
        self.register_buffer("rotation", rotation, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next tokens."""
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h, self.rotation)
        return self.output(self.norm(h))


KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


def every_second_product():
    """Keep every second matrix product, and attention; compute the rest again."""
    counts = defaultdict(int)

    def policy(context, operation, *_arguments, **_options):
        is_product = operation == torch.ops.aten.mm.default
        counts[context.is_recompute] += is_product
        is_kept = operation in KEPT and not (is_product and counts[context.is_recompute] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def train(
    *,
    size: Literal["8B", "70B"] = "8B",
    layers: int | None = None,
    batch: int = 1,
    sequence: int = 8192,
    checkpoint: Literal["selective", "full", "none"] = "selective",
    compiled: bool = True,
):
    """Return one step of training; ``batch`` counts sequences of a rank."""
    ranks = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("dp_shard",))
    with torch.device("meta"):
        model = Llama(size, layers, sequence)
    for name, block in model.layers.items():
        wrapped = block
        if checkpoint == "selective":
            wrapped = checkpoint_wrapper(block, context_fn=every_second_product)
        elif checkpoint == "full":
            wrapped = checkpoint_wrapper(block)
        if compiled:
            wrapped.compile(fullgraph=True)
        model.layers[name] = wrapped
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    last = str(len(model.layers) - 1)
    for name, block in model.layers.items():
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=name != last)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    loss_function = torch.compile(loss_of) if compiled else loss_of

    def step():
        tokens = torch.randint(0, VOCABULARY, (batch, sequence + 1), device="cuda")
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = loss_function(logits, tokens[:, 1:])
        del logits
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()

    # hespas reads it, for its tokens a second.
    step.tokens = ranks * batch * sequence
    return step
