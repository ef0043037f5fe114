"""The model zoo: training and inference steps written in JAX, for meshes of any size.

`model` is the public face: `model.models` lists the models by name, `model.model_named` finds one,
and its `step` gives the jitted function with abstract arguments, sharded over a mesh
(`model.parse_mesh`). `hespas.export.function.export_model` turns it into StableHLO. A family is a
module with ``MODELS``: `llama` (with `decoder` and `adamw`), `resnet`, `gemm`, `moe`. Importing
`model` does not import JAX.
"""

PUBLIC: dict[str, tuple[str, ...]] = {
    "model": ("model_named", "models"),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
