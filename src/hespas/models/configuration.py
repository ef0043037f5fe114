"""Read a model from its ``config.json``, the file that comes with its weights.

Fields have the names of Hugging Face's transformers. A field that says what is computed and is not
known is an error that names it; what tokenizers, initial values and sampling need changes nothing.
Facts of each family that its file doesn't say are in `_FAMILIES`. Source: the configuration and
modelling files of transformers 5.24, by ``model_type``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from hespas.base.suggest import nearest
from hespas.errors import ConfigError
from hespas.models.language import (
    Activation,
    Delta,
    LanguageModel,
    Latent,
    LayerKind,
    Prefill,
    RotaryScaling,
    Routing,
    RoutingStyle,
    Sizes,
    StateSpace,
    Style,
)
from hespas.models.model import MeshAxes
from hespas.models.weights import parameters

FILE = "config.json"
SHIPPED = Path(__file__).parents[1] / "configs" / "models"
"""Published configurations, sizes only, as ``ORG/NAME.json``."""
_MOST_PARAMETERS, _MOST_LAYERS = 1e14, 2000
_IGNORED = re.compile(
    r"source|date|architectures|auto_map|_.*|.*_token_ids?|.*token_index|torch_dtype|dtype|"
    r"transformers_version|use_cache|.*dropout.*|.*pdrop|initializer_.*|init_.*|.*_init|output_.*|"
    r"return_.*|id2label|label2id|pretraining_tp|max_length|tokenizer_class|problem_type|"
    r"router_aux_loss_coef|.*aux_loss.*|router_jitter_noise|router_z_loss_coef|.*_loss_coef|"
    r"max_position_embeddings|max_seq_len|initial_context_length|original_max_position_embeddings|"
    r"is_decoder|is_encoder_decoder|add_cross_attention|cross_attention_hidden_size|chunk_size_feed"
    r"_forward|gradient_checkpointing|seq_aux|ep_size|num_nextn_predict_layers|mtp_.*|num_mtp_.*|"
    r"use_mtp|name_or_path|vision_config|audio_config|image_.*|video_.*|boi_.*|eoi_.*|boa_.*|"
    r"mm_tokens_per_image|vision_.*|multimodal_.*|spatial_.*|projector_.*|prefix|pruned_heads|"
    r"sep_token_id|task_specific_params|decoder_start_token_id|rescale_.*|"
    r"residual_in_fp32|use_mamba_kernels|num_logits_to_keep|time_step_.*|mamba_ssm_cache_dtype|"
    r"mamba_dt_.*|moe_shared_expert_overlap|attn_temperature_tuning|floor_scale|attn_scale|"
    r"layer_norm_eps_.*|emb_pdrop|verbose|precision|rope_theta_.*|per_layer_config|"
    r"for_llm_compressor|base_model_.*|cache_implementation|norm_reduce_in_fp32|unsloth_.*|"
    r"swiglu_alpha|swiglu_limit|use_return_dict|tie_encoder_decoder|summary_.*|expand"
)
"""Fields that change nothing of what a step costs, or that others say already."""
_ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional", "su")
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "exact_gelu",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "relu2": "relu_squared",
}
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A decoder as its configuration describes it: ``model`` with the steps' own defaults.

    ``longest`` are the tokens of the longest context; bits are those that each weight of products
    is published in, and those of experts. ``notes`` name what the model leaves out of the
    file.
    """

    name: str
    family: str
    model: LanguageModel
    longest: int
    weight_bits: float = 16.0
    expert_bits: float = 16.0
    source: str = ""
    date: str = ""
    notes: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Fields:
    """The fields of a configuration, and which of them were read."""

    values: Mapping[str, Any]
    location: str
    read: set[str] = field(default_factory=set)

    def given(self, *names: str) -> Any:
        """Return what the first of names that is given has; `ConfigError` where two disagree."""
        self.read |= set(names)
        found = {name: self.values[name] for name in names if self.values.get(name) is not None}
        for name, value in found.items():
            first = next(iter(found))
            if value != found[first]:
                raise ConfigError(
                    f"{first} is {found[first]!r} and {name} is {value!r}, which mean the same",
                    location=self.location,
                    hint="keep one",
                )
        return next(iter(found.values()), None)

    def number(self, *names: str, default: Any = _MISSING) -> float:
        """Return a number."""
        value = self.given(*names)
        if value is None and default is not _MISSING:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(names[0], value, "a number")
        if not math.isfinite(value):
            raise self._wrong(names[0], value, "a finite number")
        return float(value)

    def size(self, *names: str, default: Any = _MISSING, least: int = 1) -> int:
        """Return a whole number of ``least`` or more."""
        value = self.given(*names)
        if value is None and default is not _MISSING:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise self._wrong(names[0], value, f"a whole number of {least} or more")
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return a truth value."""
        value = self.given(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(names[0], value, "true or false")
        return value

    def text(self, *names: str, default: str = "") -> str:
        """Return a text."""
        value = self.given(*names)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(names[0], value, "a text")
        return value

    def one_of(self, name: str, known: Sequence[Any]) -> None:
        """Raise `ConfigError` for a value that changes what is computed in an unknown way."""
        value = self.given(name)
        if value is not None and value not in known:
            raise ConfigError(
                f"{name} is {value!r}, which changes what is computed and is not known",
                location=self.location,
                hint=f"known: {', '.join(map(repr, known))}",
            )

    def texts(self, *names: str) -> list[str]:
        """Return a list of texts; empty where none is given."""
        value = self.given(*names)
        if value is None:
            return []
        members = cast("list[object]", value) if isinstance(value, list) else [None]
        if not all(isinstance(each, str) for each in members):
            raise self._wrong(names[0], members, "a list of texts")
        return cast("list[str]", value)

    def numbers(self, *names: str) -> list[int]:
        """Return a list of whole numbers; empty where none is given."""
        value = self.given(*names)
        members = cast("list[object]", value if isinstance(value, list) else [value])
        if value is None:
            return []
        if not all(isinstance(each, int) for each in members):
            raise self._wrong(names[0], members, "a list of whole numbers")
        return cast("list[int]", value)

    def known(self, *names: str) -> None:
        """Take fields as read that say nothing of cost here."""
        self.read |= set(names)

    def part(self, name: str) -> _Fields:
        """Return the fields of a part; none where it is absent."""
        value = self.given(name)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        values = cast("Mapping[str, Any]", value or {})
        return _Fields(values=values, location=f"{self.location}, {name}")

    def check_read(self) -> None:
        """Raise `ConfigError` for the first field that nothing has read and that may matter."""
        for name, value in self.values.items():
            is_plain = value is None or value is False or value in ([], {})
            if name not in self.read and not is_plain and not _IGNORED.fullmatch(name):
                raise ConfigError(
                    f"{name} = {json.dumps(value)} may change what is computed, and is not known",
                    location=self.location,
                    hint=_near(name, self.read),
                )

    def _wrong(self, name: str, value: object, expected: str) -> ConfigError:
        what = "is missing" if value is None else f"is {json.dumps(value)}"
        close = nearest(name, [each for each in self.values if each not in self.read])
        hint = f"give {expected}" + (f"; did you mean {close[0]}?" if close else "")
        return ConfigError(f"{name} {what}", location=self.location, hint=hint)


def _near(name: str, known: set[str]) -> str:
    close = nearest(name, sorted(known))
    remedy = "take it out if it changes nothing"
    return f"did you mean {close[0]}? Otherwise {remedy}" if close else remedy


def is_known(values: Mapping[str, Any]) -> bool:
    """Return whether the family of a configuration is known."""
    text = values.get("text_config") or values
    family = text.get("model_type") or values.get("model_type") or ""
    has_own_inputs = bool(text.get("hidden_size_per_layer_input"))
    return str(family).removesuffix("_text") in _FAMILIES and not has_own_inputs


def is_configuration(path: Path) -> bool:
    """Return whether a path is that of a model's configuration, or of a directory that has one."""
    file = path / FILE if path.is_dir() else path
    if file.suffix != ".json" or not file.is_file():
        return False
    return any(name in file.read_text(errors="replace") for name in _MARKS)


