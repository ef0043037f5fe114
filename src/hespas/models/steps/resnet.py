"""ResNet training and inference steps, as flax's example.

It is version 1.5: a block's stride is on its 3x3 convolution. Convolutions in 16 bits on images in
NHWC; weights, momentum and synchronised batch normalisation in 32 bits; a loss scale that follows
overflows; one all-reduce per gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from hespas.base.frozen import frozen
from hespas.models.model import Step
from hespas.models.resnet_layers import CHANNELS, FIRST, Block, Convolution, ResNet
from hespas.models.steps.sharding import dtype_named

Weights = Mapping[str, jax.Array]
_EPSILON, _DECAY = 1e-5, 0.9


@frozen
class Forward:
    """The forward pass; training normalises batches across ``axes``."""

    network: ResNet
    dtype: Any
    axes: tuple[str, ...] | None

    def __call__(
        self, weights: Weights, statistics: Weights, images: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return the logits, and the running statistics after this batch."""
        run = _Run(forward=self, weights=weights, statistics=statistics, seen=dict(statistics))
        with jax.named_scope("first"):
            x = jax.nn.relu(run.normalised(FIRST, images))
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for block in self.network.blocks:
            with jax.named_scope(block.name):
                x, seen = _through_block(self, *run.of_block(block, x))
            run.seen.update({f"{block.prefix}{name}": value for name, value in seen.items()})
        with jax.named_scope("dense"):
            x = jnp.mean(x, axis=(1, 2))
            kernel, bias = (
                weights[f"dense_{name}"].astype(self.dtype) for name in ("kernel", "bias")
            )
            return x @ kernel + bias, run.seen


