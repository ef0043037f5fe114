"""The models by name, and the settings of each; importing them does not import JAX.

``batch`` counts sequences or images for one data-parallel part of the mesh; `parts` of each
settings class says how many parts there are, so that ``batch * parts`` is the global batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from hespas.base.suggest import suggestion
from hespas.errors import ConfigError
from hespas.models.families import deepseek, gemma, gpt3, llama, mixtral
from hespas.models.kernels import FUSED
from hespas.models.model import MeshAxes, Model, check_division, check_heads, check_tokens

_FSDP_4 = MeshAxes(axes=(("fsdp", 4),))
_FSDP_64 = MeshAxes(axes=(("fsdp", 64),))
_LLAMA3_AXES = {
    "batch": ("data", "fsdp"),
    "sequence": ("context",),
    "embedding": ("fsdp",),
    "heads": ("tp",),
    "kv_heads": ("tp",),
    "mlp": ("tp",),
    "vocabulary": ("tp",),
}
_LLAMA2_AXES = {
    "batch": ("data", "fsdp"),
    "sequence": ("context",),
    "embedding": ("fsdp",),
    "norm": ("fsdp",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3:
    """A model and how it is run; ``batch`` counts sequences per data-parallel part of the mesh.

    They are computed in ``accumulation`` rounds, over which gradients are accumulated. Where
    ``attention`` is auto, what runs the model decides: see `hespas.sources.source`. Weights that
    AdamW changes and its moments are of ``state_dtype``, and weights are cast to ``dtype`` before
    they are gathered.
    """

    embedding: int
    heads: int
    kv_heads: int
    layers: int
    mlp: int
    head_size: int = 128
    vocabulary: int = 128256
    rope_theta: int = 500000
    mesh: MeshAxes = _FSDP_4
    batch: int = 1
    accumulation: int = 1
    sequence: int = 4096
    attention: str = "auto"
    context_attention: str = "gather"
    remat: str = "minimal_with_context"
    scan: bool = False
    dtype: str = "bf16"
    state_dtype: str = "f32"

    @property
    def parts(self) -> int:
        """How many data-parallel parts the mesh has."""
        return self.mesh.size("data", "fsdp")

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the dimensions of arrays; the batch is that of a round, of all parts."""
        return _llama_sizes(self, kv_heads=self.kv_heads)

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """The mesh axes that divide a dimension, major first."""
        return _LLAMA3_AXES

    def why_not(self, kernels: str) -> str:
        """Return why kernels of `FUSED` cannot compute its attention, or nothing."""
        return _why_not(self, kernels)

    def check(self) -> None:
        """Raise `ConfigError` for settings that do not fit each other."""
        _check_fit(self)
        check_heads(self.heads, self.kv_heads)
        check_division(self.mesh, self.sizes, self.axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama2:
    """A model and how it is run, with the settings of `Llama3`."""

    embedding: int = 4096
    heads: int = 32
    layers: int = 32
    mlp: int = 11008
    head_size: int = 128
    vocabulary: int = 32000
    rope_theta: int = 10000
    mesh: MeshAxes = MeshAxes(axes=(("data", 2), ("fsdp", 4)))  # noqa: RUF009 - immutable
    batch: int = 1
    accumulation: int = 1
    sequence: int = 4096
    attention: str = "auto"
    context_attention: str = "gather"
    remat: str = "minimal_with_context"
    scan: bool = False
    dtype: str = "bf16"
    state_dtype: str = "f32"

    @property
    def parts(self) -> int:
        """How many data-parallel parts the mesh has."""
        return self.mesh.size("data", "fsdp")

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the dimensions of arrays; the batch is that of a round, of all parts."""
        return _llama_sizes(self, kv_heads=self.heads)

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """The mesh axes that divide a dimension, major first."""
        return _LLAMA2_AXES

    def why_not(self, kernels: str) -> str:
        """Return why kernels of `FUSED` cannot compute its attention, or nothing."""
        return _why_not(self, kernels)

    def check(self) -> None:
        """Raise `ConfigError` for settings that do not fit each other."""
        _check_fit(self)
        check_division(self.mesh, self.sizes, self.axes)


def _why_not(settings: Llama2 | Llama3, kernels: str) -> str:
    devices = settings.mesh.size("context")
    return FUSED[kernels].why_not(dtype=settings.dtype, sequence=settings.sequence, devices=devices)


def _check_fit(settings: Llama2 | Llama3) -> None:
    check_tokens("sequence", settings.sequence)
    why = settings.why_not(settings.attention) if settings.attention in FUSED else ""
    if why:
        raise ConfigError(why, hint="change that, or give attention unfused")
    if settings.batch % settings.accumulation:
        raise ConfigError(
            f"a batch of {settings.batch} is not divided by accumulation = {settings.accumulation}",
            hint=f"choose a divisor of {settings.batch}",
        )
    devices = settings.mesh.size("context")
    in_blocks = settings.attention in FUSED or settings.context_attention == "ring"
    if devices > 1 and in_blocks and settings.sequence % (2 * devices):
        raise ConfigError(
            f"sequence = {settings.sequence} cannot be divided by twice context={devices} of the "
            "mesh: each device has a block from the front of a sequence and one from its end",
            hint=f"choose a sequence that {2 * devices} divides",
        )


def _llama_sizes(settings: Llama2 | Llama3, *, kv_heads: int) -> dict[str, int]:
    return {
        "rounds": settings.accumulation,
        "batch": settings.batch * settings.parts // settings.accumulation,
        "sequence": settings.sequence,
        "embedding": settings.embedding,
        "embedding_row": settings.embedding,
        "norm": settings.embedding,
        "heads": settings.heads,
        "kv_heads": kv_heads,
        "head_size": settings.head_size,
        "mlp": settings.mlp,
        "vocabulary": settings.vocabulary,
        "layers": settings.layers,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNet:
    """A network and how it is run; ``batch`` counts images per device, ``image`` its pixels.

    ``stages`` is how many blocks each stage has, as in 3-4-6-3. All axes of the mesh divide the
    batch.
    """

    stages: str
    bottleneck: bool
    train: bool = True
    mesh: MeshAxes = MeshAxes(axes=(("data", 4),))  # noqa: RUF009 - immutable
    batch: int = 256
    image: int = 224
    dtype: str = "bf16"
    loss_scale: bool = True

    @property
    def parts(self) -> int:
        """How many data-parallel parts the mesh has: all its devices."""
        return self.mesh.device_count

    def check(self) -> None:
        """Do nothing: any mesh divides the images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A layer of SwiGLU experts, divided over the devices; a token goes to ``chosen`` of them.

    ``batch`` counts sequences per device. An expert takes ``capacity_percent`` of the tokens
    that it would get from each device if all were chosen equally often; others are dropped.
    """

    embedding: int = 4096
    mlp: int = 14336
    experts: int = 8
    chosen: int = 2
    capacity_percent: int = 125
    mesh: MeshAxes = MeshAxes(axes=(("expert", 8),))  # noqa: RUF009 - immutable
    batch: int = 1
    sequence: int = 4096
    dtype: str = "bf16"
    train: bool = False

    @property
    def parts(self) -> int:
        """How many data-parallel parts the mesh has: all its devices."""
        return self.mesh.device_count

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the dimensions of arrays."""
        return {
            "batch": self.batch * self.parts,
            "sequence": self.sequence,
            "embedding": self.embedding,
            "mlp": self.mlp,
            "experts": self.experts,
            "choices": self.experts,
        }

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """The mesh axes that divide a dimension."""
        return {"batch": ("expert",), "experts": ("expert",)}

    def check(self) -> None:
        """Raise `ConfigError` for settings that do not fit each other."""
        if self.chosen > self.experts:
            raise ConfigError(
                f"chosen = {self.chosen} of experts = {self.experts}", hint="choose fewer"
            )
        check_division(self.mesh, self.sizes, self.axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """An m x k matrix times a k x n one; ``divided`` says what the mesh divides.

    By rows nothing is communicated; by columns the result is gathered; by the contracting
    dimension it is summed, by an all-reduce, or scattered by a reduce-scatter.
    """

    m: int = 8192
    k: int = 8192
    n: int = 8192
    divided: str = "rows"
    mesh: MeshAxes = MeshAxes(axes=(("x", 4),))  # noqa: RUF009 - immutable
    dtype: str = "bf16"

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the dimensions of arrays."""
        return {"m": self.m, "k": self.k, "n": self.n}

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """The mesh axes that divide a dimension of the factors: all divide the same one."""
        return {_FACTORS[self.divided]: self.mesh.names}

    @property
    def result_axes(self) -> dict[str, tuple[str, ...]]:
        """The mesh axes that divide a dimension of the product; none where it is whole."""
        named = _PRODUCT[self.divided]
        return {named: self.mesh.names} if named else {}

    def check(self) -> None:
        """Raise `ConfigError` for a mesh that does not divide the factors and the product."""
        check_division(self.mesh, self.sizes, self.axes)
        if self.result_axes:
            check_division(self.mesh, self.sizes, self.result_axes)


_FACTORS = {"rows": "m", "columns": "n", "contracting": "k", "scattered": "k"}
_PRODUCT = {"rows": "m", "columns": "", "contracting": "", "scattered": "m"}
"""Which dimension is divided in the factors, and which in the product."""


def _square(embedding: int, heads: int, layers: int, mlp: int) -> Llama3:
    return Llama3(embedding=embedding, heads=heads, kv_heads=heads, layers=layers, mlp=mlp)


_large = partial(Llama3, kv_heads=8)
_llama3 = partial(
    Model,
    build="hespas.models.llama:build",
    build_part="hespas.models.llama:build_part",
)
_llama2 = partial(Model, build="hespas.models.llama:build")
_resnet = partial(Model, build="hespas.models.resnet:build")
_gemm = partial(Model, build="hespas.models.gemm:build")
_experts = partial(Model, build="hespas.models.moe:build")
_TRAINING = partial("Llama-3-like training step, {} parameters".format)

_LLAMA: tuple[Model, ...] = (
    *(
        _llama3(name=name, settings=size, summary=_TRAINING(parameters))
        for name, size, parameters in (
            ("llama3-100m", _square(576, 9, 7, 2016), "190.7 M"),
            ("llama3-200m", _square(832, 13, 10, 2912), "341.5 M"),
            ("llama3-500m", _square(1280, 20, 16, 4480), "813.3 M"),
            ("llama3-1b", _square(1792, 28, 22, 6272), "1.767 B"),
            ("llama3-2b", _square(2240, 35, 28, 7840), "3.174 B"),
            ("llama3-3b", _square(2624, 41, 32, 9184), "4.749 B"),
        )
    ),
    _llama3(
        name="llama3-8b",
        settings=_large(embedding=4096, heads=32, layers=32, mlp=14336),
        summary="Llama-3-8B training step, 8.030 B parameters",
    ),
    _llama3(
        name="llama3-70b",
        settings=_large(embedding=8192, heads=64, layers=80, mlp=28672, mesh=_FSDP_64),
        summary="Llama-3-70B training step, 70.554 B parameters",
    ),
    _llama3(
        name="llama3-405b",
        settings=_large(embedding=16384, heads=128, layers=126, mlp=53248, mesh=_FSDP_64),
        summary="Llama-3-405B training step, 405.853 B parameters",
    ),
    _llama2(
        name="llama2-7b",
        summary="Llama-2-7B training step, sharded in the node, data parallel across nodes",
        settings=Llama2(),
    ),
    _llama2(
        name="llama2-7b-data-parallel",
        summary="Llama-2-7B training step, every device with all weights",
        settings=Llama2(mesh=MeshAxes(axes=(("data", 128),))),
    ),
)

_RESNETS = {
    "resnet18": ResNet(stages="2-2-2-2", bottleneck=False),
    "resnet34": ResNet(stages="3-4-6-3", bottleneck=False),
    "resnet50": ResNet(stages="3-4-6-3", bottleneck=True),
    "resnet101": ResNet(stages="3-4-23-3", bottleneck=True),
    "resnet200": ResNet(stages="3-24-36-3", bottleneck=True),
}

_GEMM: tuple[Model, ...] = (
    _gemm(
        name="gemm",
        summary="One matrix product on one device",
        settings=Gemm(mesh=MeshAxes(axes=(("x", 1),))),
    ),
    _gemm(name="gemm-rows", summary="A product divided by rows", settings=Gemm()),
    _gemm(
        name="gemm-columns",
        summary="A product divided by columns, then gathered",
        settings=Gemm(divided="columns"),
    ),
    _gemm(
        name="gemm-contracting",
        summary="A product divided by the contracting dimension, then summed",
        settings=Gemm(divided="contracting"),
    ),
    _gemm(
        name="gemm-scattered",
        summary="A product divided by the contracting dimension, then summed and scattered",
        settings=Gemm(divided="scattered"),
    ),
)

_LISTED: tuple[Model, ...] = (
    *_LLAMA,
    *llama.MODELS,
    *gpt3.MODELS,
    *mixtral.MODELS,
    *deepseek.MODELS,
    *gemma.MODELS,
    *(
        _resnet(name=name, summary="ResNet training step", settings=size)
        for name, size in _RESNETS.items()
    ),
    *(
        _resnet(
            name=f"{name}-inference",
            summary="ResNet inference step",
            settings=replace(size, train=False, loss_scale=False),
        )
        for name, size in _RESNETS.items()
    ),
    *_GEMM,
    _experts(name="moe", summary="A mixture-of-experts layer, forward", settings=Experts()),
    _experts(
        name="moe-training",
        summary="A mixture-of-experts layer, forward and backward",
        settings=Experts(train=True),
    ),
)

MODELS = {model.name: model for model in _LISTED}
"""All models by name, family by family."""


def models() -> dict[str, Model]:
    """Return all models by name, family by family.

    >>> models()["llama3-100m"].summary
    'Llama-3-like training step, 190.7 M parameters'
    """
    return dict(MODELS)


def model_named(name: str) -> Model:
    """Return the model of a name; `ConfigError` if there is none."""
    if name not in MODELS:
        raise ConfigError(f"there is no model {name!r}", hint=suggestion(name, MODELS))
    return MODELS[name]