_MARKS = ('"model_type"', '"architectures"', '"_class_name"')


def read_configuration(path: Path) -> Configuration:
    """Read a configuration, a file or a directory that has one.

    Raises `ConfigError` for one that can't be read, that is of an unknown family, or that has a
    field which is not understood.
    """
    file = path / FILE if path.is_dir() else path
    try:
        values: Any = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"there is no {FILE}", location=str(path)) from error
    except ValueError as error:
        raise ConfigError(
            f"this is no JSON: {error}", location=str(file), hint="is the file whole?"
        ) from error
    if not isinstance(values, dict):
        raise ConfigError("a configuration is a JSON object", location=str(file))
    return configured(cast("dict[str, Any]", values), location=str(file), name=path.name)


def configured(values: Mapping[str, Any], *, location: str, name: str) -> Configuration:
    """Return what the fields of a configuration describe; raises as `read_configuration`."""
    outer = _Fields(values=values, location=location)
    family = outer.text("model_type")
    fields, notes = outer, list[str]()
    if "text_config" in values:
        fields = outer.part("text_config")
        family = fields.text("model_type", default=family)
        notes.append("the language model alone: what takes in images or sound is left out")
    reader = _FAMILIES.get(family.removesuffix("_text"))
    if reader is None:
        raise _unknown_family(family, values, location)
    if fields.size("num_nextn_predict_layers", default=0, least=0):
        notes.append("heads that predict further tokens are left out")
    if fields.flag("is_encoder_decoder"):
        raise ConfigError("models with an encoder are not known", location=location)
    description = reader(fields)
    quantization = outer.part("quantization_config")
    weight_bits, expert_bits = _bits(quantization)
    if expert_bits < _FEWEST_BITS:
        method = quantization.text("quant_method")
        notes.append(f"weights are published in {method}, and predicted in 16 bits")
    fields.check_read()
    model = _model(description)
    _check(model, fields)
    longest = fields.size("max_position_embeddings", "max_seq_len", "n_positions", default=4096)
    return Configuration(
        name=name,
        family=family,
        model=model,
        longest=longest,
        weight_bits=weight_bits,
        expert_bits=expert_bits,
        source=outer.text("source"),
        date=outer.text("date"),
        notes=tuple(notes),
    )