@frozen
class _Run:
    forward: Forward
    weights: Weights
    statistics: Weights
    seen: dict[str, jax.Array]

    def of_block(self, block: Block, x: jax.Array) -> tuple[Block, Weights, Weights, jax.Array]:
        """Return what a block's function takes, with names inside of the block."""
        weights, statistics = (
            {
                name.removeprefix(block.prefix): value
                for name, value in values.items()
                if name.startswith(block.prefix)
            }
            for values in (self.weights, self.statistics)
        )
        return block.unnamed, weights, statistics, x

    def block(self, block: Block, x: jax.Array) -> jax.Array:
        shortcut = x if block.shortcut is None else self.normalised(block.shortcut, x)
        for layer in block.main[:-1]:
            x = jax.nn.relu(self.normalised(layer, x))
        return jax.nn.relu(self.normalised(block.main[-1], x) + shortcut)

    def normalised(self, layer: Convolution, x: jax.Array) -> jax.Array:
        """Convolve, and normalise the batch in 32 bits."""
        kernel = self.weights[f"{layer.name}_kernel"].astype(self.forward.dtype)
        padding: Any = [(3, 3), (3, 3)] if layer.kernel == 7 else "SAME"
        with jax.named_scope("convolution"):
            x = lax.conv_general_dilated(
                x,
                kernel,
                (layer.stride, layer.stride),
                padding,
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
        with jax.named_scope("normalisation"):
            mean, variance = self._moments(layer.name, x)
            scale = lax.rsqrt(variance + _EPSILON) * self.weights[f"{layer.name}_scale"]
            wide = (x.astype(jnp.float32) - mean) * scale + self.weights[f"{layer.name}_bias"]
            return wide.astype(self.forward.dtype)

    def _moments(self, name: str, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        if self.forward.axes is None:
            return self.statistics[f"{name}_mean"], self.statistics[f"{name}_variance"]
        wide = x.astype(jnp.float32)
        own = jnp.stack([jnp.mean(wide, (0, 1, 2)), jnp.mean(lax.square(wide), (0, 1, 2))])
        mean, square = lax.pmean(own, self.forward.axes)
        variance = jnp.maximum(0.0, square - lax.square(mean))
        for kind, value in (("mean", mean), ("variance", variance)):
            old = self.statistics[f"{name}_{kind}"]
            self.seen[f"{name}_{kind}"] = _DECAY * old + (1 - _DECAY) * lax.stop_gradient(value)
        return mean, variance


@partial(jax.jit, static_argnums=(0, 1))
def _through_block(
    forward: Forward, block: Block, weights: Weights, statistics: Weights, x: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return what a block makes, and the statistics that it gathers.

    Blocks of one size are one function, which is traced, differentiated and lowered once.
    """
    run = _Run(forward=forward, weights=weights, statistics=statistics, seen={})
    return run.block(block, x), run.seen


Tree = Any
State = Mapping[str, Any]
_WEIGHT_DECAY, _MOMENTUM = 1e-4, 0.9
_BASE_RATE, _WARMUP_STEPS, _DECAY_STEPS = 0.4, 500.0, 100.0
_GROWTH_INTERVAL, _GROWTH, _BACKOFF = 2000, 2.0, 0.5


def build(settings: ResNet) -> Step:
    """Make the training or the inference step."""
    mesh, axes = settings.mesh.abstract(), tuple(name for name, _ in settings.mesh.axes)
    specs = (PartitionSpec(), PartitionSpec(axes))
    everywhere, divided = (NamedSharding(mesh, spec) for spec in specs)
    count = settings.batch * settings.mesh.device_count
    dtype = dtype_named(settings.dtype)
    images = jax.ShapeDtypeStruct(
        (count, settings.image, settings.image, CHANNELS), dtype, sharding=divided
    )
    labels = jax.ShapeDtypeStruct((count,), jnp.int32, sharding=divided)
    state = _state(everywhere, settings)
    forward = Forward(network=settings, dtype=dtype, axes=axes)
    body = partial(_train_step, forward) if settings.train else partial(_infer, forward)
    batch = (images, labels) if settings.train else (images,)
    function = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(PartitionSpec(), *(PartitionSpec(axes) for _ in batch)),
        out_specs=PartitionSpec() if settings.train else PartitionSpec(axes),
        check_vma=False,
    )
    jitted = jax.jit(function, donate_argnums=0 if settings.train else ())
    return Step(function=jitted, arguments=(state, *batch), mesh=settings.mesh)


def _state(everywhere: NamedSharding, settings: ResNet) -> dict[str, Any]:
    array = partial(jax.ShapeDtypeStruct, sharding=everywhere)

    def arrays(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        return {name: array(shape, jnp.float32) for name, shape in shapes.items()}

    weights, statistics = arrays(settings.weights), arrays(settings.statistics)
    if not settings.train:
        return {"weights": weights, "statistics": statistics}
    state = {"weights": weights, "statistics": statistics, "momentum": weights}
    counter = array((), jnp.int32)
    scale = {"scale": array((), jnp.float32), "finite_steps": counter}
    return state | {"step": counter} | (scale if settings.loss_scale else {})


def _infer(forward: Forward, state: State, images: jax.Array) -> jax.Array:
    return replace(forward, axes=None)(state["weights"], state["statistics"], images)[0]


def _train_step(
    forward: Forward, state: State, images: jax.Array, labels: jax.Array
) -> tuple[dict[str, Any], dict[str, jax.Array]]:
    scale = state.get("scale")

    def loss_of(weights: Tree) -> tuple[jax.Array, tuple[jax.Array, Tree]]:
        logits, statistics = forward(weights, state["statistics"], images)
        with jax.named_scope("loss"):
            loss = _cross_entropy(logits, labels) + _penalty(weights)
            return loss if scale is None else loss * scale, (logits, statistics)

    average = partial(jax.lax.pmean, axis_name=forward.axes)
    gradients, (logits, statistics) = jax.grad(loss_of, has_aux=True)(state["weights"])
    with jax.named_scope("gradients"):
        gradients = jax.tree.map(average, gradients)
        if scale is not None:
            gradients = jax.tree.map(lambda leaf: leaf / scale, gradients)
    with jax.named_scope("optimiser"):
        changed = _updated(state, gradients)
    with jax.named_scope("statistics"):
        changed["statistics"] = jax.tree.map(average, statistics)
    with jax.named_scope("optimiser"):
        if scale is not None:
            changed = _without_overflow(state, changed, gradients)
    with jax.named_scope("metrics"):
        accuracy = jnp.mean(jnp.argmax(logits, -1) == labels)
        metrics = {"loss": average(_cross_entropy(logits, labels)), "accuracy": average(accuracy)}
        return changed, metrics | {"rate": _learning_rate(state["step"])}


def _updated(state: State, gradients: Tree) -> dict[str, Any]:
    rate = _learning_rate(state["step"])
    momentum = jax.tree.map(
        lambda gradient, old: gradient + _MOMENTUM * old, gradients, state["momentum"]
    )
    updates = jax.tree.map(lambda gradient, now: gradient + _MOMENTUM * now, gradients, momentum)
    weights = jax.tree.map(lambda old, update: old - rate * update, state["weights"], updates)
    return dict(state) | {"weights": weights, "momentum": momentum, "step": state["step"] + 1}


def _without_overflow(state: State, changed: dict[str, Any], gradients: Tree) -> dict[str, Any]:
    """Keep old weights on overflow; adapt the loss scale."""
    finite = jnp.array(True)
    for leaf in jax.tree.leaves(gradients):
        finite &= jnp.all(jnp.isfinite(leaf))
    chosen = jax.tree.map(
        partial(jnp.where, finite),
        {name: changed[name] for name in ("weights", "momentum")},
        {name: state[name] for name in ("weights", "momentum")},
    )
    scale, steps = state["scale"], state["finite_steps"]
    grows = steps == _GROWTH_INTERVAL
    largest = jnp.finfo(jnp.float32).max
    raised = jnp.where(finite & grows, jnp.minimum(scale * _GROWTH, largest), scale)
    loss_scale = {
        "scale": jnp.where(finite, raised, scale * _BACKOFF),
        "finite_steps": jnp.where(grows | ~finite, 0, steps + 1),
    }
    return changed | chosen | loss_scale


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    one_hot = jax.nn.one_hot(labels, logits.shape[-1])
    return jnp.mean(-jnp.sum(one_hot * jax.nn.log_softmax(logits), -1))


def _penalty(weights: Tree) -> jax.Array:
    kernels = [leaf for leaf in jax.tree.leaves(weights) if leaf.ndim > 1]
    squares = [jnp.sum(kernel**2) for kernel in kernels]
    return 0.5 * _WEIGHT_DECAY * sum(squares[1:], start=squares[0])


def _learning_rate(count: jax.Array) -> jax.Array:
    step = count.astype(jnp.float32)
    progress = jnp.minimum((step - _WARMUP_STEPS) / _DECAY_STEPS, 1.0)
    falling = 0.5 * _BASE_RATE * (1 + jnp.cos(jnp.pi * progress))
    return jnp.where(step < _WARMUP_STEPS, _BASE_RATE * step / _WARMUP_STEPS, falling)
