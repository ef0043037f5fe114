"""Export a model of the zoo."""

from __future__ import annotations

from collections.abc import Mapping

from hespas.export.exported import Exported
from hespas.export.function import export_function
from hespas.models.registry import model_named


def export_model(name: str, options: Mapping[str, str] | None = None) -> Exported:
    """Return a model's step as sharded StableHLO, for devices that need not be there.

    ``options`` change the model's settings, as text: ``{"mesh": "fsdp=8", "layers": "2"}``.
    Raises `ConfigError` for a model, option or mesh that doesn't fit.
    """
    step = model_named(name).step(dict(options or {}))
    return export_function(step.function, *step.arguments, name=name)