_FEWEST_BITS = 8
"""Of weights that steps of inference have."""
_BITS = {"fp8": (8.0, 8.0), "mxfp4": (16.0, 4.25), "nvfp4": (4.5, 4.5), "modelopt": (4.5, 4.5)}
"""Of weights of products and of experts, scales with them, by the method of quantisation."""


def _bits(quantization: _Fields) -> tuple[float, float]:
    method = quantization.text("quant_method")
    if not quantization.values:
        return 16.0, 16.0
    if method not in _BITS:
        raise ConfigError(
            f"weights quantised by {method!r} are not known",
            location=quantization.location,
            hint=f"known: {', '.join(_BITS)}; without quantization_config they are of 16 bits",
        )
    return _BITS[method]


def _unknown_family(family: str, values: Mapping[str, Any], location: str) -> ConfigError:
    if not family:
        return ConfigError(
            "there is no model_type, which says how the model is put together",
            location=location,
            hint=f"known: {', '.join(_FAMILIES)}",
        )

    shipped = _shipped_fields()
    close = nearest(family, _FAMILIES)
    likest = close[0] if close else max(shipped, key=lambda name: len(shipped[name] & set(values)))
    unlike = sorted(set(values) - shipped.get(likest, set()) - {"model_type"})
    named = [name for name in unlike if not _IGNORED.fullmatch(name)]
    differs = f", which has no {', '.join(named[:5])}" if named else ""
    return ConfigError(
        f"model_type {family!r} is not known",
        location=location,
        hint=f"the nearest that is known is {likest}{differs}",
    )


def _shipped_fields() -> dict[str, set[str]]:
    """Return the fields that shipped configurations of each family have."""
    fields: dict[str, set[str]] = {}
    for file in sorted(SHIPPED.glob("*/*.json")):
        values = json.loads(file.read_bytes())
        values = values.get("text_config", values)
        family = values.get("model_type", "").removesuffix("_text")
        if family in _FAMILIES:
            fields.setdefault(family, set()).update(values)
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class _Description:
    """What a family's reader finds: the parts of a `LanguageModel`."""

    sizes: Sizes
    style: Style
    kinds: tuple[LayerKind, ...]
    routing: Routing | None = None
    latent: Latent | None = None
    state_space: StateSpace | None = None
    delta: Delta | None = None


def _model(description: _Description) -> LanguageModel:
    kinds = description.kinds
    return LanguageModel(
        sizes_of_layers=description.sizes,
        style=description.style,
        run=Prefill(mesh=MeshAxes(axes=(("tp", 1),))),
        routing=description.routing,
        latent=description.latent,
        state_space=description.state_space,
        delta=description.delta,
        pattern=kinds[:1] if len(set(kinds)) == 1 else kinds,
    )


def _check(model: LanguageModel, fields: _Fields) -> None:
    """Raise `ConfigError` for sizes that do not fit each other, or that no machine holds."""
    layers = model.layers
    if layers > _MOST_LAYERS:
        raise ConfigError(
            f"these are {layers} layers", location=fields.location, hint="check num_hidden_layers"
        )
    count = parameters(model)
    if count > _MOST_PARAMETERS:
        raise ConfigError(
            f"these are {count:.2g} parameters", location=fields.location, hint="check the sizes"
        )
    try:
        model.check()
    except ConfigError as error:
        raise ConfigError(error.message, location=fields.location, hint=error.hint) from error


