"""Read the parts of decoders that most families name alike.

Source: the configuration and modelling files of transformers 5.24.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

from hespas.base.frozen import frozen
from hespas.errors import ConfigError
from hespas.models.architecture import Activation, LayerKind, RotaryScaling, Sizes, Style
from hespas.models.decoder_layers import Layers, windowed
from hespas.models.fields import MISSING, Fields
from hespas.models.language import LanguageModel
from hespas.models.model import MeshAxes
from hespas.models.runs import Prefill

_ROPE_TYPES = (
    *("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional", "su"),
    # Images have rows and columns; tokens of text turn as by default.
    "mrope",
)
_ROPE_FACTS = (
    *("factor", "long_factor", "short_factor", "long_mscale", "short_mscale", "finetuned", "alpha"),
    *("mscale", "mscale_all_dim", "attention_factor", "truncate", "beta_fast", "beta_slow"),
    *("low_freq_factor", "high_freq_factor", "attn_factor", "extrapolation_factor"),
    *("original_max_position_embeddings", "max_position_embeddings", "llama_4_scaling_beta"),
    *("mrope_section", "mrope_interleaved", "xdrope_section", "rope_type", "type"),
    *("rope_theta", "partial_rotary_factor"),
)
"""What is said of how positions turn: some types read it, and others do without."""
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "exact_gelu",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "relu": "relu",
    "relu2": "relu_squared",
}


Reader = Callable[[Fields], LanguageModel]
Part = Callable[[Fields, Sizes], Any]
"""A reader of a part of a `LanguageModel`; None for a model that hasn't it."""


