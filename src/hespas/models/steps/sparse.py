"""Train recommenders whose tables change in a few rows.

Products are trained by AdamW, rows by Adagrad, whose state is as large as the tables. Each device
has some columns of all tables; what it looks up for all samples goes to the devices that have them
by an all-to-all, and gradients come back by one. Source: D. Mudigere et al., Software-Hardware
Co-design for Fast and Scalable Training of Deep Learning Recommendation Models, 2022, section 4.2,
column-wise sharding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from hespas.models.model import Step
from hespas.models.network import TABLE
from hespas.models.steps.adamw import training_state, updated
from hespas.models.steps.sharding import Divided, dtype_named

if TYPE_CHECKING:
    from hespas.models.steps.arrays import Program

Arrays = Mapping[str, Any]
LOOKED_UP = "looked_up"
_RATE, _EPSILON = 0.005, 1e-8


def bags(
    divided: Divided, tables: Sequence[jax.Array], rows: jax.Array, sizes: Sequence[int]
) -> jax.Array:
    """Return a sample's sum of rows in each table."""
    everyone = divided.constrain(rows, None, None)
    sums = [
        divided.constrain(jnp.sum(table[numbers], 1), None, TABLE)
        for table, numbers in zip(tables, _by_table(everyone, sizes), strict=True)
    ]
    stacked = divided.constrain(jnp.stack(sums, 1), None, None, TABLE)
    return divided.constrain(stacked, "batch", None, None)


def _by_table(rows: jax.Array, sizes: Sequence[int]) -> list[jax.Array]:
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [rows[:, end - size : end] for end, size in zip(ends, sizes, strict=True)]


def sparse_training(model: Program) -> Step:
    """Return a training step of a recommender."""
    network, sizes = model.model, model.model.design.bags
    tables = [path for path, weight in network.weights.items() if weight.dims[-1][0] == TABLE]
    weights = model.weights(dtype_named(network.state_dtype))
    of_tables = {path: weights.pop(path) for path in tables}
    state = training_state(weights, model.divided.array(dtype=jnp.int32))
    state |= {"tables": of_tables, "squares": of_tables}

    def train_step(state: Arrays, batch: Arrays) -> object:
        own = state["tables"]
        rows = model.looked_up(own, batch)

        def loss(weights: Arrays, rows: jax.Array) -> jax.Array:
            return model.loss(weights, {**batch, LOOKED_UP: rows})

        value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(state["weights"], rows)
        changed, _ = updated(state, gradients[0])
        with jax.named_scope("optimiser/rows"):
            back = model.divided.constrain(gradients[1], None, None, TABLE)
            everyone = model.divided.constrain(batch["rows"], None, None)
            moved = [
                _updated_table(own[path], state["squares"][path], numbers, back[:, index])
                for index, (path, numbers) in enumerate(
                    zip(tables, _by_table(everyone, sizes), strict=True)
                )
            ]
        for index, name in enumerate(("tables", "squares")):
            changed[name] = dict(zip(tables, (pair[index] for pair in moved), strict=True))
        return changed, value

    sharding = jax.tree.map(lambda leaf: leaf.sharding, state)
    function = jax.jit(train_step, out_shardings=(sharding, None), donate_argnums=0)
    return Step(function=function, arguments=(state, model.batch()), mesh=network.mesh)


def _updated_table(
    table: jax.Array, squares: jax.Array, numbers: jax.Array, gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    shape = (*numbers.shape, gradient.shape[-1])
    of_rows = jnp.broadcast_to(gradient[:, None], shape).astype(table.dtype)
    squares = squares.at[numbers].add(lax.square(of_rows))
    steps = _RATE * of_rows / (jnp.sqrt(squares[numbers]) + _EPSILON)
    return table.at[numbers].add(-steps), squares
