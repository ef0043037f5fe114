"""How a model of the zoo computes attention: as it is asked for, or as what runs it can.

The kernels of cuDNN are for 16-bit types, on NVIDIA's GPUs of compute capability 8.0 and newer.
Source: NVIDIA, cuDNN frontend, "Scaled Dot Product Attention", support matrix. FlashAttention-2 is
for Ampere, Ada and Hopper, FlashAttention-3 for Hopper. Source: Dao-AILab/flash-attention, README.
Pallas, of which splash attention's kernels are made, is for the fourth generation of TPUs and newer
ones. Source: JAX, "Writing TPU kernels with Pallas". FlashMLA is for Hopper and Blackwell. Source:
deepseek-ai/FlashMLA, README.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hespas.compile.targets import compute_capability
from hespas.errors import ConfigError, HespasError, option
from hespas.hardware.presets import is_tpu, part_of
from hespas.models.kernels import FUSED
from hespas.models.language import Decode, LanguageModel
from hespas.models.model import Model

_AMPERE, _HOPPER, _BLACKWELL = 8.0, 9.0, 10.0
_SMALL_HEADS = 128
"""Larger heads, up to 256, need Hopper."""
_WITHOUT_PALLAS = ("TPUv2", "TPUv3")
_SETTING, _AUTO, _UNFUSED = "attention", "auto", "unfused"
_SAID = {
    "cudnn": "attention is that of cuDNN, fused, which {target} has",
    "flashmla": "attention is that of FlashMLA, fused, over a cache of latent vectors",
    "splash": "attention is splash attention, JAX's kernels for TPUs, in blocks of 512 or less",
}


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
    settings = model.with_options(texts)
    kernels = _usual(target, settings)
    why = _why_unfused(kernels, target, settings)
    if why:
        return {_SETTING: _UNFUSED}, [f"attention is unfused, one operation after another: {why}"]
    return {_SETTING: kernels}, [_SAID[kernels].format(target=target)]


def _usual(target: str | None, settings: Any) -> str:
    """Return the kernels that such a step has on such a device."""
    if target is not None and _is_tpu(target):
        return "splash"
    is_language = isinstance(settings, LanguageModel)
    is_latent = is_language and settings.latent is not None and isinstance(settings.run, Decode)
    return "flashmla" if is_latent else "cudnn"


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
    if FUSED[kernels].platform == "cuda" and capability is None:
        return f"it is not known whether {target} has fused kernels"
    if isinstance(settings, LanguageModel) and kernels == "cudnn":
        size = max(settings.head_sizes)
        if size > _SMALL_HEADS and capability is not None and capability < _HOPPER:
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
            has = capability is not None and _AMPERE <= capability < _BLACKWELL
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
            least = _HOPPER if kernels == "flashmla" else _AMPERE
            has = capability is not None and capability >= least
            what = "FlashMLA" if kernels == "flashmla" else "fused attention of cuDNN"
            return "" if unknown or has else f"{target} has no {what}"
