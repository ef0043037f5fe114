"""A small step with the stages of ZeRO on 4 devices beside the same without, printed as JSON.

It runs in a process of its own, which JAX gives 4 virtual devices.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from hespas.models.catalogue import model_named

MODEL = model_named("llama2-70b")
SETTINGS = {
    "embedding": "32",
    "heads": "4",
    "kv_heads": "2",
    "head_size": "8",
    "layers": "2",
    "mlp": "48",
    "vocabulary": "64",
    "sequence": "16",
    "dtype": "f32",
    "attention": "unfused",
    "batch": "4",
    "accumulation": "2",
}


def filled(like: Any) -> Any:
    """Return arrays for abstract ones, small and above zero as second moments are."""
    random = np.random.default_rng(0)

    def array(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            return jnp.asarray(random.integers(1, 8, leaf.shape), leaf.dtype)
        return jnp.asarray(random.uniform(0.05, 0.3, leaf.shape), leaf.dtype)

    return jax.tree.map(array, like)


def made(zero: int) -> Any:
    """Return the new state and the metrics of a step."""
    step = MODEL.step({**SETTINGS, "mesh": "data=2,fsdp=2", "zero": str(zero)})
    mesh = jax.make_mesh((2, 2), ("data", "fsdp"), (AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        return jax.jit(step.function.__wrapped__)(*map(filled, step.arguments))


def main() -> None:
    """Print the largest difference of each stage, as a share of an array's largest value."""
    plain = jax.tree.leaves(made(0))
    found: dict[int, float] = {}
    for zero in (1, 2, 3):
        found[zero] = max(
            float(np.abs(np.asarray(one) - np.asarray(other)).max())
            / (float(np.abs(np.asarray(other)).max()) or 1.0)
            for one, other in zip(jax.tree.leaves(made(zero)), plain, strict=True)
        )
    print(json.dumps(found))


main()
