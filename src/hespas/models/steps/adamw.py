"""AdamW with clipped gradients and a warm-up, as in optax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hespas.base.frozen import frozen

Tree = Any
State = Mapping[str, Any]

METRICS = ("loss", "gradient_norm", "raw_gradient_norm", "weight_norm")
_FIRST_DECAY, _SECOND_DECAY, _EPSILON, _WEIGHT_DECAY = 0.9, 0.95, 1e-8, 0.1
_LARGEST_NORM = 1.0
_PEAK_RATE, _FINAL_RATE, _WARMUP_STEPS, _ALL_STEPS = 3e-5, 3e-6, 1000, 150001
_LAST_COUNT = 2**31 - 1
_LOSS = jax.ShapeDtypeStruct((), jnp.float32)


@frozen
class Preparation:
    """How a step prepares weights, and makes and sums gradients.

    ``weights`` are made once a step. ``found`` returns the loss and the gradients of a round, and
    ``finished`` what the step takes of their means over all rounds.
    """

    weights: Callable[[Tree], Tree]
    found: Callable[[Tree, Tree], tuple[jax.Array, Tree]]
    finished: Callable[[jax.Array, Tree], tuple[jax.Array, Tree]]


def training_state(weights: Tree, counter: jax.ShapeDtypeStruct) -> dict[str, Any]:
    """Return the abstract state: weights, moments, and counters."""
    moments = {"weights": weights, "first_moment": weights, "second_moment": weights}
    return moments | dict.fromkeys(("adam_count", "schedule_count", "step"), counter)


def training_step(
    loss: Callable[[Tree, Tree], jax.Array],
    state: State,
    batch: Tree,
    *,
    accumulates: bool = False,
    preparation: Preparation | None = None,
) -> tuple[dict[str, Any], dict[str, jax.Array]]:
    """Return the state after a step, and its metrics.

    A batch that ``accumulates`` has a first dimension of rounds, whose gradients are averaged.
    """
    weights, value_and_gradients = state["weights"], jax.value_and_grad(loss)
    if preparation is not None:
        weights, value_and_gradients = preparation.weights(weights), preparation.found
    if not accumulates:
        value, raw = value_and_gradients(weights, batch)
    elif preparation is None:
        # What gradients are like is known: to trace them for that would be half of the tracing.
        value, raw = _accumulated(value_and_gradients, weights, batch, like=(_LOSS, weights))
    else:
        first = jax.tree.map(lambda leaf: leaf[0], batch)
        value, raw = _accumulated(
            value_and_gradients,
            weights,
            batch,
            like=jax.eval_shape(value_and_gradients, weights, first),
        )
    if preparation is not None:
        value, raw = preparation.finished(value, raw)
    changed, gradients = updated(state, raw)
    with jax.named_scope("metrics"):
        metrics = (value, _norm(gradients), _norm(raw), _norm(changed["weights"]))
    return changed, dict(zip(METRICS, metrics, strict=True))


def updated(state: State, raw: Tree) -> tuple[dict[str, Any], Tree]:
    """Return the state after a step, and the clipped gradients."""
    with jax.named_scope("optimiser/clip"):
        norm = _norm(raw)
        small = norm < _LARGEST_NORM
        gradients = jax.tree.map(lambda leaf: _clipped(leaf, norm, small), raw)
    with jax.named_scope("optimiser/adamw"):
        changed = _updated(state, gradients)
    with jax.named_scope("optimiser/counters"):
        changed["schedule_count"] = _next_count(state["schedule_count"])
        changed["step"] = state["step"] + 1
    return changed, gradients


def _updated(state: State, gradients: Tree) -> dict[str, Any]:
    count = _next_count(state["adam_count"])
    factor = -_learning_rate(state["schedule_count"])
    scalars = (1 - _FIRST_DECAY**count, 1 - _SECOND_DECAY**count, factor)
    of_leaves = jax.tree.map(
        lambda gradient, *old: _changed(old, gradient, scalars),
        gradients,
        *(state[name] for name in _CHANGED),
    )
    outer, inner = jax.tree.structure(gradients), jax.tree.structure((0,) * len(_CHANGED))
    changed = jax.tree.transpose(outer, inner, of_leaves)
    return {**dict(zip(_CHANGED, changed, strict=True)), "adam_count": count}


_CHANGED = ("weights", "first_moment", "second_moment")
_Three = tuple[jax.Array, jax.Array, jax.Array]


@jax.jit
def _changed(old: _Three, gradient: jax.Array, scalars: _Three) -> _Three:
    """Return a weight after AdamW, and both moments.

    Weights of one shape are one function, which is traced, lowered and printed once. ``scalars``
    are the corrections of both moments and the negative rate.
    """
    weight, first, second = old
    first_correction, second_correction, factor = scalars
    first = (1 - _FIRST_DECAY) * gradient + _FIRST_DECAY * first
    second = (1 - _SECOND_DECAY) * gradient**2 + _SECOND_DECAY * second
    mean = first / first_correction.astype(first.dtype)
    square = second / second_correction.astype(second.dtype)
    update = mean / (jnp.sqrt(square) + _EPSILON)
    update = update + _WEIGHT_DECAY * weight
    update = jnp.array(factor, update.dtype) * update
    return jnp.asarray(weight + update, weight.dtype), first, second


_Gradients = Callable[[Tree, Tree], tuple[jax.Array, Tree]]


def _accumulated(
    value_and_gradients: _Gradients, weights: Tree, batch: Tree, *, like: tuple[Any, Tree]
) -> tuple[jax.Array, Tree]:
    """Return the mean loss and gradients over all rounds.

    They have the shapes and types of ``like``.
    """
    rounds = len(jax.tree.leaves(batch)[0])

    def add(carried: tuple[jax.Array, Tree], of_round: Tree) -> tuple[tuple[jax.Array, Tree], None]:
        gradients_of_round = value_and_gradients(weights, of_round)
        with jax.named_scope("accumulation"):
            return jax.tree.map(jnp.add, carried, gradients_of_round), None

    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    total, _ = jax.lax.scan(add, nothing, batch)
    return jax.tree.map(lambda leaf: leaf / rounds, total)


@jax.jit
def _clipped(leaf: jax.Array, norm: jax.Array, small: jax.Array) -> jax.Array:
    """Return a gradient scaled so that the norm of all is at most 1."""
    return jax.lax.select(small, leaf, leaf / norm.astype(leaf.dtype))


def _next_count(count: jax.Array) -> jax.Array:
    """Count one further, but not beyond the largest integer."""
    return jnp.where(count < _LAST_COUNT, count + 1, _LAST_COUNT)


def _learning_rate(count: jax.Array) -> jax.Array:
    """Rise linearly, then fall along a cosine."""
    step = count.astype(jnp.float32)
    rising = _PEAK_RATE * step / _WARMUP_STEPS
    progress = jnp.minimum((step - _WARMUP_STEPS) / (_ALL_STEPS - _WARMUP_STEPS - 1), 1.0)
    half = 0.5 * (_PEAK_RATE - _FINAL_RATE)
    falling = _FINAL_RATE + half * (1 + jnp.cos(jnp.pi * progress))
    return jnp.where(step < _WARMUP_STEPS, rising, falling)


def _norm(tree: Tree) -> jax.Array:
    """Return the norm of all weights, as optax computes it.

    Layers that are stacked are one array: a sum for each would be a chain of hundreds of scalar
    additions, over which a compiler's fusion takes as long as over all else.
    """
    total: Any = 0.0
    for leaf in jax.tree.leaves(tree):
        total = total + _sum_of_squares(leaf)
    return jnp.sqrt(total)


@jax.jit
def _sum_of_squares(leaf: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(leaf))
