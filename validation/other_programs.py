"""Compare modelled fusion with compilers on programs that are no language models.

    python validation/other_programs.py            writes docs/data/other_programs.json anew

Each is a step in JAX, of a kind that people write: graph networks, recurrent cells, U-Nets,
embeddings, sorts. Those with ``is_rule_seen`` led to rules of the model for GPUs; the others did
not. It needs hespas[gpu] and hespas[tpu]. `validation/pages.py` writes the file into
docs/evidence/fusion.md.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax, nn

import hespas
from blocks import shaped
from other_rows import FIGURES, NODES

_F32, _BF16, _I32 = jnp.float32, jnp.bfloat16, jnp.int32
Step = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A step and the types of its arguments."""

    name: str
    step: Step
    arguments: tuple[Any, ...]
    is_rule_seen: bool = False


def graph_network(weights: Any, nodes: Any, edges: Any, labels: Any) -> Any:
    """Sum neighbours in three layers, and return the gradients."""

    def loss(weights: Any) -> Any:
        hidden = nodes
        for weight in weights:
            summed = jax.ops.segment_sum(hidden[edges[0]], edges[1], num_segments=len(hidden))
            hidden = nn.relu((hidden + summed) @ weight)
        return -jnp.mean(jnp.take_along_axis(nn.log_softmax(hidden), labels[:, None], 1))

    return jax.grad(loss)(weights)


def recurrent(of_input: Any, of_state: Any, bias: Any, inputs: Any) -> Any:
    """Run an LSTM over a sequence, and return the gradients."""

    def loss(parameters: tuple[Any, Any, Any]) -> Any:
        of_input, of_state, bias = parameters

        def cell(state: tuple[Any, Any], one: Any) -> tuple[tuple[Any, Any], Any]:
            hidden, memory = state
            gates = jnp.split(one @ of_input + hidden @ of_state + bias, 4, -1)
            enter, forget, made, leave = gates
            memory = nn.sigmoid(forget) * memory + nn.sigmoid(enter) * jnp.tanh(made)
            hidden = nn.sigmoid(leave) * jnp.tanh(memory)
            return (hidden, memory), hidden

        start = jnp.zeros((inputs.shape[0], of_state.shape[0]), _BF16)
        _, outputs = lax.scan(cell, (start, start), inputs.transpose(1, 0, 2))
        return (outputs.astype(_F32) ** 2).mean()

    return jax.grad(loss)((of_input, of_state, bias))


def u_net(kernels: Any, images: Any) -> Any:
    """Halve images three times and double them again; return the loss and the gradients."""

    def normed(image: Any) -> Any:
        groups = image.reshape(*image.shape[:3], 8, -1).astype(_F32)
        mean_ = groups.mean((1, 2, 4), keepdims=True)
        variance = groups.var((1, 2, 4), keepdims=True)
        return ((groups - mean_) * lax.rsqrt(variance + 1e-5)).reshape(image.shape).astype(_BF16)

    def layer(image: Any, kernel: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        made = lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=numbers)
        return nn.silu(normed(made))

    def loss(kernels: Any) -> Any:
        image, kept, window = images, [], (1, 2, 2, 1)
        for kernel in kernels[:3]:
            image = layer(image, kernel)
            kept.append(image)
            image = lax.reduce_window(image, 0.0, lax.add, window, window, "SAME") / 4
        for kernel in kernels[3:]:
            batch, height, width, features = image.shape
            image = jax.image.resize(image, (batch, 2 * height, 2 * width, features), "nearest")
            image = layer(image, kernel) + kept.pop()
        return (image.astype(_F32) ** 2).mean()

    return jax.value_and_grad(loss)(kernels)


