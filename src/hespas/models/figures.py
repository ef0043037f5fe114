"""Figures of a model: parameters, FLOPs and bytes, devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from hespas.base.frozen import frozen
from hespas.hardware.presets import load_device
from hespas.models.architecture import LayerKind
from hespas.models.configuration import Configuration
from hespas.models.configured import counted
from hespas.models.flops import attention_flops, layer_flops, model_flops
from hespas.models.language import LanguageModel
from hespas.models.model import MeshAxes
from hespas.models.network_model import Network, cached_bytes
from hespas.models.parameters import (
    active_parameters,
    parameters,
    parameters_by_part,
    weight_bytes_by_part,
)
from hespas.models.quantization import UNQUANTISED, Precision
from hespas.models.recommender import Dlrm
from hespas.models.resnet_layers import ResNet
from hespas.models.runs import Decode, Training
from hespas.models.weights import state_elements

PARTS = ("A100_SXM_80GB", "H100_80GB", "H200_141GB", "B200_180GB", "TPUv5p", "TPUv6e")
"""The parts that clusters are named for."""
TRAINED_BYTES = 16
"""For each parameter: weights and both moments in f32, with weights and gradients in bf16."""
_SPARSE_BYTES = 8
"""For each number of a table: it, and Adagrad's sum of squares, in f32."""
USABLE = 0.9
"""The share of a device's memory that weights, states and a cache may take."""
TRAINED_TOKENS = 4096
"""In the sequence that each device trains on at a time."""


@frozen
class PartFigures:
    """The weights of a model's part: number, format and bytes."""

    parameters: int
    format: str
    weight_bytes: float


@frozen
class ModelFigures:
    """A model's figures; FLOPs are of the forward pass.

    ``flops_per_token`` are those of products with weights, ``attention_flops_per_token`` those of
    attention for each token that a token is among, summed over its layers. Networks that are no
    decoders have FLOPs of a ``sample`` in the place of both. A token's keys and
    values are cached in ``cache_format``, weights of ``parts`` in the formats that they are
    published in. Clusters are the smallest, of 1, 2, 4.. devices, that hold the states
    of training divided evenly beside what one sequence needs whose layers are computed again, and
    the published weights with the cache of one sequence of ``longest`` tokens. One is empty where a
    device holds no sequence.
    """

    name: str
    family: str
    parameters: int
    active_parameters: int
    flops_per_token: int | None = None
    attention_flops_per_token: int | None = None
    kv_bytes_per_token: int
    state_bytes_per_sequence: int
    longest: int
    weight_bytes: float
    parts: Mapping[str, PartFigures] = field(default_factory=dict[str, PartFigures])
    cache_format: str = "bf16"
    smallest_cluster: Mapping[str, Mapping[str, str]]
    notes: tuple[str, ...] = ()
    source: str = ""
    date: str = ""
    flops_per_sample: int | None = None
    sample: str = ""


def model_figures(configuration: Configuration, *, name: str) -> ModelFigures:
    """Return the figures of a configuration.

    >>> from hespas.models.configured import configuration_of
    >>> figures = model_figures(configuration_of("Qwen/Qwen3-8B"), name="Qwen3-8B")
    >>> figures.parameters, figures.kv_bytes_per_token
    (8190735360, 147456)
    >>> figures.smallest_cluster["training"]["H100_80GB"]
    '2xH100_80GB'
    """
    model = configuration.model
    figures = (
        _decoder_figures(configuration, model)
        if isinstance(model, LanguageModel)
        else _network_figures(configuration, model)
    )
    return ModelFigures(
        name=name,
        family=configuration.family,
        notes=configuration.notes,
        source=configuration.source,
        date=configuration.date,
        **figures,
    )


def _decoder_figures(configuration: Configuration, model: LanguageModel) -> dict[str, Any]:
    count, precision = parameters(model), configuration.precision
    parts, numbers = weight_bytes_by_part(model, precision), parameters_by_part(model)
    weights, cached = sum(parts.values()), kv_bytes_per_token(model, precision)
    serving_bytes = weights + cached * configuration.longest + state_bytes(model)
    return {
        "parameters": count,
        "active_parameters": active_parameters(model),
        "flops_per_token": flops_per_token(model),
        "attention_flops_per_token": sum(
            attention_flops(model, kind) for kind in model.kinds if kind.mixer == "attention"
        ),
        "kv_bytes_per_token": cached,
        "state_bytes_per_sequence": state_bytes(model),
        "longest": configuration.longest,
        "weight_bytes": weights,
        "parts": {
            part: PartFigures(
                parameters=number, format=getattr(precision, part), weight_bytes=parts[part]
            )
            for part, number in numbers.items()
            if number
        },
        "cache_format": precision.cache,
        "smallest_cluster": {
            "training": _clusters(count * TRAINED_BYTES, _working_bytes(model)),
            "inference": _clusters(serving_bytes, 0),
        },
    }


