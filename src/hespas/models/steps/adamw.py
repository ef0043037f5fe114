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
        gradients = _clipped(raw)
    with jax.named_scope("optimiser/adamw"):
        changed = _updated(state, gradients)
    with jax.named_scope("optimiser/counters"):
        changed["schedule_count"] = _next_count(state["schedule_count"])
        changed["step"] = state["step"] + 1
    return changed, gradients


def _updated(state: State, gradients: Tree) -> dict[str, Any]:
    """Return the weights after AdamW, both moments, their counter."""
    first = _next_moment(state["first_moment"], gradients, _FIRST_DECAY, 1)
    second = _next_moment(state["second_moment"], gradients, _SECOND_DECAY, 2)
    count = _next_count(state["adam_count"])
    updates = jax.tree.map(
        lambda mean, square: mean / (jnp.sqrt(square + 0.0) + _EPSILON),
        _unbiased(first, _FIRST_DECAY, count),
        _unbiased(second, _SECOND_DECAY, count),
    )
    updates = jax.tree.map(lambda u, weight: u + _WEIGHT_DECAY * weight, updates, state["weights"])
    factor = -_learning_rate(state["schedule_count"])
    updates = jax.tree.map(lambda update: jnp.array(factor, update.dtype) * update, updates)
    weights = jax.tree.map(
        lambda weight, update: jnp.asarray(weight + update, weight.dtype), state["weights"], updates
    )
    return {
        "weights": weights,
        "first_moment": first,
        "second_moment": second,
        "adam_count": count,
    }


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


def _clipped(gradients: Tree) -> Tree:
    """Scale gradients so that their norm is at most 1."""
    norm = _norm(gradients)
    small = jnp.squeeze(norm < _LARGEST_NORM)
    return jax.tree.map(
        lambda leaf: jax.lax.select(small, leaf, leaf / norm.astype(leaf.dtype) * _LARGEST_NORM),
        gradients,
    )


def _next_moment(moment: Tree, gradients: Tree, decay: float, order: int) -> Tree:
    return jax.tree.map(
        lambda gradient, old: (1 - decay) * gradient**order + decay * old, gradients, moment
    )


def _unbiased(moment: Tree, decay: float, count: jax.Array) -> Tree:
    correction = 1 - decay**count
    return jax.tree.map(lambda leaf: leaf / correction.astype(leaf.dtype), moment)


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
        total = total + jnp.sum(jnp.square(leaf))
    return jnp.sqrt(total)
