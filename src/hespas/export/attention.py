"""How a model of the zoo computes attention: as it is asked for, or as what runs it can.

The kernels of cuDNN are for 16-bit types, on NVIDIA's GPUs of compute capability 8.0 and newer.
Source: NVIDIA, cuDNN frontend, "Scaled Dot Product Attention", support matrix. FlashAttention-2 is
for Ampere, Ada and Hopper, FlashAttention-3 for Hopper. Source: Dao-AILab/flash-attention, README.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hespas.compile.targets import compute_capability
from hespas.errors import ConfigError, option
from hespas.hardware.presets import part_of
from hespas.models.language import LanguageModel
from hespas.models.model import Model

_LEAST_CAPABILITY = 8.0
_SMALL_HEADS, _LARGE_CAPABILITY = 128, 9.0
"""Larger heads, up to 256, need as much."""
_TOO_LARGE_CAPABILITY = 10.0
"""That of Blackwell, which FlashAttention-2 and -3 have no kernels for."""
_SETTING, _AUTO, _FUSED, _UNFUSED = "attention", "auto", "cudnn", "unfused"
_FLASH = "flash"


def settled_attention(
    model: Model, texts: Mapping[str, str], target: str | None
) -> tuple[dict[str, str], list[str]]:
    """Return the setting that stands for auto, and a note on it; nothing where nothing is settled.

    ``texts`` are the settings that are given, ``target`` is what runs the model: a node or a target
    of compilers, None where that is not known. Raises `ConfigError` for fused attention where there
    is none.

    >>> from hespas.models.catalogue import model_named
    >>> settled_attention(model_named("llama3-8b"), {}, "H100_80GB")[0]
    {'attention': 'cudnn'}
    >>> settled_attention(model_named("llama3-8b"), {}, "TPUv5e")[0]
    {'attention': 'unfused'}
    """
    own = model.options().get(_SETTING)
    asked = texts.get(_SETTING, own)
    if asked == _FUSED:
        _check_fused(model.name, target)
    if asked == _FLASH:
        _check_flash(model.name, target)
    if own is None or asked != _AUTO:
        return {}, []
    if own != _AUTO:
        return {_SETTING: str(own)}, []
    why = _why_unfused(target, model.with_options(texts))
    if why:
        return {_SETTING: _UNFUSED}, [f"attention is unfused, one operation after another: {why}"]
    return {_SETTING: _FUSED}, [f"attention is that of cuDNN, fused, which {target} has"]


def _why_unfused(target: str | None, settings: Any) -> str:
    if target is None:
        return "nothing says that what runs it has fused kernels"
    match _has_kernels(target):
        case "yes":
            return _why_not_here(target, settings)
        case "no":
            return f"{target} has no fused kernels of cuDNN"
        case "unknown":
            return f"it is not known whether {target} has fused kernels"


def _why_not_here(target: str, settings: Any) -> str:
    """Return why the kernels that are there can't do it."""
    if not isinstance(settings, LanguageModel):
        return "cuDNN's fused kernels compute in 16 bits" if settings.dtype == "f32" else ""
    size, capability = max(settings.head_sizes), compute_capability(target)
    if size > _SMALL_HEADS and capability is not None and capability < _LARGE_CAPABILITY:
        return f"on {target} cuDNN's fused kernels have no heads of {size}"
    return settings.why_unfused


def _check_fused(name: str, target: str | None) -> None:
    if target is not None and _has_kernels(target) == "no":
        raise ConfigError(
            f"{target} has no fused attention of cuDNN",
            location=name,
            hint=f"drop {option(_SETTING)}",
        )


def _check_flash(name: str, target: str | None) -> None:
    """Refuse parts that neither FlashAttention-2 nor -3 is for: Ampere, Ada and Hopper are."""
    if target is None:
        return
    capability = compute_capability(target)
    if capability is None or not _LEAST_CAPABILITY <= capability < _TOO_LARGE_CAPABILITY:
        raise ConfigError(
            f"FlashAttention-2 and -3 have no kernels for {target}: they are for NVIDIA's Ampere, "
            "Ada and Hopper",
            location=name,
            hint=f"drop {option(_SETTING)}",
        )


def _has_kernels(target: str) -> Literal["yes", "no", "unknown"]:
    capability = compute_capability(target)
    if capability is not None:
        return "yes" if capability >= _LEAST_CAPABILITY else "no"
    # Of every NVIDIA preset the capability is known.
    return "unknown" if part_of(target) is None else "no"
