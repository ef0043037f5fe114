"""Export a model of the zoo."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from hespas.export.exported import Exported
from hespas.workloads.registry import model_named


def export_model(name: str, options: Mapping[str, str] | None = None) -> Exported:
    """Return a model's step as sharded StableHLO, for devices that need not be there.

    ``options`` change the model's settings, as text: ``{"mesh": "fsdp=8", "layers": "2"}``.
    Raises `ConfigError` for a model, option or mesh that doesn't fit.
    """
    step = model_named(name).step(dict(options or {}))
    sharding = import_module("jax.sharding")
    with sharding.use_abstract_mesh(step.mesh.abstract()):
        lowered = step.function.trace(*step.arguments).lower(lowering_platforms=("cpu",))
    return Exported(text=lowered.as_text().encode(), name=name, devices=step.mesh.device_count)
