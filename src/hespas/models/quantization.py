"""The formats of stored weights by part, and which of them a file says.

Weights of few bits have scales, one for a group of them. Where a step is predicted, those of 8 bits
have one scale each, whatever groups they are published with: that changes 0.02 % of their bytes.

``quantization_config`` has the method, and the modules that it leaves as they are: by name, with
``*`` for any number, or as a regular expression behind ``re:``. Sources: transformers 5.24,
``utils/quantization_config.py``; compressed-tensors and ModelOpt, as vLLM reads their files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from hespas.base.frozen import frozen
from hespas.errors import ConfigError
from hespas.models.fields import Fields

ModelPart = Literal["attention", "dense", "experts", "other"]
PARTS: tuple[ModelPart, ...] = ("attention", "dense", "experts", "other")
"""Mixers with or without attention; dense layers and shared experts; experts that tokens choose;
embeddings, head, norms, biases and routers."""


@frozen
class Format:
    """How weights are stored: bits, and a scale per group."""

    bits: int
    group: int = 0
    scale_bits: int = 0

    @property
    def bits_of_weight(self) -> float:
        """The bits of a weight, with its share of scale."""
        return self.bits + (self.scale_bits / self.group if self.group else 0)


FORMATS: Mapping[str, Format] = {
    "f32": Format(bits=32),
    "bf16": Format(bits=16),
    "f16": Format(bits=16),
    "f8": Format(bits=8, group=128 * 128, scale_bits=32),
    "mxfp4": Format(bits=4, group=32, scale_bits=8),
    "nvfp4": Format(bits=4, group=16, scale_bits=8),
    "int4": Format(bits=4, group=128, scale_bits=16),
    "int4_32": Format(bits=4, group=32, scale_bits=16),
}
"""Sources: DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section 3.3.2 (blocks of 128 x 128);
Open Compute Project, Microscaling Formats Specification 1.0, 2023, table 1; NVIDIA, cuDNN, "Block
Scaling" (NVFP4: 16 numbers with a scale of E4M3); J. Lin et al., AWQ, 2023, section 5.1 (128); the
config.json of Kimi-K2.5 (32)."""
SCALED = tuple(name for name, format_ in FORMATS.items() if format_.group)


@frozen
class Precision:
    """The formats of a model's parts and cache."""

    attention: str = "bf16"
    dense: str = "bf16"
    experts: str = "bf16"
    other: str = "bf16"
    cache: str = "bf16"

    def of(self, part: ModelPart | Literal["cache"]) -> Format:
        """Return the format of a part, or of the cache."""
        return FORMATS[getattr(self, part)]


UNQUANTISED = Precision()
_METHODS = (
    *("fp8", "fbgemm_fp8", "mxfp4", "modelopt", "compressed-tensors", "awq", "gptq"),
    *("bitsandbytes", "quark"),
)
_OF_MODELOPT = {"FP8": "f8", "NVFP4": "nvfp4"}
_OF_PACKING = {("float", 8): "f8", ("float", 4): "nvfp4", ("int", 4): "int4", ("int", 8): "f8"}
_OF_GROUPS = {128: "int4", 32: "int4_32"}
_INT8 = "weights in int8 are predicted in f8: as many bytes, and on parts with both the same rate"
_NF4 = "weights in nf4 are predicted in int4: as many bytes within 1 %, widened before products too"
_LAYER = "layers.7"
_MODULES = {
    "attention": ("self_attn.o_proj", "linear_attn.out_proj", "mixer.out_proj"),
    "dense": ("mlp.down_proj", "mlp.shared_experts.down_proj"),
    "experts": ("mlp.experts.0.down_proj",),
}
"""Modules of a layer, by the part that they are of."""


def read_precision(fields: Fields, *, layers: int) -> tuple[Precision, tuple[str, ...]]:
    """Return the formats of a model's parts, with notes.

    ``fields`` are those of ``quantization_config``, empty where nothing is quantised. Raises
    `ConfigError` for a method, or sizes of groups, that are not known.
    """
    if not fields.values:
        return UNQUANTISED, ()
    name, left_out, cache = _format(fields)
    parts: dict[str, str] = {}
    notes = _notes(fields)
    for part, modules in _MODULES.items():
        patterns = [pattern for pattern in left_out if _matches(pattern, modules)]
        numbers = {match[1] for match in map(_NUMBER.search, patterns) if match}
        is_whole = len(numbers) > layers / 2 or not all(map(_NUMBER.search, patterns))
        parts[part] = "bf16" if is_whole else name
        if patterns and not is_whole:
            notes.append(
                f"{part} of {len(numbers)} layers is published in 16 bits, and predicted in {name} "
                "as in the others"
            )
    return Precision(**parts, cache=cache), tuple(notes)