def read_facts(fields: Fields, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts by name; those that are readers are read."""
    return {name: fact(fields) if callable(fact) else fact for name, fact in facts.items()}


def sizes_of(fields: Fields, **changed: Any) -> Sizes:
    """Return the sizes that most families name alike.

    ``changed`` are sizes, or readers of sizes, that a family names otherwise.
    """
    embedding = fields.size("hidden_size", "n_embd", "n_embed", "d_model")
    heads = fields.size("num_attention_heads", "n_head", "n_heads")
    head_size, names = embedding // heads, ("head_dim", "attention_head_dim")
    fields.ignore(*names)
    if "head_size" not in changed:
        head_size = fields.size(*names, default=head_size)
    is_computed = "head_size" not in changed and head_size == embedding // heads
    fields.refuse(
        is_computed and fields.given(*names) is None and embedding % heads and heads > 1,
        f"hidden_size = {embedding} is not divided by num_attention_heads = {heads}",
        "give head_dim",
    )
    shared = {
        "embedding": embedding,
        "heads": heads,
        "kv_heads": fields.size("num_key_value_heads", default=heads),
        "layers": fields.layers("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
        "mlp": fields.size("intermediate_size", "n_inner", default=4 * embedding),
        "vocabulary": fields.size("vocab_size"),
        "head_size": head_size,
        "rope_theta": rope_of(fields).theta,
    }
    return Sizes(**(shared | read_facts(fields, changed)))


def sized(**changed: Any) -> Callable[[Fields], Sizes]:
    """Return a reader of sizes, ``changed`` as in `sizes_of`."""
    return lambda fields: sizes_of(fields, **changed)


def style_of(fields: Fields, **facts: Any) -> Style:
    """Return the shared style, with a family's own facts."""
    rope = rope_of(fields)
    shared: dict[str, Any] = {
        "activation": activation(*_ACTIVATION, default="silu"),
        "epsilon": number(*_EPSILON, default=1e-5),
        "tied": flag("tie_word_embeddings"),
        "rotary_scaling": rope.scaling,
        "attention_biases": biases_if("attention_bias"),
        "mlp_biases": flag("mlp_bias"),
    }
    if rope.share != 1:
        shared["rotary_size"] = int(sizes_of(fields).head_size * rope.share)
    fields.ignore(*_ACTIVATION, *_EPSILON, "tie_word_embeddings", "attention_bias", "mlp_bias")
    return Style(**read_facts(fields, shared | facts))


_ACTIVATION = ("hidden_act", "hidden_activation", "mlp_hidden_act", "activation_function")
_EPSILON = (
    *("rms_norm_eps", "norm_eps", "layer_norm_eps", "layernorm_epsilon", "layer_norm_epsilon"),
)


def family(
    *,
    sizes: Callable[[Fields], Sizes] = sizes_of,
    layers: Layers = windowed,
    experts: Part | None = None,
    latent: Part | None = None,
    delta: Part | None = None,
    state_space: Part | None = None,
    **facts: Any,
) -> Reader:
    """Return the reader of a family like Llama.

    ``layers`` reads their kinds, which differ in windows where it is not given. ``facts`` are
    fields of `Style`, or readers of these.
    """
    parts = {"routing": experts, "latent": latent, "delta": delta, "state_space": state_space}

    def read(fields: Fields) -> LanguageModel:
        own = sizes(fields)
        return described(
            fields,
            sizes=own,
            kinds=layers(fields, own),
            parts={name: part(fields, own) for name, part in parts.items() if part is not None},
            **facts,
        )

    return read


def described(
    fields: Fields,
    *,
    sizes: Sizes,
    kinds: tuple[LayerKind, ...],
    parts: Mapping[str, Any] = MappingProxyType({}),
    **facts: Any,
) -> LanguageModel:
    """Build a model from its sizes, layers, parts and style."""
    return LanguageModel(
        sizes_of_layers=sizes,
        style=style_of(fields, **facts),
        pattern=kinds,
        run=Prefill(mesh=MeshAxes(axes=(("tp", 1),))),
        **parts,
    )


def activation_named(
    fields: Fields, *names: str, default: str, known: Mapping[str, Activation] = ACTIVATIONS
) -> Activation:
    """Return a field's activation; raise `ConfigError` if unknown."""
    activation = fields.text(*names, default=default)
    fields.refuse(
        activation not in known,
        f"the activation {activation!r} is not known",
        f"known: {', '.join(known)}",
    )
    return known[activation]


@frozen
class _Rope:
    theta: int
    share: float
    scaling: RotaryScaling | None


def rope_of(fields: Fields, layer_type: str = "") -> _Rope:
    """Return rotary positions, or those of a layer type."""
    share = fields.positive("partial_rotary_factor", default=1.0)
    theta = fields.positive("rope_theta", default=10000.0)
    scaling: RotaryScaling | None = None
    said = {name: fields.values.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    for name in ("rope_scaling", "rope_parameters"):
        part = fields.part(name)
        if layer_type in part.values:
            part = part.part(layer_type)
        elif not any(isinstance(value, dict) for value in part.values.values()):
            _check_agrees(said, part)
            said |= part.values
        if not part.values or isinstance(next(iter(part.values.values())), dict):
            continue
        theta = part.positive("rope_theta", default=theta)
        share = part.positive("partial_rotary_factor", default=share)
        scaling = _scaling(fields, part)
        part.ignore(*_ROPE_FACTS)
        part.check_read()
    return _Rope(theta=round(theta), share=share, scaling=scaling)


def _check_agrees(said: Mapping[str, Any], part: Fields) -> None:
    """Raise `ConfigError` where a part says otherwise what was said before."""
    for name, value in part.values.items():
        if value is not None and said.get(name) not in (None, value):
            raise ConfigError(
                f"{name} is {value!r}, and {said[name]!r} in another place of the file",
                location=part.location,
                hint="keep one",
            )


def _scaling(fields: Fields, part: Fields) -> RotaryScaling | None:
    """Return how rotary positions are scaled, if short sequences are."""
    kind = part.text("rope_type", "type", default="default")
    part.refuse(
        kind not in _ROPE_TYPES,
        f"rotary positions of the type {kind!r} are not known",
        f"known: {', '.join(_ROPE_TYPES)}",
    )
    if kind not in {"linear", "llama3", "yarn"}:
        return None
    longest = fields.size("max_position_embeddings", default=4096)
    factor = part.positive("factor")
    slow, fast = ("low_freq_factor", "high_freq_factor")
    if kind == "yarn":
        slow, fast = ("beta_slow", "beta_fast")
    amplitude = part.number("attention_factor", default=0.0)
    if kind == "yarn" and not amplitude:
        both = part.number("mscale", default=0.0), part.number("mscale_all_dim", default=0.0)
        amplitude = (
            amplitude_of(factor, both[0]) / amplitude_of(factor, both[1]) if all(both) else 0.0
        )
        amplitude = amplitude or amplitude_of(factor, 1.0)
    return RotaryScaling(
        kind=cast("Any", kind),
        factor=factor,
        original=part.size("original_max_position_embeddings", default=longest),
        slow=part.number(slow, default=1.0),
        fast=part.number(fast, default=4.0 if kind == "llama3" else 32.0),
        amplitude=amplitude or 1.0,
        is_truncated=part.flag("truncate", default=True),
    )


def amplitude_of(factor: float, scale: float) -> float:
    """Return what YaRN multiplies queries and keys by."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


# Readers of facts.


def flag(*names: str, default: bool = False) -> Callable[[Fields], bool]:
    """Return a reader of a truth value."""
    return lambda fields: fields.flag(*names, default=default)


def number(*names: str, default: float = 1.0) -> Callable[[Fields], float]:
    """Return a reader of a number."""
    return lambda fields: fields.number(*names, default=default)


def size(*names: str, default: Any = MISSING, least: int = 1) -> Callable[[Fields], int]:
    """Return a reader of a size of ``least`` or more."""
    return lambda fields: fields.size(*names, default=default, least=least)


def biases_if(name: str, where: str = "all", *, default: bool = False) -> Callable[[Fields], str]:
    """Return a reader of which attention products have biases."""
    return lambda fields: where if fields.flag(name, default=default) else "none"


def activation(*names: str, default: str) -> Callable[[Fields], Activation]:
    """Return a reader of an activation by the library's name."""
    return lambda fields: activation_named(fields, *names, default=default)


TIED = flag("tie_word_embeddings", default=True)
ALL_BIASES: Mapping[str, Any] = MappingProxyType({"attention_biases": "all", "mlp_biases": True})
"""The facts of products that all have biases."""


def all_biases_if(name: str, *, default: bool = False) -> Mapping[str, Any]:
    """Return biases of all products if a field says so."""
    return {
        "attention_biases": biases_if(name, default=default),
        "mlp_biases": flag(name, default=default),
    }
