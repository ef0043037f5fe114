"""How a model of the zoo computes attention: as it is asked for, or as what runs it can.

The kernels of cuDNN are for 16-bit types, on NVIDIA's GPUs of compute capability 8.0 and newer.
Source: NVIDIA, cuDNN frontend, "Scaled Dot Product Attention", support matrix. FlashAttention-2 is
for Ampere, Ada and Hopper, FlashAttention-3 for Hopper. Source: Dao-AILab/flash-attention, README.
Pallas, of which splash attention's kernels are made, is for the fourth generation of TPUs and newer
ones. Source: JAX, "Writing TPU kernels with Pallas".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hespas.compile.targets import compute_capability
from hespas.errors import ConfigError, HespasError, option
from hespas.hardware.presets import is_tpu, part_of
from hespas.models.kernels import FUSED
from hespas.models.language import LanguageModel
from hespas.models.model import Model

_LEAST_CAPABILITY = 8.0
_SMALL_HEADS, _LARGE_CAPABILITY = 128, 9.0
"""Larger heads, up to 256, need as much."""
_TOO_LARGE_CAPABILITY = 10.0
"""That of Blackwell, which FlashAttention-2 and -3 have no kernels for."""
_WITHOUT_PALLAS = ("TPUv2", "TPUv3")
_SETTING, _AUTO, _CUDNN, _FLASH, _SPLASH, _UNFUSED = (
    "attention",
    "auto",
    "cudnn",
    "flash",
    "splash",
    "unfused",
)


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
    {'attention': 'splash'}
    >>> settled_attention(model_named("llama3-8b"), {}, "TPUv3")[0]
    {'attention': 'unfused'}
    """
    own = model.options().get(_SETTING)
    asked = texts.get(_SETTING, own)
    missing = _missing(str(asked), target) if asked in FUSED else ""
    if missing:
        raise ConfigError(missing, location=model.name, hint=f"drop {option(_SETTING)}")
    if own is None or asked != _AUTO:
        return {}, []
    if own != _AUTO:
        return {_SETTING: str(own)}, []
    kernels = _SPLASH if target is not None and _is_tpu(target) else _CUDNN
    why = _why_unfused(kernels, target, model.with_options(texts))
    if why:
        return {_SETTING: _UNFUSED}, [f"attention is unfused, one operation after another: {why}"]
    if kernels == _SPLASH:
        note = "attention is splash attention, JAX's kernels for TPUs, in blocks of 512 or less"
    else:
        note = f"attention is that of cuDNN, fused, which {target} has"
    return {_SETTING: kernels}, [note]


def _is_tpu(target: str) -> bool:
    try:
        return is_tpu(target) is True
    except HespasError:
        return False


def _why_unfused(kernels: str, target: str | None, settings: Any) -> str:
    if target is None:
        return "nothing says that what runs it has fused kernels"
    missing = _missing(kernels, target)
    if missing:
        return missing
    capability = compute_capability(target)
    # Of every NVIDIA preset the capability is known.
    if kernels == _CUDNN and capability is None:
        return f"it is not known whether {target} has fused kernels"
    if isinstance(settings, LanguageModel) and kernels == _CUDNN:
        size = max(settings.head_sizes)
        if size > _SMALL_HEADS and capability is not None and capability < _LARGE_CAPABILITY:
            return f"on {target} cuDNN's fused kernels have no heads of {size}"
    return settings.why_not(kernels)


def _missing(kernels: str, target: str | None) -> str:
    """Return that a target doesn't have kernels, or nothing where it has them or may have them."""
    if target is None:
        return ""
    capability = compute_capability(target)
    match kernels:
        case "splash":
            if not _is_tpu(target):
                return f"{target} has no splash attention: its kernels are for TPUs"
            old = target.casefold() in {name.casefold() for name in _WITHOUT_PALLAS}
            return f"{target} has no splash attention: Pallas is for newer TPUs" if old else ""
        case "flash":
            has = capability is not None and _LEAST_CAPABILITY <= capability < _TOO_LARGE_CAPABILITY
            return (
                ""
                if has
                else (
                    f"FlashAttention-2 and -3 have no kernels for {target}: they are for NVIDIA's "
                    "Ampere, Ada and Hopper"
                )
            )
        case _:
            unknown = capability is None and part_of(target) is None
            has = capability is not None and capability >= _LEAST_CAPABILITY
            return "" if unknown or has else f"{target} has no fused attention of cuDNN"