def _format(fields: Fields) -> tuple[str, list[str], str]:
    """Return the format, modules left out, and the cache's type."""
    method = fields.text("quant_method")
    names = ("modules_to_not_convert", "ignore", "exclude_modules", "exclude")
    left_out = [module for name in names for module in fields.texts(name)]
    cache = UNQUANTISED.cache
    match method:
        case "fp8" | "fbgemm_fp8":
            _check_blocks(fields)
            name = "f8"
        case "mxfp4":
            name = "mxfp4"
        case "modelopt":
            fields.one_of("quant_algo", tuple(_OF_MODELOPT))
            name = _OF_MODELOPT[fields.text("quant_algo", default="NVFP4")]
            cache = "f8" if fields.text("kv_cache_quant_algo") == "FP8" else _cache(fields)
        case "compressed-tensors":
            name, cache = _packed_format(fields), _cache(fields)
        case "awq" | "gptq":
            name = _integer_format(fields, "bits")
        case "bitsandbytes":
            name = "f8" if fields.flag("load_in_8bit") else "int4"
            left_out += fields.texts("llm_int8_skip_modules")
        case "quark":
            weights = fields.part("global_quant_config").part("weight")
            weights.one_of("dtype", ("fp8_e4m3",))
            name = "f8"
        case _:
            raise ConfigError(
                f"weights quantised by {method!r} are not known",
                location=fields.location,
                hint=f"known: {', '.join(_METHODS)}; without quantization_config they are of 16 "
                "bits",
            )
    return name, left_out, cache


_NUMBER = re.compile(r"\blayers\.(\d+)\b")


def _matches(pattern: str, modules: Iterable[str]) -> bool:
    """Return whether a pattern leaves out one of these modules."""
    if pattern.startswith("re:"):
        expression = pattern.removeprefix("re:")
    else:
        plain = re.escape(_NUMBER.sub(_LAYER, pattern)).replace(r"\*", ".*")
        expression = f".*{plain}"
    try:
        return any(re.match(expression, f"model.{_LAYER}.{module}") for module in modules)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is no regular expression: {error}") from error


def _cache(fields: Fields) -> str:
    return (
        "f8"
        if fields.part("kv_cache_scheme").size("num_bits", default=16) == 8
        else UNQUANTISED.cache
    )


def _check_blocks(fields: Fields) -> None:
    blocks = fields.numbers("weight_block_size")
    fields.refuse(
        blocks and blocks != [128, 128], f"weight_block_size is {blocks}", "known: [128, 128]"
    )


def _packed_format(fields: Fields) -> str:
    """Return the format of the one group of compressed tensors."""
    groups = fields.part("config_groups")
    names = list(groups.values)
    weights = groups.part(names[0]).part("weights") if names else groups
    kind, bits = weights.text("type"), weights.size("num_bits", default=0)
    name = _OF_PACKING.get((kind, bits))
    if name is None or len(names) != 1:
        raise ConfigError(
            f"weights of {kind or 'no type'} in {bits} bits, in {len(names)} groups of modules, "
            "are not known",
            location=fields.location,
            hint="known: one group of modules, float or int in 8 or 4 bits",
        )
    if kind == "int":
        return _integer_format(weights, "num_bits")
    if name != "f8":
        weights.one_of("group_size", (FORMATS[name].group,))
    return name


def _integer_format(weights: Fields, bits: str) -> str:
    """Return the format of whole numbers, by their bits."""
    if weights.size(bits, default=4) == 8:
        return "f8"
    weights.one_of(bits, (4,))
    weights.one_of("group_size", tuple(_OF_GROUPS))
    return _OF_GROUPS[weights.size("group_size", default=128)]


def _notes(fields: Fields) -> list[str]:
    """Return what is said of formats that others stand for."""
    if fields.text("quant_method") == "bitsandbytes":
        return [_INT8 if fields.flag("load_in_8bit") else _NF4]
    text = json.dumps(dict(fields.values))
    is_whole = '"type": "int"' in text and '"num_bits": 8' in text
    return [_INT8] if is_whole or fields.size("bits", default=4) == 8 else []