def state_space(inputs: Any, of_gates: Any, of_other: Any, of_output: Any) -> Any:
    """Scan a gated state over a sequence; return the loss and the gradients."""

    def loss(parameters: tuple[Any, Any, Any]) -> Any:
        of_gates, of_other, of_output = parameters
        kept, made = jnp.split((inputs @ of_gates).astype(_F32), 2, -1)
        kept = nn.sigmoid(kept)

        def joined(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
            return left[0] * right[0], right[0] * left[1] + right[1]

        _, states = lax.associative_scan(joined, (kept, (1 - kept) * jnp.tanh(made)), axis=1)
        return ((states.astype(_BF16) * nn.silu(inputs @ of_other)) @ of_output).astype(_F32).mean()

    return jax.value_and_grad(loss)((of_gates, of_other, of_output))


def retrieval(queries: Any, documents: Any) -> Any:
    """Return the best 64 of two million documents for each query."""
    return lax.top_k((queries @ documents.T).astype(_F32), 64)


def experts(tokens: Any, first: Any, second: Any, of_router: Any) -> Any:
    """Sort tokens by their experts, multiply groups of rows, and return the gradients."""

    def loss(parameters: tuple[Any, Any, Any]) -> Any:
        first, second, of_router = parameters
        weights, chosen = lax.top_k(nn.softmax((tokens @ of_router).astype(_F32)), 2)
        order = jnp.argsort(chosen.reshape(-1))
        sizes = jnp.bincount(chosen.reshape(-1), length=len(first))
        hidden = nn.gelu(lax.ragged_dot(tokens[order // 2], first, sizes))
        made = lax.ragged_dot(hidden, second, sizes)
        weighted = made * weights.reshape(-1)[order][:, None].astype(_BF16)
        return (jnp.zeros_like(tokens).at[order // 2].add(weighted).astype(_F32) ** 2).mean()

    return jax.grad(loss)((first, second, of_router))


def vision(images: Any, of_patches: Any, blocks: Any) -> Any:
    """Encode patches of images in f32; return the loss and the gradients."""

    def normed(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)

    def loss(parameters: tuple[Any, Any]) -> Any:
        of_patches, blocks = parameters
        patches = images.reshape(32, 3, 14, 16, 14, 16).transpose(0, 2, 4, 3, 5, 1)
        x = patches.reshape(32, 196, 768) @ of_patches
        for block in blocks:
            parts = jnp.split(normed(x) @ block["all"], 3, -1)
            heads = [part.reshape(32, 196, 12, 64) for part in parts]
            x = x + nn.dot_product_attention(*heads).reshape(x.shape) @ block["out"]
            x = x + nn.gelu(normed(x) @ block["up"]) @ block["down"]
        return jnp.mean(normed(x) ** 2)

    return jax.value_and_grad(loss)((of_patches, blocks))


def factorisation(table: Any, places: Any, labels: Any) -> Any:
    """Train a factorisation machine on 40 of 780,000 embeddings a sample."""

    def loss(table: Any) -> Any:
        rows = table[places]
        score = 0.5 * ((rows.sum(1) ** 2).sum(-1) - (rows**2).sum((1, 2)))
        return jnp.mean(jnp.log1p(jnp.exp(-labels * score)))

    return table - 0.1 * jax.grad(loss)(table)


def sampler(first: Any, second: Any, x: Any) -> Any:
    """Take a hundred steps of a network that is small beside the cache."""
    return lax.fori_loop(0, 100, lambda _, x: x - 0.01 * (jnp.tanh(x @ first) @ second), x)


def sorted_sums(rows: Any) -> Any:
    """Sort rows of a million numbers, sum them up, and look others up."""
    ordered = jnp.sort(rows, -1)
    sums = jnp.cumsum(ordered, -1)
    return jnp.searchsorted(sums[0], rows[:, :1000]), sums[:, ::1000]


def noisy_product(x: Any, weight: Any) -> Any:
    """Multiply by a matrix with random noise, and drop a tenth of the result."""
    key = jax.random.key(0)
    kept = jax.random.bernoulli(key, 0.9, x.shape)
    return jnp.where(kept, x @ (weight + 0.01 * jax.random.normal(key, weight.shape)), 0)


_BLOCK = {
    "all": shaped(_F32, 768, 2304),
    "out": shaped(_F32, 768, 768),
    "up": shaped(_F32, 768, 3072),
    "down": shaped(_F32, 3072, 768),
}
_SQUARE = shaped(_BF16, 1024, 1024)
WORKLOADS: Sequence[Workload] = (
    Workload(
        name="graph network, 3 M edges",
        step=graph_network,
        arguments=(
            [shaped(_F32, 256, 256)] * 3,
            shaped(_F32, 200_000, 256),
            shaped(_I32, 2, 3_000_000),
            shaped(_I32, 200_000),
        ),
        is_rule_seen=True,
    ),
    Workload(
        name="LSTM, 512 tokens",
        step=recurrent,
        arguments=(
            shaped(_BF16, 1024, 4096),
            shaped(_BF16, 1024, 4096),
            shaped(_BF16, 4096),
            shaped(_BF16, 64, 512, 1024),
        ),
        is_rule_seen=True,
    ),
    Workload(
        name="top 64 of 2 M documents",
        step=retrieval,
        arguments=(shaped(_BF16, 1024, 256), shaped(_BF16, 2_000_000, 256)),
        is_rule_seen=True,
    ),
    Workload(
        name="random noise",
        step=noisy_product,
        arguments=(shaped(_F32, 256, 16384), shaped(_F32, 16384, 16384)),
        is_rule_seen=True,
    ),
    Workload(
        name="U-Net",
        step=u_net,
        arguments=([shaped(_BF16, 3, 3, 128, 128)] * 6, shaped(_BF16, 16, 128, 128, 128)),
    ),
    Workload(
        name="associative scan",
        step=state_space,
        arguments=(
            shaped(_BF16, 8, 2048, 1024),
            shaped(_BF16, 1024, 2048),
            _SQUARE,
            _SQUARE,
        ),
    ),
    Workload(
        name="experts, sorted tokens",
        step=experts,
        arguments=(
            shaped(_BF16, 8192, 1024),
            shaped(_BF16, 16, 1024, 4096),
            shaped(_BF16, 16, 4096, 1024),
            shaped(_BF16, 1024, 16),
        ),
    ),
    Workload(
        name="vision transformer, f32",
        step=vision,
        arguments=(shaped(_F32, 32, 3, 224, 224), shaped(_F32, 768, 768), [_BLOCK] * 4),
    ),
    Workload(
        name="factorisation machine",
        step=factorisation,
        arguments=(
            shaped(_F32, 781_250, 64),
            shaped(_I32, 65536, 40),
            shaped(_F32, 65536),
        ),
    ),
    Workload(
        name="sampler, 100 small steps",
        step=sampler,
        arguments=(
            shaped(_BF16, 4096, 4096),
            shaped(_BF16, 4096, 4096),
            shaped(_BF16, 8, 4096),
        ),
    ),
    Workload(
        name="sorts and sums of rows",
        step=sorted_sums,
        arguments=(shaped(_F32, 64, 1_000_000),),
    ),
)


def compared(workload: Workload, node: str) -> Mapping[str, float]:
    """Return the seconds and peak bytes of a step on one device, modelled and compiled."""
    found: dict[str, float] = {}
    with TemporaryDirectory() as directory:
        file = Path(directory) / "step.mlir"
        file.write_text(jax.jit(workload.step).lower(*workload.arguments).as_text())
        for fidelity in ("fused", "compiled"):
            made = hespas.predict(file, node, devices=1, fidelity=fidelity)
            found[f"{fidelity}_s"] = made.step_time_s
            found[f"{fidelity}_bytes"] = made.memory.peak_bytes
            print(workload.name, node, fidelity, f"{1e3 * made.step_time_s:.3f} ms")
    return found


def main() -> None:
    """Write the figures."""
    entries = [
        {
            "name": each.name,
            "node": node,
            "is_rule_seen": each.is_rule_seen and node == NODES[0],
            **compared(each, node),
        }
        for node in NODES
        for each in WORKLOADS
    ]
    FIGURES.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