def _sizes(fields: _Fields, **changed: int) -> Sizes:
    embedding = fields.size("hidden_size", "n_embd", "d_model")
    heads = fields.size("num_attention_heads", "n_head", "n_heads")
    head_size = fields.size("head_dim", "attention_head_dim", default=embedding // heads)
    if fields.values.get("head_dim") is None and embedding % heads and heads > 1:
        raise ConfigError(
            f"hidden_size = {embedding} is not divided by num_attention_heads = {heads}",
            location=fields.location,
            hint="give head_dim",
        )
    found = {
        "embedding": embedding,
        "heads": heads,
        "kv_heads": fields.size("num_key_value_heads", default=heads),
        "layers": fields.size("num_hidden_layers", "n_layer", "n_layers"),
        "mlp": fields.size("intermediate_size", "n_inner", default=4 * embedding),
        "vocabulary": fields.size("vocab_size"),
        "head_size": head_size,
        "rope_theta": _rope(fields).theta,
    }
    return Sizes(**(found | changed))


def _style(fields: _Fields, **facts: Any) -> Style:
    """Return the style that most families share, with a family's own facts."""
    activation = fields.text("hidden_act", "hidden_activation", "mlp_hidden_act", default="silu")
    if activation not in _ACTIVATIONS:
        raise ConfigError(
            f"the activation {activation!r} is not known",
            location=fields.location,
            hint=f"known: {', '.join(_ACTIVATIONS)}",
        )
    epsilon = fields.number(
        "rms_norm_eps", "layer_norm_epsilon", "norm_eps", "layer_norm_eps", default=1e-5
    )
    rope = _rope(fields)
    found: dict[str, Any] = {
        "activation": _ACTIVATIONS[activation],
        "epsilon": epsilon,
        "tied": fields.flag("tie_word_embeddings"),
        "rotary_scaling": rope.scaling,
        "attention_biases": "all" if fields.flag("attention_bias") else "none",
        "mlp_biases": fields.flag("mlp_bias"),
    }
    if rope.share != 1:
        head = fields.size("head_dim", default=0, least=0) or fields.size(
            "hidden_size"
        ) // fields.size("num_attention_heads")
        found["rotary_size"] = int(head * rope.share)
    return Style(**(found | facts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rope:
    """Rotary positions: the base of their periods, the share of a head that turns, the scaling."""

    theta: int
    share: float
    scaling: RotaryScaling | None


def _rope(fields: _Fields, of: str = "") -> _Rope:
    """Return the rotary positions; in ``rope_parameters`` types ``of`` layers have their own."""
    share = fields.number("partial_rotary_factor", default=1.0)
    theta = fields.number("rope_theta", default=10000.0)
    scaling: RotaryScaling | None = None
    for name in ("rope_scaling", "rope_parameters"):
        part = fields.part(name)
        if of in part.values:
            part = part.part(of)
        if not part.values or isinstance(next(iter(part.values.values())), dict):
            continue
        theta = part.number("rope_theta", default=theta)
        share = part.number("partial_rotary_factor", default=share)
        scaling = _scaling(fields, part)
    return _Rope(theta=round(theta), share=share, scaling=scaling)


def _scaling(fields: _Fields, part: _Fields) -> RotaryScaling | None:
    """Return how rotary positions are scaled; None where nothing of short sequences is."""
    kind = part.text("rope_type", "type", default="default")
    if kind not in _ROPE_TYPES:
        raise ConfigError(
            f"rotary positions of the type {kind!r} are not known",
            location=part.location,
            hint=f"known: {', '.join(_ROPE_TYPES)}",
        )
    if kind not in {"linear", "llama3", "yarn"}:
        return None
    longest = fields.size("max_position_embeddings", default=4096)
    factor = part.number("factor")
    slow, fast = ("low_freq_factor", "high_freq_factor")
    if kind == "yarn":
        slow, fast = ("beta_slow", "beta_fast")
    amplitude = part.number("attention_factor", default=0.0)
    if kind == "yarn" and not amplitude:
        both = part.number("mscale", default=0.0), part.number("mscale_all_dim", default=0.0)
        amplitude = _amplitude(factor, both[0]) / _amplitude(factor, both[1]) if all(both) else 0.0
        amplitude = amplitude or _amplitude(factor, 1.0)
    return RotaryScaling(
        kind=cast("Any", kind),
        factor=factor,
        original=part.size("original_max_position_embeddings", default=longest),
        slow=part.number(slow, default=1.0),
        fast=part.number(fast, default=4.0 if kind == "llama3" else 32.0),
        amplitude=amplitude or 1.0,
        is_truncated=part.flag("truncate", default=True),
    )


def _amplitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _alike(sizes: Sizes, **kind: Any) -> tuple[LayerKind, ...]:
    return (LayerKind(**kind),) * sizes.layers


def _by_type(fields: _Fields, sizes: Sizes, *, window: int, every: int) -> list[str]:
    """Return the type of each layer: as listed, or all ``every``-th ones full."""
    types = fields.texts("layer_types", "layers_block_type")
    if types and len(types) != sizes.layers:
        raise ConfigError(
            f"layer_types has {len(types)} layers, and num_hidden_layers is {sizes.layers}",
            location=fields.location,
        )
    if types:
        return types
    if not every:
        return ["sliding_attention" if window else "full_attention"] * sizes.layers
    return [
        "full_attention" if (index + 1) % every == 0 else "sliding_attention"
        for index in range(sizes.layers)
    ]


def _known_types(fields: _Fields, types: Sequence[str], known: Sequence[str]) -> None:
    for each in types:
        if each not in known:
            raise ConfigError(
                f"a layer of the type {each!r} is not known",
                location=fields.location,
                hint=f"known: {', '.join(known)}",
            )


_ATTENTION = ("full_attention", "sliding_attention")


def _windowed(fields: _Fields, sizes: Sizes, *, every: int = 0) -> tuple[LayerKind, ...]:
    """Return the kind of each layer, of which some attend to a window alone."""
    window = fields.size("sliding_window", default=0, least=0)
    types = _by_type(fields, sizes, window=window, every=every)
    _known_types(fields, types, _ATTENTION)
    return tuple(LayerKind(window=window if each == _ATTENTION[1] else 0) for each in types)


def _llama(fields: _Fields) -> _Description:
    sizes = _sizes(fields)
    return _Description(sizes=sizes, style=_style(fields), kinds=_alike(sizes))


def _mistral(fields: _Fields) -> _Description:
    sizes = _sizes(fields)
    return _Description(sizes=sizes, style=_style(fields), kinds=_windowed(fields, sizes))


def _mixtral(fields: _Fields) -> _Description:
    found = _mistral(fields)
    routing = Routing(
        experts=fields.size("num_local_experts"),
        chosen=fields.size("num_experts_per_tok"),
        expert_mlp=found.sizes.mlp,
    )
    kinds = tuple(replace(kind, is_routed=True) for kind in found.kinds)
    return replace(found, routing=routing, kinds=kinds)


def _qwen(fields: _Fields, **facts: Any) -> _Description:
    sizes = _sizes(fields)
    window = fields.size("sliding_window", default=0, least=0)
    first = fields.size("max_window_layers", default=sizes.layers, least=0)
    is_used = fields.flag("use_sliding_window")
    types = fields.texts("layer_types")
    _known_types(fields, types, _ATTENTION)
    kinds = tuple(
        LayerKind(
            window=window
            if is_used and (types[index] == _ATTENTION[1] if types else index >= first)
            else 0
        )
        for index in range(sizes.layers)
    )
    return _Description(sizes=sizes, style=_style(fields, **facts), kinds=kinds)


def _qwen2(fields: _Fields) -> _Description:
    return _qwen(fields, attention_biases="inputs")


def _qwen3(fields: _Fields) -> _Description:
    return _qwen(fields, norms_of_heads=True)


def _qwen_experts(fields: _Fields, found: _Description) -> _Description:
    """Return a description with the experts that Qwen's models have."""
    every = fields.size("decoder_sparse_step", default=1)
    dense = fields.numbers("mlp_only_layers")
    shared = fields.size("shared_expert_intermediate_size", default=0, least=0)
    routing = Routing(
        experts=fields.size("num_experts", "num_local_experts"),
        chosen=fields.size("num_experts_per_tok"),
        expert_mlp=fields.size("moe_intermediate_size"),
        shared_mlp=shared,
        style=RoutingStyle(normalised=fields.flag("norm_topk_prob"), shared_gate=bool(shared)),
    )
    kinds = tuple(
        replace(kind, is_routed=(index + 1) % every == 0 and index not in dense)
        for index, kind in enumerate(found.kinds)
    )
    return replace(found, routing=routing, kinds=kinds)


def _qwen2_moe(fields: _Fields) -> _Description:
    fields.one_of("qkv_bias", (True,))
    return _qwen_experts(fields, _qwen2(fields))


def _qwen3_moe(fields: _Fields) -> _Description:
    fields.one_of("qkv_bias", (False,))
    fields.one_of("use_qk_norm", (True,))
    return _qwen_experts(fields, _qwen3(fields))


def _qwen3_next(fields: _Fields) -> _Description:
    sizes = _sizes(fields)
    style = _style(fields, norms_of_heads=True, output_gate=True)
    every = fields.size("full_attention_interval", default=4)
    types = fields.texts("layer_types") or [
        "full_attention" if (index + 1) % every == 0 else "linear_attention"
        for index in range(sizes.layers)
    ]
    _known_types(fields, types, ("full_attention", "linear_attention"))
    delta = Delta(
        delta_key_heads=fields.size("linear_num_key_heads"),
        delta_heads=fields.size("linear_num_value_heads"),
        delta_key_size=fields.size("linear_key_head_dim"),
        delta_value_size=fields.size("linear_value_head_dim"),
        convolution=fields.size("linear_conv_kernel_dim", default=4),
    )
    kinds = tuple(
        LayerKind(mixer="attention" if each == "full_attention" else "delta") for each in types
    )
    found = _Description(sizes=sizes, style=style, kinds=kinds, delta=delta)
    return _qwen_experts(fields, found)


def _experts_of_deepseek(
    fields: _Fields, gate: Literal["softmax", "sigmoid"], *, corrected: bool, normalised: bool
) -> Routing:
    """Return the experts that DeepSeek's models have, and those that follow them."""
    # A token's choice of groups first changes which experts it takes, and not how many.
    fields.known("n_group", "topk_group", "topk_method")
    return Routing(
        experts=fields.size("n_routed_experts", "num_local_experts", "num_experts"),
        chosen=fields.size("num_experts_per_tok"),
        expert_mlp=fields.size("moe_intermediate_size"),
        shared_experts=fields.size("n_shared_experts", "num_shared_experts", default=0, least=0),
        gate=gate,
        style=RoutingStyle(
            corrected=corrected,
            normalised=fields.flag("norm_topk_prob", default=normalised),
            scale=fields.number("routed_scaling_factor", default=1.0),
        ),
    )


def _first_dense(fields: _Fields, sizes: Sizes) -> tuple[LayerKind, ...]:
    fields.one_of("moe_layer_freq", (1,))
    dense = fields.size("first_k_dense_replace", default=0, least=0)
    types = fields.texts("mlp_layer_types")
    if types:
        return tuple(LayerKind(is_routed=each == "sparse") for each in types)
    return tuple(LayerKind(is_routed=index >= dense) for index in range(sizes.layers))


def _deepseek(
    fields: _Fields, gate: Literal["softmax", "sigmoid"], *, indexed: bool = False
) -> _Description:
    sizes = replace(_sizes(fields), kv_heads=0, head_size=fields.size("qk_nope_head_dim"))
    fields.one_of("scoring_func", (gate,))
    latent = Latent(
        query_rank=fields.size("q_lora_rank", default=0, least=0),
        kv_rank=fields.size("kv_lora_rank"),
        rope_size=fields.size("qk_rope_head_dim"),
        value_size=fields.size("v_head_dim"),
        indexed_tokens=fields.size("index_topk") if indexed else 0,
        index_heads=fields.size("index_n_heads") if indexed else 0,
        index_size=fields.size("index_head_dim") if indexed else 0,
    )
    style = _style(fields, rotary_size=0)
    scaling = style.rotary_scaling
    if scaling is not None and (mscale := _mscale_of_all(fields)):
        size = sizes.head_size + latent.rope_size
        amplitude = _amplitude(scaling.factor, mscale)
        style = replace(style, query_scale=size**-0.5 * amplitude * amplitude)
    return _Description(
        sizes=sizes,
        style=style,
        kinds=_first_dense(fields, sizes),
        latent=latent,
        routing=_experts_of_deepseek(
            fields, gate, corrected=gate == "sigmoid", normalised=gate == "sigmoid"
        ),
    )


def _mscale_of_all(fields: _Fields) -> float:
    parts = (fields.part(name) for name in ("rope_scaling", "rope_parameters"))
    return sum(part.number("mscale_all_dim", default=0.0) for part in parts)


def _glm4_moe(fields: _Fields) -> _Description:
    sizes = _sizes(fields)
    biases = "inputs" if fields.flag("attention_bias") else "none"
    return _Description(
        sizes=sizes,
        style=_style(fields, attention_biases=biases, norms_of_heads=fields.flag("use_qk_norm")),
        kinds=_first_dense(fields, sizes),
        routing=_experts_of_deepseek(fields, "sigmoid", corrected=True, normalised=True),
    )


def _minimax_m2(fields: _Fields) -> _Description:
    sizes = _sizes(fields)
    fields.one_of("scoring_func", ("sigmoid",))
    fields.one_of("qk_norm_type", ("per_layer",))
    fields.one_of("shared_intermediate_size", (0,))
    routing = Routing(
        experts=fields.size("num_local_experts", "num_experts"),
        chosen=fields.size("num_experts_per_tok"),
        expert_mlp=sizes.mlp,
        gate="sigmoid",
        style=RoutingStyle(corrected=fields.flag("use_routing_bias", default=True)),
    )
    style = _style(
        fields,
        norms_of_rows=fields.flag("use_qk_norm", default=True),
        rotary_size=fields.size("rotary_dim", default=sizes.head_size),
    )
    return _Description(
        sizes=sizes, style=style, kinds=_alike(sizes, is_routed=True), routing=routing
    )


def _gpt_oss(fields: _Fields) -> _Description:
    sizes = _sizes(fields)
    style = _style(fields, activation="clipped_silu", attention_biases="all", sinks=True)
    routing = Routing(
        experts=fields.size("num_local_experts", "num_experts"),
        chosen=fields.size("num_experts_per_tok", "experts_per_token"),
        expert_mlp=sizes.mlp,
        style=RoutingStyle(logit_biases=True, biases=True),
    )
    kinds = tuple(replace(kind, is_routed=True) for kind in _windowed(fields, sizes, every=2))
    return _Description(sizes=sizes, style=style, kinds=kinds, routing=routing)


def _gemma(fields: _Fields, sizes: Sizes, **facts: Any) -> Style:
    return _style(
        fields,
        tied=fields.flag("tie_word_embeddings", default=True),
        norms_after=True,
        embedding_scale=sizes.embedding**0.5,
        **facts,
    )


def _gemma2(fields: _Fields) -> _Description:
    sizes = _sizes(fields)
    style = _gemma(
        fields,
        sizes,
        activation="gelu",
        score_cap=fields.number("attn_logit_softcapping", default=0.0),
        logit_cap=fields.number("final_logit_softcapping", default=0.0),
        query_scale=fields.number("query_pre_attn_scalar", default=sizes.head_size) ** -0.5,
    )
    return _Description(sizes=sizes, style=style, kinds=_windowed(fields, sizes, every=2))


def _gemma3(fields: _Fields) -> _Description:
    sizes = _sizes(fields)
    style = _gemma(
        fields,
        sizes,
        activation="gelu",
        norms_of_heads=True,
        score_cap=fields.number("attn_logit_softcapping", default=0.0),
        logit_cap=fields.number("final_logit_softcapping", default=0.0),
        query_scale=fields.number("query_pre_attn_scalar", default=sizes.head_size) ** -0.5,
    )
    sizes = replace(sizes, rope_theta=_rope(fields, "full_attention").theta)
    every = fields.size("sliding_window_pattern", default=6)
    local = fields.number("rope_local_base_freq", default=_rope(fields, "sliding_attention").theta)
    kinds = tuple(
        replace(kind, rope_theta=round(local) if kind.window else 0)
        for kind in _windowed(fields, sizes, every=every)
    )
    return _Description(sizes=sizes, style=style, kinds=kinds)


def _gemma4(fields: _Fields) -> _Description:
    wide_rope, local = _rope(fields, "full_attention"), _rope(fields, "sliding_attention").theta
    sizes = _sizes(fields, rope_theta=wide_rope.theta)
    for name in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if fields.size(name, default=0, least=0):
            raise ConfigError(
                f"{name} is not known: inputs of each layer, and layers without keys of their own",
                location=fields.location,
            )
    fields.known("vocab_size_per_layer_input", "use_bidirectional_attention")
    fields.one_of("use_double_wide_mlp", (False,))
    is_shared = fields.flag("attention_k_eq_v")
    style = _gemma(
        fields,
        sizes,
        activation="gelu",
        norms_of_heads=True,
        norms_of_values=True,
        scales_layers=True,
        query_scale=1.0,
        logit_cap=fields.number("final_logit_softcapping", default=0.0),
    )
    wide = fields.size("global_head_dim", default=512)
    kv_heads = fields.size("num_global_key_value_heads", default=0, least=0) if is_shared else 0
    routed = fields.flag("enable_moe_block")
    kinds = tuple(
        replace(kind, is_routed=routed, rope_theta=local)
        if kind.window
        else replace(
            kind,
            is_routed=routed,
            # The whole head sets the periods, and a share of it turns.
            rope_theta=wide_rope.theta**wide_rope.share,
            rotary_size=int(wide * wide_rope.share),
            head_size=wide,
            kv_heads=kv_heads,
            value_is_key=is_shared,
        )
        for kind in _windowed(fields, sizes, every=6)
    )
    routing = None
    experts = ("num_experts", "top_k_experts", "moe_intermediate_size")
    if routed:
        routing = Routing(
            experts=fields.size("num_experts"),
            chosen=fields.size("top_k_experts"),
            expert_mlp=fields.size("moe_intermediate_size", "expert_intermediate_size"),
            style=RoutingStyle(beside_dense=True),
        )
    fields.known(*experts, "expert_intermediate_size")
    return _Description(sizes=sizes, style=style, kinds=kinds, routing=routing)


def _olmo2(fields: _Fields) -> _Description:
    sizes = _sizes(fields)
    style = _style(fields, norms_before=False, norms_after=True, norms_of_rows=True)
    return _Description(sizes=sizes, style=style, kinds=_windowed(fields, sizes))


def _granite(fields: _Fields) -> _Description:
    sizes = _sizes(fields)
    return _Description(sizes=sizes, style=_granite_style(fields), kinds=_alike(sizes))


def _granite_style(fields: _Fields) -> Style:
    return _style(
        fields,
        embedding_scale=fields.number("embedding_multiplier", default=1.0),
        residual_scale=fields.number("residual_multiplier", default=1.0),
        query_scale=fields.number("attention_multiplier", default=0.0),
        logit_scale=1 / fields.number("logits_scaling", default=1.0),
    )


def _granite_hybrid(fields: _Fields) -> _Description:
    experts = fields.size("num_local_experts", default=0, least=0)
    shared = fields.size("shared_intermediate_size", default=0, least=0)
    sizes = _sizes(fields)
    fields.one_of("normalization_function", ("rmsnorm",))
    fields.one_of("mamba_proj_bias", (False,))
    rotates = fields.text("position_embedding_type", default="nope") == "rope"
    heads = fields.size("mamba_n_heads", default=128)
    inner = fields.size("mamba_expand", default=2) * sizes.embedding
    head = fields.given("mamba_d_head")
    space = StateSpace(
        state_heads=heads,
        state_head_size=inner // heads if head in {None, "auto"} else head,
        state_size=fields.size("mamba_d_state", default=256),
        state_groups=fields.size("mamba_n_groups", default=1),
        convolution=fields.size("mamba_d_conv", default=4),
        chunk=fields.size("mamba_chunk_size", default=256),
        convolution_biases=fields.flag("mamba_conv_bias", default=True),
    )
    types = fields.texts("layer_types", "layers_block_type")
    _known_types(fields, types, ("mamba", "linear_attention", "attention", "full_attention"))
    kinds = tuple(
        LayerKind(
            mixer="attention" if "mamba" not in each and "linear" not in each else "state_space",
            is_routed=experts > 0,
            rotates=rotates,
        )
        for each in types
    )
    routing = None
    chosen = fields.size("num_experts_per_tok", default=0, least=0)
    if experts:
        routing = Routing(experts=experts, chosen=chosen, expert_mlp=sizes.mlp, shared_mlp=shared)
    else:
        sizes = replace(sizes, mlp=shared)
    return _Description(
        sizes=sizes,
        style=_granite_style(fields),
        kinds=kinds,
        routing=routing,
        state_space=space,
    )


_NEMOTRON_LAYERS = {
    "M": LayerKind(mixer="state_space", feeds_forward=False),
    "*": LayerKind(feeds_forward=False, rotates=False),
    "-": LayerKind(mixer="none"),
    "E": LayerKind(mixer="none", is_routed=True),
}
_NEMOTRON_NAMES = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "mlp": "-",
    "moe": "E",
}


def _nemotron_h(fields: _Fields) -> _Description:
    pattern = fields.text("hybrid_override_pattern")
    types = fields.texts("layers_block_type", "layer_types")
    _known_types(fields, types, tuple(_NEMOTRON_NAMES))
    letters = [_NEMOTRON_NAMES[each] for each in types] or list(pattern)
    _known_types(fields, letters, tuple(_NEMOTRON_LAYERS))
    kinds = tuple(_NEMOTRON_LAYERS[each] for each in letters)
    for name in ("use_bias", "mamba_proj_bias"):
        fields.one_of(name, (False,))
    fields.known("sliding_window")
    fields.one_of("mamba_hidden_act", ("silu",))
    layers = fields.size("num_hidden_layers", default=len(kinds))
    if layers != len(kinds):
        raise ConfigError(
            f"num_hidden_layers is {layers}, and {len(kinds)} layers are described",
            location=fields.location,
        )
    sizes = _sizes(
        _Fields(
            values={**fields.values, "num_hidden_layers": layers},
            location=fields.location,
            read=fields.read,
        )
    )
    style = _style(fields, activation="relu_squared", gated=False, rotary_size=0)
    space = StateSpace(
        state_heads=fields.size("mamba_num_heads"),
        state_head_size=fields.size("mamba_head_dim"),
        state_size=fields.size("ssm_state_size", default=128),
        state_groups=fields.size("n_groups", "mamba_n_groups", default=8),
        convolution=fields.size("conv_kernel", "mamba_d_conv", default=4),
        chunk=fields.size("chunk_size", "mamba_chunk_size", default=128),
        convolution_biases=fields.flag("use_conv_bias", default=True),
    )
    routing = None
    names = (
        "n_group",
        "topk_group",
        "n_routed_experts",
        "n_shared_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "moe_latent_size",
        "routed_scaling_factor",
        "norm_topk_prob",
    )
    fields.known(*names)
    if any(kind.is_routed for kind in kinds):
        routing = replace(
            _experts_of_deepseek(fields, "sigmoid", corrected=True, normalised=True),
            shared_mlp=fields.size("moe_shared_expert_intermediate_size"),
            latent_size=fields.size("moe_latent_size", default=0, least=0),
        )
    return _Description(sizes=sizes, style=style, kinds=kinds, routing=routing, state_space=space)


def _llama4(fields: _Fields) -> _Description:
    sizes = _sizes(fields)
    every = fields.size("interleave_moe_layer_step", default=1)
    chunk = fields.size("attention_chunk_size", default=0, least=0)
    unrotated = fields.size("no_rope_layer_interval", default=4)
    rotates = fields.numbers("no_rope_layers") or [
        int((index + 1) % unrotated != 0) for index in range(sizes.layers)
    ]
    routed = fields.numbers("moe_layers") or range(every - 1, sizes.layers, every)
    width = fields.size("intermediate_size_mlp")
    types = fields.texts("layer_types")
    _known_types(fields, types, ("full_attention", "chunked_attention"))
    kinds = tuple(
        LayerKind(
            rotates=bool(rotates[index]),
            chunk=chunk if rotates[index] else 0,
            is_routed=index in routed,
        )
        for index in range(sizes.layers)
    )
    routing = Routing(
        experts=fields.size("num_local_experts"),
        chosen=fields.size("num_experts_per_tok"),
        expert_mlp=sizes.mlp,
        shared_experts=1,
        gate="sigmoid",
        style=RoutingStyle(normalised=False, scales_inputs=True),
    )
    is_normed = fields.flag("use_qk_norm", default=True)
    style = _style(fields, norms_after_rotation=is_normed)
    return _Description(sizes=replace(sizes, mlp=width), style=style, kinds=kinds, routing=routing)


def _mpt(fields: _Fields) -> _Description:
    attention = fields.part("attn_config")
    alibi = attention.flag("alibi")
    attention.one_of("attn_type", ("multihead_attention",))
    for name in ("clip_qkv", "softmax_scale"):
        attention.one_of(name, ())
    attention.one_of("qk_ln", (False,))
    attention.known(
        "attn_impl", "attn_pdrop", "attn_uses_sequence_id", "prefix_lm", "alibi_bias_max"
    )
    attention.check_read()
    fields.one_of("no_bias", (True,))
    fields.one_of("embedding_fraction", (1.0,))
    fields.one_of("norm_type", ("low_precision_layernorm", "layernorm"))
    fields.one_of("logit_scale", ())
    learned = fields.flag("learned_pos_emb", default=True) and not alibi
    sizes = _sizes(fields, rope_theta=0)
    sizes = replace(sizes, mlp=sizes.embedding * fields.size("expansion_ratio", default=4))
    style = _style(
        fields,
        norm="layer",
        norm_biases=False,
        activation="exact_gelu",
        gated=False,
        tied=True,
        alibi=alibi,
        learned_positions=fields.size("max_seq_len", default=2048) if learned else 0,
    )
    return _Description(sizes=sizes, style=style, kinds=_alike(sizes))


def _gpt2(fields: _Fields) -> _Description:
    sizes = _sizes(fields, rope_theta=0)
    for name in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"):
        fields.one_of(name, (False,))
    fields.known("scale_attn_weights", "n_ctx")
    activation = _ACTIVATIONS[fields.text("activation_function", default="gelu_new")]
    style = _style(
        fields,
        norm="layer",
        activation=activation,
        gated=False,
        tied=True,
        attention_biases="all",
        mlp_biases=True,
        learned_positions=fields.size("n_positions", default=1024),
    )
    return _Description(sizes=sizes, style=style, kinds=_alike(sizes))


_FAMILIES: dict[str, Callable[[_Fields], _Description]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": _qwen3_next,
    "deepseek_v2": lambda fields: _deepseek(fields, "softmax"),
    "deepseek_v3": lambda fields: _deepseek(fields, "sigmoid"),
    "deepseek_v32": lambda fields: _deepseek(fields, "sigmoid", indexed=True),
    "kimi_k2": lambda fields: _deepseek(fields, "sigmoid"),
    "glm4_moe": _glm4_moe,
    "minimax_m2": _minimax_m2,
    "gpt_oss": _gpt_oss,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "phi3": _mistral,
    "olmo2": _olmo2,
    "granite": _granite,
    "granitemoehybrid": _granite_hybrid,
    "nemotron_h": _nemotron_h,
    "llama4": _llama4,
    "mpt": _mpt,
    "gpt2": _gpt2,
}
"""What reads the configuration of each ``model_type``."""
