"""The models by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hespas.config.suggest import suggestion
from hespas.errors import ConfigError
from hespas.models.model import Model

_FAMILIES = ("llama3", "llama2", "resnet", "gemm", "moe")


def models() -> dict[str, Model[Any]]:
    """Return all models by name, family by family.

    >>> models()["llama3-100m"].summary
    'Llama-3-like training step, 190.7 M parameters'
    """
    found: dict[str, Model[Any]] = {}
    for family in _FAMILIES:
        for model in import_module(f"hespas.models.{family}").MODELS:
            if model.name in found:
                raise ValueError(f"two models are named {model.name}")
            found[model.name] = model
    return found


def model_named(name: str) -> Model[Any]:
    """Return a model; `ConfigError` where there is none of that name."""
    known = models()
    if name not in known:
        raise ConfigError(f"there is no model {name!r}", hint=suggestion(name, known))
    return known[name]
