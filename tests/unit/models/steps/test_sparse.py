"""A recommender's step changes the rows that were looked up, and computes what is published."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from hespas.errors import ConfigError
from hespas.models.catalogue import model_named
from hespas.models.model import MeshAxes
from hespas.models.network_model import Network, run_of
from hespas.models.recommender import Dlrm
from hespas.models.steps.arrays import Program, build
from hespas.models.steps.sharding import Divided

ONE = MeshAxes(axes=(("data", 1),))
SMALL = Dlrm(
    numbers=3,
    embedding=4,
    tables=(7, 5),
    bags=(2, 1),
    below=(6, 4),
    above=(8, 1),
    crosses=2,
    rank=3,
)
ROWS = np.array([[0, 3, 1], [3, 3, 4]])


def expected(weights: dict[str, Any], numbers: Any) -> Any:
    """Return the logits, product by product."""
    tables = [weights[path] for path in weights if "t_cat_" in path]
    x = numbers
    for index in range(2):
        path = f"dense_arch.model._mlp.{index}._linear"
        x = np.maximum(x @ weights[f"{path}.weight"] + weights[f"{path}.bias"], 0)
    sums = [tables[0][ROWS[:, :2]].sum(1), tables[1][ROWS[:, 2]]]
    first = x = np.concatenate([x, *sums], 1)
    for index in range(2):
        path = "inter_arch.crossnet"
        low = x @ weights[f"{path}.V_kernels.{index}"]
        wide = low @ weights[f"{path}.W_kernels.{index}"]
        x = first * (wide + weights[f"{path}.bias.{index}"]) + x
    path = "over_arch.model"
    inner = x @ weights[f"{path}.0._mlp.0._linear.weight"]
    x = np.maximum(inner + weights[f"{path}.0._mlp.0._linear.bias"], 0)
    return (x @ weights[f"{path}.1.weight"] + weights[f"{path}.1.bias"])[:, 0]


def test_a_step_changes_the_rows_that_are_looked_up() -> None:
    run: Any = run_of(SMALL, "training", ONE)
    network = Network(design=SMALL, run=type(run)(mesh=ONE, batch=2, dtype="f32"))
    program = Program(
        model=network, divided=Divided(mesh=ONE, sizes=network.sizes, axes=network.axes)
    )
    random = np.random.default_rng(0)
    weights = {
        path: random.standard_normal(leaf.shape, dtype=np.float32)
        for path, leaf in program.weights("float32").items()
    }
    numbers = random.standard_normal((2, 3), dtype=np.float32)
    batch = {"numbers": numbers, "rows": ROWS.astype(np.int32), "targets": np.array([0, 1])}
    step = build(network)
    drawn = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), step.arguments[0])
    tables = {path: weights[path] for path in drawn["tables"]}
    drawn |= {
        "tables": tables,
        "weights": {path: weights[path] for path in drawn["weights"]},
    }
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh), jax.default_matmul_precision("highest"):
        made = jax.jit(program.made)(weights, batch)
        changed, loss = jax.jit(step.function.__wrapped__)(drawn, batch)
    assert np.allclose(made, expected(weights, numbers), atol=1e-4)
    assert np.isfinite(loss)
    moved = [
        set(np.flatnonzero((np.asarray(changed["tables"][path]) != tables[path]).any(1)).tolist())
        for path in tables
    ]
    assert moved == [{0, 3}, {1, 4}]


def test_tables_are_divided_by_columns() -> None:
    settings: Any = model_named("mlcommons/dlrm-dcnv2").with_options({"mesh": "data=8"})
    assert settings.axes == {"columns": ("data", "fsdp"), "batch": ("data", "fsdp")}
    with pytest.raises(ConfigError, match="columns = 128"):
        model_named("mlcommons/dlrm-dcnv2").with_options({"mesh": "data=3"}).check()
    with pytest.raises(ConfigError, match="no option 'scan'"):
        model_named("mlcommons/dlrm-dcnv2").with_options({"scan": "true"})
