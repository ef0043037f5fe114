"""The layers of a ResNet (version 1.5: a block's stride is on its 3x3 convolution)."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hespas.errors import ConfigError

Weights = Mapping[str, jax.Array]
_FIRST_WIDTH, _EXPANSION = 64, 4
_EPSILON, _DECAY = 1e-5, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A square convolution without a bias, which a batch normalisation follows."""

    name: str
    kernel: int
    inputs: int
    outputs: int
    stride: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Convolutions beside a shortcut, which has one of its own where shapes differ."""

    main: tuple[Convolution, ...]
    shortcut: Convolution | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The first convolution, the blocks, and a dense layer for so many classes."""

    first: Convolution
    blocks: tuple[Block, ...]
    classes: int

    def convolutions(self) -> tuple[Convolution, ...]:
        """Return all convolutions, in the order of the forward pass."""
        inside = [
            each
            for block in self.blocks
            for each in (*block.main, *([block.shortcut] if block.shortcut else []))
        ]
        return (self.first, *inside)

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight: kernels in HWIO."""
        shapes: dict[str, tuple[int, ...]] = {}
        for each in self.convolutions():
            shapes[f"{each.name}_kernel"] = (each.kernel, each.kernel, each.inputs, each.outputs)
            shapes[f"{each.name}_scale"] = shapes[f"{each.name}_bias"] = (each.outputs,)
        features = self.blocks[-1].main[-1].outputs
        return shapes | {"dense_kernel": (features, self.classes), "dense_bias": (self.classes,)}

    def statistics(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each running mean and variance."""
        shapes = {f"{each.name}_mean": (each.outputs,) for each in self.convolutions()}
        return shapes | {f"{each.name}_variance": (each.outputs,) for each in self.convolutions()}


def network(stages: str, *, bottleneck: bool, classes: int) -> Network:
    """Return the network of a name like 3-4-6-3: so many blocks in each stage.

    >>> len(network("3-4-6-3", bottleneck=True, classes=1000).convolutions())
    53
    """
    counts = stages.split("-")
    if not all(count.isdecimal() and int(count) for count in counts):
        raise ConfigError(f"stages is {stages!r}", hint="give numbers of blocks, as in 3-4-6-3")
    blocks: list[Block] = []
    channels = _FIRST_WIDTH
    for stage, count in enumerate(map(int, counts)):
        for index in range(count):
            stride = 2 if stage and not index else 1
            name = f"stage{stage + 1}_block{index + 1:02d}"
            width = _FIRST_WIDTH * 2**stage
            blocks.append(_block(name, channels, width, stride, bottleneck=bottleneck))
            channels = blocks[-1].main[-1].outputs
    first = Convolution(name="first", kernel=7, inputs=3, outputs=_FIRST_WIDTH, stride=2)
    return Network(first=first, blocks=tuple(blocks), classes=classes)


def _block(name: str, inputs: int, width: int, stride: int, *, bottleneck: bool) -> Block:
    outputs = width * (_EXPANSION if bottleneck else 1)
    shapes = (
        ((1, inputs, width, 1), (3, width, width, stride), (1, width, outputs, 1))
        if bottleneck
        else ((3, inputs, width, stride), (3, width, outputs, 1))
    )
    main = tuple(
        Convolution(name=f"{name}_{at}", kernel=kernel, inputs=taken, outputs=made, stride=step)
        for at, (kernel, taken, made, step) in enumerate(shapes)
    )
    same = inputs == outputs and stride == 1
    shortcut = Convolution(
        name=f"{name}_shortcut", kernel=1, inputs=inputs, outputs=outputs, stride=stride
    )
    return Block(main=main, shortcut=None if same else shortcut)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """The forward pass; with ``axes`` it trains, and batches are normalised across these axes."""

    network: Network
    dtype: Any
    axes: tuple[str, ...] | None

    def __call__(
        self, weights: Weights, statistics: Weights, images: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return the logits, and the running statistics after this batch."""
        run = _Run(self, weights, statistics)
        x = jax.nn.relu(run.normalised(self.network.first, images))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for block in self.network.blocks:
            x = run.block(block, x)
        x = jnp.mean(x, axis=(1, 2))
        kernel, bias = (weights[f"dense_{name}"].astype(self.dtype) for name in ("kernel", "bias"))
        return x @ kernel + bias, run.seen


class _Run:
    """One forward pass: what it reads, and the statistics it gathers."""

    def __init__(self, forward: Forward, weights: Weights, statistics: Weights) -> None:
        self._forward = forward
        self._weights = weights
        self._statistics = statistics
        self.seen: dict[str, jax.Array] = dict(statistics)

    def block(self, block: Block, x: jax.Array) -> jax.Array:
        shortcut = x if block.shortcut is None else self.normalised(block.shortcut, x)
        for each in block.main[:-1]:
            x = jax.nn.relu(self.normalised(each, x))
        return jax.nn.relu(self.normalised(block.main[-1], x) + shortcut)

    def normalised(self, layer: Convolution, x: jax.Array) -> jax.Array:
        """Convolve, and normalise the batch in 32 bits."""
        kernel = self._weights[f"{layer.name}_kernel"].astype(self._forward.dtype)
        padding: Any = [(3, 3), (3, 3)] if layer.kernel == 7 else "SAME"
        x = lax.conv_general_dilated(
            x,
            kernel,
            (layer.stride, layer.stride),
            padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        mean, variance = self._moments(layer.name, x)
        scale = lax.rsqrt(variance + _EPSILON) * self._weights[f"{layer.name}_scale"]
        wide = (x.astype(jnp.float32) - mean) * scale + self._weights[f"{layer.name}_bias"]
        return wide.astype(self._forward.dtype)

    def _moments(self, name: str, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self._forward.axes is None:
            return self._statistics[f"{name}_mean"], self._statistics[f"{name}_variance"]
        wide = x.astype(jnp.float32)
        own = jnp.stack([jnp.mean(wide, (0, 1, 2)), jnp.mean(lax.square(wide), (0, 1, 2))])
        mean, square = lax.pmean(own, self._forward.axes)
        variance = jnp.maximum(0.0, square - lax.square(mean))
        for kind, value in (("mean", mean), ("variance", variance)):
            old = self._statistics[f"{name}_{kind}"]
            self.seen[f"{name}_{kind}"] = _DECAY * old + (1 - _DECAY) * lax.stop_gradient(value)
        return mean, variance
