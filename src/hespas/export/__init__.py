"""Programs from where users have them: the model zoo, JAX functions, XLA dumps, PyTorch.

Everything becomes `exported.Exported`: StableHLO, sharded as the function says;
`exported.partitioned` makes it the program of one device. `function` exports models of the zoo, JAX
functions by name or by value, and what ``jax.export`` wrote; `dump` a directory of XLA's dumps;
`torch_module` a PyTorch module.
"""

PUBLIC: dict[str, tuple[str, ...]] = {
    "exported": ("Exported", "partitioned"),
    "function": ("export_model",),
}
"""What other folders import, by module; `tests/project/test_layout.py` checks it."""
