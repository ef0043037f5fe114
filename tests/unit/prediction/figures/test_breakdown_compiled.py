"""Names survive XLA's own compilation: layers and phases of a step that was compiled for a GPU."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from compilers import needs_gpu
from hespas.prediction import composition
from hespas.prediction.figures.breakdown import breakdown, kind_rows, layer_rows, phase_rows
from hespas.prediction.options import EstimateOptions, PredictOptions, ProgramOptions
from hespas.sources.function import export_function

pytestmark = needs_gpu


def step(weights, moment, x):
    def loss(weights):
        y = x
        for at in range(2):
            with jax.named_scope(f"layers_{at}"):
                y = jax.checkpoint(lambda w, y: jnp.tanh(y @ w))(weights[at], y)
        with jax.named_scope("loss"):
            return jnp.sum(y * y)

    gradient = jax.grad(loss)(weights)
    moment = 0.9 * moment + 0.1 * gradient
    return weights - 1e-3 * moment, moment


@pytest.mark.finds_compilers
def test_a_compiled_step_keeps_phases_and_layers(tmp_path: Path) -> None:
    stacked = jax.ShapeDtypeStruct((2, 512, 512), jnp.float32)
    x = jax.ShapeDtypeStruct((1024, 512), jnp.float32)
    file = tmp_path / "step.mlir"
    file.write_bytes(export_function(step, stacked, stacked, x).content)
    options = PredictOptions(
        program=ProgramOptions(file=file),
        estimate=EstimateOptions(node="H100_80GB", cache_dir=tmp_path / "cache"),
    )
    prediction = composition.predict(options)
    assert prediction.graph.program.is_scheduled
    found = breakdown(prediction)
    tables = (phase_rows(found), kind_rows(found), layer_rows(found, depth=1, each_layer=True))
    for rows in tables:
        assert sum(row.time_s for row in rows) == pytest.approx(prediction.compute_s)
    phases = {row.phase: row for row in phase_rows(found)}
    assert phases.keys() >= {"forward", "backward", "optimiser"}
    assert phases["backward"].flops > phases["forward"].flops
    paths = {row.path: row for row in tables[2]}
    assert paths.keys() >= {"layers_0", "layers_1"}
    named_s = prediction.compute_s - sum(row.time_s for row in tables[2] if row.path[0] == "(")
    assert named_s > 0.8 * prediction.compute_s
