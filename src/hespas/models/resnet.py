"""ResNet training and inference steps, data parallel, as flax's ImageNet example computes them.

Convolutions in 16 bits on images in NHWC; weights, momentum and synchronised batch
normalisation in 32 bits; a loss scale that follows overflows; one all-reduce per gradient.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from hespas.models.dtypes import dtype_named
from hespas.models.mesh import MeshAxes
from hespas.models.model import Model, Step
from hespas.models.resnet_layers import Forward, Network, network

Tree = Any
State = Mapping[str, Any]
_WEIGHT_DECAY, _MOMENTUM = 1e-4, 0.9
_BASE_RATE, _WARMUP_STEPS, _DECAY_STEPS = 0.4, 500.0, 100.0
_GROWTH_INTERVAL, _GROWTH, _BACKOFF = 2000, 2.0, 0.5
_CLASSES, _COLOURS = 1000, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNet:
    """A network and how it is run; ``batch`` counts images per device, ``image`` its pixels.

    ``stages`` is how many blocks each stage has, as in 3-4-6-3. All axes of the mesh divide the
    batch.
    """

    stages: str
    bottleneck: bool
    train: bool = True
    mesh: MeshAxes = MeshAxes(axes=(("data", 4),))  # noqa: RUF009 - immutable
    batch: int = 256
    image: int = 224
    dtype: str = "bf16"
    loss_scale: bool = True


def build(settings: ResNet) -> Step:
    """Make the training or the inference step."""
    mesh, axes = settings.mesh.abstract(), tuple(name for name, _ in settings.mesh.axes)
    net = network(settings.stages, bottleneck=settings.bottleneck, classes=_CLASSES)
    whole, divided = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(axes))
    count = settings.batch * settings.mesh.device_count
    dtype = dtype_named(settings.dtype)
    images = jax.ShapeDtypeStruct(
        (count, settings.image, settings.image, _COLOURS), dtype, sharding=divided
    )
    labels = jax.ShapeDtypeStruct((count,), jnp.int32, sharding=divided)
    state = _state(net, whole, settings)
    forward = Forward(network=net, dtype=dtype, axes=axes)
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


def _state(net: Network, whole: NamedSharding, settings: ResNet) -> dict[str, Any]:
    def scalar(dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((), dtype, sharding=whole)

    def arrays(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        return {
            name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=whole)
            for name, shape in shapes.items()
        }

    weights, statistics = arrays(net.weights()), arrays(net.statistics())
    if not settings.train:
        return {"weights": weights, "statistics": statistics}
    state = {"weights": weights, "statistics": statistics, "momentum": weights}
    scale = {"scale": scalar(jnp.float32), "finite_steps": scalar(jnp.int32)}
    return state | {"step": scalar(jnp.int32)} | (scale if settings.loss_scale else {})


def _infer(forward: Forward, state: State, images: jax.Array) -> jax.Array:
    return replace(forward, axes=None)(state["weights"], state["statistics"], images)[0]


def _train_step(
    forward: Forward, state: State, images: jax.Array, labels: jax.Array
) -> tuple[dict[str, Any], dict[str, jax.Array]]:
    scale = state.get("scale")

    def loss_of(weights: Tree) -> tuple[jax.Array, tuple[jax.Array, Tree]]:
        logits, statistics = forward(weights, state["statistics"], images)
        loss = _cross_entropy(logits, labels) + _penalty(weights)
        return loss if scale is None else loss * scale, (logits, statistics)

    average = partial(jax.lax.pmean, axis_name=forward.axes)
    gradients, (logits, statistics) = jax.grad(loss_of, has_aux=True)(state["weights"])
    gradients = jax.tree.map(average, gradients)
    if scale is not None:
        gradients = jax.tree.map(lambda leaf: leaf / scale, gradients)
    changed = _updated(state, gradients)
    changed["statistics"] = jax.tree.map(average, statistics)
    if scale is not None:
        changed = _unless_overflown(state, changed, gradients)
    accuracy = jnp.mean(jnp.argmax(logits, -1) == labels)
    metrics = {"loss": average(_cross_entropy(logits, labels)), "accuracy": average(accuracy)}
    return changed, metrics | {"rate": _learning_rate(state["step"])}


def _updated(state: State, gradients: Tree) -> dict[str, Any]:
    """Return the state after a step of Nesterov's momentum."""
    rate = _learning_rate(state["step"])
    momentum = jax.tree.map(
        lambda gradient, old: gradient + _MOMENTUM * old, gradients, state["momentum"]
    )
    updates = jax.tree.map(lambda gradient, now: gradient + _MOMENTUM * now, gradients, momentum)
    weights = jax.tree.map(lambda old, update: old - rate * update, state["weights"], updates)
    return dict(state) | {"weights": weights, "momentum": momentum, "step": state["step"] + 1}


def _unless_overflown(state: State, changed: dict[str, Any], gradients: Tree) -> dict[str, Any]:
    """Keep the old weights where a gradient is not finite, and adapt the loss scale."""
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
    told = {
        "scale": jnp.where(finite, raised, scale * _BACKOFF),
        "finite_steps": jnp.where(grows | ~finite, 0, steps + 1),
    }
    return changed | chosen | told


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    one_hot = jax.nn.one_hot(labels, _CLASSES)
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


def _models() -> tuple[Model[ResNet], ...]:
    sizes = {
        "resnet18": ResNet(stages="2-2-2-2", bottleneck=False),
        "resnet34": ResNet(stages="3-4-6-3", bottleneck=False),
        "resnet50": ResNet(stages="3-4-6-3", bottleneck=True),
        "resnet101": ResNet(stages="3-4-23-3", bottleneck=True),
        "resnet200": ResNet(stages="3-24-36-3", bottleneck=True),
    }
    training = [
        Model(name=name, summary="ResNet training step", settings=size, build=build)
        for name, size in sizes.items()
    ]
    inference = [
        Model(
            name=f"{name}-inference",
            summary="ResNet inference step",
            settings=replace(size, train=False, loss_scale=False),
            build=build,
        )
        for name, size in sizes.items()
    ]
    return (*training, *inference)


MODELS = _models()
