"""The models by name, with their settings.

``batch`` counts sequences or images for one data-parallel part of the mesh; `parts` of each
settings class says how many parts there are, so that ``batch * parts`` is the global batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, refuse
from hespas.models import families
from hespas.models.architecture import Routing, Sizes, Style
from hespas.models.configured import configuration_of, configured_model, published
from hespas.models.families import SHORT_NAMES
from hespas.models.language import LanguageModel
from hespas.models.model import MeshAxes, Model, check_division
from hespas.models.resnet_layers import ResNet
from hespas.models.runs import Training


@frozen
class Experts:
    """A layer of SwiGLU experts; each token chooses ``chosen``.

    ``batch`` counts sequences per device. An expert takes ``capacity_percent`` of the tokens
    that it would get from each device if all were chosen equally often; others are dropped.
    """

    module: ClassVar[str] = "hespas.models.steps.alone"

    embedding: int = 4096
    mlp: int = 14336
    experts: int = 8
    chosen: int = 2
    capacity_percent: int = 125
    mesh: MeshAxes = MeshAxes(axes=(("expert", 8),))
    batch: int = 1
    sequence: int = 4096
    dtype: str = "bf16"
    train: bool = False

    @property
    def parts(self) -> int:
        """How many data-parallel parts the mesh has: all its devices."""
        return self.mesh.device_count

    @property
    def model(self) -> LanguageModel:
        """A model with such a layer, and little else."""
        routing = Routing(
            experts=self.experts,
            chosen=self.chosen,
            expert_mlp=self.mlp,
            capacity_percent=self.capacity_percent,
        )
        run = Training(mesh=self.mesh, batch=self.batch, sequence=self.sequence, dtype=self.dtype)
        sizes = Sizes(
            embedding=self.embedding, heads=1, kv_heads=1, layers=1, mlp=self.mlp, vocabulary=1
        )
        return LanguageModel(sizes_of_layers=sizes, style=Style(), routing=routing, run=run)

    def check(self) -> None:
        """Raise `ConfigError` for settings that do not fit each other."""
        refuse(
            self.chosen > self.experts,
            f"chosen = {self.chosen} of experts = {self.experts}",
            "choose fewer",
        )
        check_division(self.mesh, {"experts": self.experts}, {"experts": ("expert",)})


@frozen
class Gemm:
    """A product of m x k by k x n, divided.

    By rows nothing is communicated; by columns the result is gathered; by the contracting
    dimension it is summed, by an all-reduce, or scattered by a reduce-scatter.
    """

    module: ClassVar[str] = "hespas.models.steps.alone"

    m: int = 8192
    k: int = 8192
    n: int = 8192
    divided: str = "rows"
    mesh: MeshAxes = MeshAxes(axes=(("x", 4),))
    dtype: str = "bf16"

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the dimensions of arrays."""
        return {"m": self.m, "k": self.k, "n": self.n}

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """The mesh axes that divide each dimension of the factors."""
        return {_FACTORS[self.divided]: self.mesh.names}

    @property
    def result_axes(self) -> dict[str, tuple[str, ...]]:
        """The mesh axes that divide each dimension of the product."""
        dimension = _PRODUCT[self.divided]
        return {dimension: self.mesh.names} if dimension else {}

    def check(self) -> None:
        """Raise `ConfigError` for a mesh that divides no factor."""
        check_division(self.mesh, self.sizes, self.axes)
        if self.result_axes:
            check_division(self.mesh, self.sizes, self.result_axes)


_FACTORS = {"rows": "m", "columns": "n", "contracting": "k", "scattered": "k"}
_PRODUCT = {"rows": "m", "columns": "", "contracting": "", "scattered": "m"}
"""Which dimension is divided in the factors, and which in the product."""


_RESNETS = {
    "resnet18": ResNet(stages="2-2-2-2", bottleneck=False),
    "resnet34": ResNet(stages="3-4-6-3", bottleneck=False),
    "resnet50": ResNet(stages="3-4-6-3", bottleneck=True),
    "resnet101": ResNet(stages="3-4-23-3", bottleneck=True),
    "resnet200": ResNet(stages="3-24-36-3", bottleneck=True),
}
_SETTINGS: dict[str, tuple[str, Any]] = {
    **{name: ("ResNet training step", settings) for name, settings in _RESNETS.items()},
    **{
        f"{name}-inference": (
            "ResNet inference step",
            replace(settings, train=False, loss_scale=False),
        )
        for name, settings in _RESNETS.items()
    },
    "gemm": ("One matrix product on one device", Gemm(mesh=MeshAxes(axes=(("x", 1),)))),
    "gemm-rows": ("A product divided by rows", Gemm()),
    "gemm-columns": ("A product divided by columns, then gathered", Gemm(divided="columns")),
    "gemm-contracting": (
        "A product divided by the contracting dimension, then summed",
        Gemm(divided="contracting"),
    ),
    "gemm-scattered": (
        "A product divided by the contracting dimension, then summed and scattered",
        Gemm(divided="scattered"),
    ),
    "moe": ("A mixture-of-experts layer, forward", Experts()),
    "moe-training": ("A mixture-of-experts layer, forward and backward", Experts(train=True)),
}
MODELS = {model.name: model for model in families.MODELS} | {
    name: Model(name=name, summary=summary, settings=settings)
    for name, (summary, settings) in _SETTINGS.items()
}
"""The models that no published configuration describes, by name."""


@cache
def models() -> Mapping[str, Model]:
    """Return all models of the zoo by name.

    >>> models()["llama3-100m"].summary
    'Llama-3-like training step, 190.7 M parameters'
    """
    return {name: model_named(name) for name in _zoo_names()}


def _zoo_names() -> tuple[str, ...]:
    steps = (f"{name}{step}" for name in SHORT_NAMES for step in ("", "-prefill", "-decode"))
    return tuple(dict.fromkeys((*(model.name for model in families.MODELS), *steps, *MODELS)))


def model_named(name: str) -> Model:
    """Return a model by its name or a configuration's path.

    Raises `ConfigError` for a name that no model has.

    >>> model_named("llama3-8b:decode").name
    'llama3-8b-decode'
    >>> model_named("Qwen/Qwen3-8B").settings.layers
    36
    """
    model = find_model(name)
    if model is None:
        raise ConfigError(f"there is no model {name!r}", hint=suggestion(name, names()))
    return model


def find_model(name: str) -> Model | None:
    """Return a model by its name or path, or None."""
    model = MODELS.get(name.removesuffix(":training"))
    base = name.rpartition(":")[0]
    if model is None and base in MODELS and configuration_of(base) is None:
        # A model of the zoo has the steps that are listed.
        return None
    return model or configured_model(name)


def names() -> tuple[str, ...]:
    """Return the names of all models, zoo and published."""
    return (*_zoo_names(), *published())
