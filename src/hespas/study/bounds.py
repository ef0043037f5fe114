"""What a candidate can't do better than, from its sizes alone, in about a millisecond.

No bound exceeds what the compiled program has: they prune, they don't predict. Those of memory are
of the arrays that a training step can't be without: weights, both moments of AdamW, gradients, and
what each layer keeps for the backward pass. Those of time are of the FLOPs that the model needs at
the fastest rate of the device, and of weights and moments that are read and written once. Of a
pipeline they are those of the stage that has most, and of the way to the last stage and back.
"""

from __future__ import annotations

from dataclasses import dataclass

from hespas.hardware.device import Device, at_fastest
from hespas.models.catalogue import Llama2, Llama3
from hespas.models.flops import model_flops
from hespas.models.kept import least_kept_bytes, local_elements
from hespas.models.model import TYPE_BYTES
from hespas.prediction.cutting import Cut
from hespas.prediction.fitting import least_memory
from hespas.sources.source import ModelSource

_MOMENTS = 2
_LAYER = (
    ("norm",),
    ("norm",),
    ("embedding", "heads", "head_size"),
    ("embedding", "kv_heads", "head_size"),
    ("embedding", "kv_heads", "head_size"),
    ("heads", "head_size", "embedding"),
    ("embedding", "mlp"),
    ("embedding", "mlp"),
    ("mlp", "embedding"),
)
"""The weights of a layer of a Llama-like decoder, by the dimensions of each."""
_OUTER = (("vocabulary", "embedding"), ("embedding", "vocabulary"), ("norm",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The least memory of a device, in bytes, and the least time of a step; 0 for none known."""

    memory_bytes: int = 0
    time_s: float = 0.0


NO_BOUNDS = Bounds()


def bounds_of(source: ModelSource, device: Device | None, devices: int) -> Bounds:
    """Return the bounds of a model of the zoo on some devices; none for models without sizes.

    >>> from hespas.sources.options import ModelOptions
    >>> from hespas.sources.source import find_source
    >>> source = find_source("llama3-70b", ModelOptions(global_batch=64), devices=64)
    >>> round(bounds_of(source, None, 64).memory_bytes / 1e9)
    63
    """
    settings = source.settings
    memory_bytes = _decoder_bytes(settings) if isinstance(settings, Llama2 | Llama3) else 0
    if device is None:
        return Bounds(memory_bytes=memory_bytes)
    needed = _needed(settings, model_flops(settings) or 0.0)
    state_bytes = _state_bytes(settings) if isinstance(settings, Llama2 | Llama3) else 0
    moved_s = 2 * state_bytes / device.memory_bandwidth_bytes_per_s
    rate = _rate(device, getattr(settings, "dtype", ""))
    return Bounds(memory_bytes=memory_bytes, time_s=max(needed / devices / rate, moved_s))


def pipeline_bounds(cut: Cut, device: Device | None) -> Bounds:
    """Return the bounds of a pipeline: what its stages can't be without, and FLOPs with the bubble.

    Where a stage has one chunk, whose backward pass is one, the last stage computes all
    micro-batches, and the head, after the first one came to it and before the last one goes back.
    """
    settings = cut.source.settings
    held = max(stage.peak_bytes for stage in least_memory(cut))
    if device is None or not isinstance(settings, Llama2 | Llama3):
        return Bounds(memory_bytes=held)
    rate = _rate(device, settings.dtype) * cut.mesh.device_count
    needed = _needed(settings, cut.work.model_flops or 0.0)
    schedule = cut.schedule
    if schedule.chunks > 1 or schedule.splits_backward:
        return Bounds(memory_bytes=held, time_s=needed / rate)
    tokens = settings.batch * settings.parts * settings.sizes["sequence"]
    head = 6 * tokens * settings.sizes["vocabulary"] * settings.sizes["embedding"]
    layers = [part.layers for part in cut.parts]
    share = sum(layers[:-1]) / schedule.micro_batches + layers[-1]
    to_last_and_back = cut.stages * ((needed - head) * share / sum(layers) + head)
    return Bounds(memory_bytes=held, time_s=max(needed, to_last_and_back) / rate)


def _rate(device: Device, dtype: str) -> float:
    """Return the fastest rate of products of a type: those of f32 may run as tf32."""
    if dtype not in TYPE_BYTES:
        return at_fastest(device).peak_flops
    return max(device.rate(dtype), device.rate("tf32") if dtype == "f32" else 0.0)


def _needed(settings: object, flops: float) -> float:
    """Return FLOPs that no program can leave out: of masked attention, half of the mixing."""
    if not isinstance(settings, Llama2 | Llama3):
        return flops
    sizes = settings.sizes
    mixing = 12 * sizes["layers"] * sizes["heads"] * sizes["head_size"] * sizes["sequence"] ** 2
    return flops - settings.batch * settings.parts * mixing / 2


def _decoder_bytes(settings: Llama2 | Llama3) -> int:
    """Return the state, and at the start of the last layer's gradient all that layers keep.

    Gradients are of the type that is computed in until they are summed or used; where rounds are
    accumulated, the sums of their gradients, of the states' type, are there all the while.
    """
    state, computed = TYPE_BYTES[settings.state_dtype], TYPE_BYTES[settings.dtype]
    gradients = _weights(settings) * min(state, computed)
    activations = settings.layers * least_kept_bytes(settings)
    if settings.scan:
        sums = _weights(settings) * state if settings.accumulation > 1 else 0
        held = activations + gradients + sums
    else:
        held = max(activations, gradients)
    return _state_bytes(settings) + held


def _state_bytes(settings: Llama2 | Llama3) -> int:
    return (1 + _MOMENTS) * _weights(settings) * TYPE_BYTES[settings.state_dtype]


def _weights(settings: Llama2 | Llama3) -> int:
    """Return how many weights one device has."""
    layer = sum(local_elements(settings, names) for names in _LAYER)
    return settings.layers * layer + sum(local_elements(settings, names) for names in _OUTER)