def _network_figures(configuration: Configuration, model: Network | ResNet) -> dict[str, Any]:
    """Return a network's figures; its clusters hold states alone."""
    count, cached, of_source, tokens = counted(model), 0, 0, None
    is_sparse = isinstance(model, Network) and isinstance(model.design, Dlrm)
    trained = _SPARSE_BYTES if is_sparse else TRAINED_BYTES
    if isinstance(model, Network):
        (cached, of_source), tokens = cached_bytes(model), model.sequence
        flops, sample = model.flops, " and ".join(map(str, model.inputs))
    else:
        alone = replace(model, train=False, batch=1, mesh=MeshAxes(axes=(("data", 1),)))
        flops, sample = model_flops(alone) or 0.0, f"image {model.image} x {model.image} x 3"
    serving_bytes = 2.0 * count + cached * configuration.longest + of_source
    return {
        "parameters": count,
        "active_parameters": count,
        "flops_per_sample": round(flops),
        "sample": sample,
        "kv_bytes_per_token": cached,
        "state_bytes_per_sequence": of_source,
        "longest": configuration.longest or tokens or 0,
        "weight_bytes": 2.0 * count,
        "smallest_cluster": {
            "training": _clusters(count * trained, 0),
            "inference": _clusters(serving_bytes, 0),
        },
    }


def zoo_figures(model: LanguageModel, *, name: str) -> ModelFigures:
    """Return the figures of a zoo model's step."""
    run = model.run
    longest = run.context if isinstance(run, Decode) else run.sequence
    alone = replace(model, run=replace(run, mesh=MeshAxes(axes=(("tp", 1),))))
    if isinstance(alone.run, Training):
        alone = replace(alone, run=replace(alone.run, zero=0))
    return model_figures(
        Configuration(name=name, family="zoo", model=alone, longest=longest), name=name
    )


def flops_per_token(model: LanguageModel) -> int:
    """Return a token's forward FLOPs of products and of states."""
    sizes = model.sizes_of_layers
    kinds = Counter(model.kinds).items()
    layers = sum(count * layer_flops(model, kind) for kind, count in kinds)
    inputs = sizes.layers * model.style.layer_input
    return layers + 2 * sizes.embedding * (sizes.vocabulary + inputs)


def kv_bytes_per_token(model: LanguageModel, precision: Precision = UNQUANTISED) -> int:
    """Return the bytes of a token's keys and values."""
    elements = sum(_cached_elements(model, kind) for kind in _caching(model))
    return elements * precision.of("cache").bits // 8


def windowed_share(model: LanguageModel) -> float:
    """Return the share of the cache in windowed layers."""
    caching = _caching(model)
    within = sum(_cached_elements(model, kind) for kind in caching if kind.window or kind.chunk)
    return within / sum(_cached_elements(model, kind) for kind in caching)


def _caching(model: LanguageModel) -> list[LayerKind]:
    """Return the layers that cache keys of their own."""
    return [kind for kind in model.kinds if kind.mixer == "attention" and kind.keys != "shared"]


def _cached_elements(model: LanguageModel, kind: LayerKind) -> int:
    if (latent := model.latent) is not None:
        return latent.kv_rank + latent.rope_size + latent.index_size
    sizes = model.sizes_of(kind)
    return 2 * sizes["kv_heads"] * sizes["head_size"]


def state_bytes(model: LanguageModel) -> int:
    """Return the bytes of a sequence's states, in f32."""
    kinds = Counter(model.kinds).items()
    return 4 * sum(count * state_elements(model, kind) for kind, count in kinds)


def _working_bytes(model: LanguageModel) -> int:
    """Return a device's least working bytes for one sequence.

    That is what goes into each layer, logits with their gradients, and two gathered layers;
    experts are not gathered, but stay where they are.
    """
    sizes, tokens = model.sizes_of_layers, TRAINED_TOKENS
    gathered_weights = parameters(model) - parameters_by_part(model)["experts"]
    gathered = 2 * 2 * gathered_weights // sizes.layers
    inputs = 2 * sizes.layers * tokens * sizes.embedding
    return inputs + 10 * tokens * sizes.vocabulary + gathered


def _clusters(divided: float, everywhere: float) -> dict[str, str]:
    clusters: dict[str, str] = {}
    for part in PARTS:
        capacity = load_device(part).memory_capacity_bytes
        assert capacity is not None  # noqa: S101 - for the type checker: these parts have it
        room = USABLE * capacity - everywhere
        devices = 1
        while room > 0 and devices * room < divided:
            devices *= 2
        clusters[part] = f"{devices}x{part}" if room > 0 else ""
    return clusters
