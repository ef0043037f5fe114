"""The least memory and time that a candidate's step can take, from sizes alone.

No prediction is below its bounds, which tests hold for each kind of step. A study prunes what can't
fit, and what takes longer at least than the best found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from hespas.base.frozen import frozen
from hespas.hardware.device import Device, at_fastest
from hespas.hardware.interconnect import Shape
from hespas.hardware.system import System
from hespas.models.architecture import LayerKind
from hespas.models.flops import mixing_flops, model_flops
from hespas.models.language import LanguageModel
from hespas.models.model import TYPE_BYTES, MeshAxes
from hespas.models.parameters import (
    least_kept_bytes,
    least_routed_bytes,
    local_elements,
    local_layer_weights,
    local_weights,
)
from hespas.models.precision import SCALED
from hespas.models.runs import Decode, Training
from hespas.prediction.cutting import Cut, least_memory
from hespas.sources.source import ModelSource
from hespas.study.crossing import crossed_by, dimensions_of

_MOMENTS = 2
_SWITCHED = frozenset({Shape.SWITCH, Shape.FAT_TREE})
_GATHERED_AGAIN = frozenset({"full", "minimal_with_context"})
"""Policies that keep no weights of a layer for its backward pass."""


@frozen
class Bounds:
    """The least device memory in bytes, step time, and its products' time; 0 if unknown."""

    memory_bytes: int = 0
    time_s: float = 0.0
    computing_s: float = 0.0


NO_BOUNDS = Bounds()


def bounds_of(source: ModelSource, device: Device | None, system: System | None) -> Bounds:
    """Return the bounds of a zoo model on a system; none for models without sizes.

    Products run at the device's highest rate, states pass through its memory twice, messages
    occupy its links, and layers wait for their rows: whichever takes longest alone.

    >>> from hespas.sources.options import ModelOptions
    >>> from hespas.sources.source import find_source
    >>> source = find_source("llama3-70b", ModelOptions(global_batch=64), devices=64)
    >>> round(bounds_of(source, None, None).memory_bytes / 1e9)
    63
    """
    settings = source.settings
    trains = isinstance(settings, LanguageModel) and isinstance(settings.run, Training)
    memory_bytes = _decoder_bytes(settings) if trains else 0
    if device is None:
        return Bounds(memory_bytes=memory_bytes)
    needed = _needed_flops(settings, model_flops(settings) or 0.0)
    devices = 1 if system is None else system.device_count
    computing_s = needed / devices / _rate(device, settings)
    if not trains:
        return Bounds(memory_bytes=memory_bytes, time_s=computing_s, computing_s=computing_s)
    moved_s = 2 * _state_bytes(settings) / device.memory_bandwidth_bytes_per_s
    network = _Network(mesh=settings.mesh, system=system)
    sending_s = network.busy_s((*_weights_sent(settings), *_rows_sent(settings)))
    waiting_s = _waited_s(settings, computing_s) + network.in_turn_s(_rows_sent(settings))
    time_s = max(computing_s, moved_s, sending_s, waiting_s)
    return Bounds(memory_bytes=memory_bytes, time_s=time_s, computing_s=computing_s)


def pipeline_bounds(cut: Cut, device: Device | None) -> Bounds:
    """Return the bounds of a pipeline from its stages' memory, FLOPs, messages and bubble.

    Some stage has as many layers as there are in the mean, whose rows cross its links.
    If a stage has one chunk, whose backward pass is one, the last stage computes all micro-batches,
    and the head, after the first micro-batch reached it and before the last one goes back.
    """
    settings = cut.source.settings
    memory_bytes = max(stage.peak_bytes for stage in least_memory(cut))
    if device is None or not isinstance(settings, LanguageModel):
        return Bounds(memory_bytes=memory_bytes)
    rate = _rate(device, settings) * cut.mesh.device_count
    needed = _needed_flops(settings, cut.work.model_flops or 0.0)
    schedule = cut.schedule
    are_equal = len(set(settings.kinds)) == 1
    network = _Network(mesh=cut.mesh, system=cut.system)
    sending_s = network.busy_s(_rows_sent(settings)) / cut.stages
    computed = needed
    if schedule.chunks == 1 and not schedule.splits_backward and are_equal:
        computed = max(needed, _to_last_and_back(cut, settings, needed))
    computing_s = computed / rate
    time_s = max(computing_s, sending_s)
    return Bounds(memory_bytes=memory_bytes, time_s=time_s, computing_s=computing_s)


def _to_last_and_back(cut: Cut, settings: LanguageModel, needed: float) -> float:
    """Return the FLOPs that all stages had time for while the last one waits and computes."""
    tokens = settings.batch * settings.parts * settings.sizes["sequence"]
    passes = 4 if settings.lora_modules else 6
    head = passes * tokens * settings.sizes["vocabulary"] * settings.sizes["embedding"]
    layers = [part.layers for part in cut.parts]
    share = sum(layers[:-1]) / cut.schedule.micro_batches + layers[-1]
    return cut.stages * ((needed - head) * share / sum(layers) + head)


def _rate(device: Device, settings: object) -> float:
    """Return the fastest product rate of a model; f32 may run as tf32."""
    dtype = getattr(settings, "dtype", "")
    if _is_in_few_bits(getattr(settings, "run", None)) or dtype not in TYPE_BYTES:
        return at_fastest(device).peak_flops
    return max(device.rate(dtype), device.rate("tf32") if dtype == "f32" else 0.0)


def _needed_flops(settings: object, flops: float) -> float:
    """Return the FLOPs that every program needs; masked attention needs half its mixing."""
    if not isinstance(settings, LanguageModel) or isinstance(settings.run, Decode):
        return flops
    sequences = settings.batch * settings.parts
    needed = flops - sequences * mixing_flops(settings) / 2
    # What goes into the first layer has no gradient where its weights are frozen.
    return needed * (1 - 1 / settings.layers) if settings.lora_modules else needed


def _decoder_bytes(settings: LanguageModel) -> int:
    """Return the state's bytes, plus all activations at the last layer's gradient.

    Gradients are of the compute type until they are summed or used; if rounds are accumulated, the
    sums of their gradients, of the states' type, exist throughout.
    """
    state, computed = TYPE_BYTES[settings.state_dtype], TYPE_BYTES[settings.dtype]
    gradients = _weights(settings) * min(state, computed)
    routed = sum(kind.is_routed for kind in settings.kinds) * least_routed_bytes(settings)
    activations = settings.layers * least_kept_bytes(settings) + routed
    run = settings.run
    if isinstance(run, Training) and run.scan:
        sums = _weights(settings) * state if settings.accumulation > 1 else 0
        transient_bytes = activations + gradients + sums
    else:
        transient_bytes = max(activations, gradients)
    frozen = local_weights(settings, settings.axes, frozen=True) * computed
    return _state_bytes(settings) + frozen + transient_bytes


def _state_bytes(settings: LanguageModel) -> int:
    return (1 + _MOMENTS) * _weights(settings) * TYPE_BYTES[settings.state_dtype]


def _weights(settings: LanguageModel) -> int:
    return local_weights(settings, settings.state_axes)


def _waited_s(settings: LanguageModel, computing_s: float) -> float:
    """Return the time of products that no message of rows runs beside.

    These are the forward ones, and those that make gradients of rows, where no products stand
    beside others: gradients of weights may wait.
    """
    routing = settings.routing
    has_others = routing is not None and (routing.shared_width or routing.style.beside_dense)
    is_chain = settings.style.before_mlp == "yes" and not has_others
    return computing_s * 2 / 3 if is_chain else 0.0


@frozen
class _Sent:
    """The bytes that messages of a kind bring to a device which has no part of them.

    Devices next to each other need the same ones where these are ``is_shared``.
    """

    axes: tuple[str, ...]
    size_bytes: float
    is_shared: bool


@frozen
class _Network:
    """The devices of a mesh on a system, and how long at least messages between them take.

    Only a switch is known to give a device no more than its own link.
    """

    mesh: MeshAxes
    system: System | None

    def busy_s(self, messages: Iterable[_Sent]) -> float:
        """Return how long messages occupy the busiest links of a device.

        Those through the links of one dimension follow each other; those of two may run side by
        side.
        """
        busy_s: defaultdict[int, float] = defaultdict(float)
        for sent in messages:
            for dimension, time_s in self._crossing_s(sent):
                busy_s[dimension] += time_s
        return max(busy_s.values(), default=0.0)

    def in_turn_s(self, messages: Iterable[_Sent]) -> float:
        """Return how long messages take of which each waits for the one before."""
        return sum(time_s for sent in messages for _, time_s in self._crossing_s(sent))

    def _crossing_s(self, sent: _Sent) -> Iterator[tuple[int, float]]:
        """Yield the number of the farthest dimension that messages cross, and for how long."""
        if any(dimension.shape not in _SWITCHED for dimension in dimensions_of(self.system)):
            return
        devices, crossed = crossed_by(self.mesh, self.system, sent.axes)
        if not crossed:
            return
        # What others than the ``nearer`` devices send comes through the farthest dimension.
        farthest = crossed[-1]
        outside_bytes = sent.size_bytes * (devices - farthest.nearer) / devices
        links = farthest.nearer if sent.is_shared else 1
        yield farthest.number, outside_bytes / links / farthest.bandwidth_bytes_per_s


def _weights_sent(settings: LanguageModel) -> Iterator[_Sent]:
    """Yield the layers' weights that come, and their gradients that leave.

    Weights come for the pass forward and, again, backward. A sum takes as much as its parts: that
    is all where switches add up, and half of what rings send.
    """
    run, axes = settings.run, settings.axes
    if not isinstance(run, Training):
        return
    element_bytes, gathering = _element_bytes(settings), axes["embedding"]
    divided = local_layer_weights(settings, axes)
    whole = local_layer_weights(settings, {**axes, **settings.sharded(())})
    is_again = run.scan and run.remat in _GATHERED_AGAIN
    times = 3 * settings.accumulation if is_again else 1
    count = settings.mesh.size(*gathering)
    if count > 1:
        gathered = (whole - divided) * count / (count - 1)
        yield _Sent(axes=gathering, size_bytes=times * gathered * element_bytes, is_shared=True)
    if "data" in axes["batch"] and "data" not in gathering:
        yield _Sent(axes=("data",), size_bytes=divided * element_bytes, is_shared=True)


def _rows_sent(settings: LanguageModel) -> Iterator[_Sent]:
    """Yield the rows that devices sum along ``tp``, or send to experts and back, in both passes."""
    run, axes, sizes, routing = settings.run, settings.axes, settings.sizes, settings.routing
    if not isinstance(run, Training):
        return
    element_bytes = settings.accumulation * _element_bytes(settings)
    rows = local_elements(settings, ("batch", "sequence", "row"), sizes, axes)
    crossings = sum(_summed_rows(settings, kind) for kind in settings.kinds)
    yield _Sent(axes=("tp",), size_bytes=rows * crossings * element_bytes, is_shared=True)
    if routing is None or routing.axes != ("expert",) or routing.expert_groups > 1:
        return
    width = sizes["expert_row"]
    rows = local_elements(settings, ("batch", "sequence", "expert_row"), sizes, axes) / width
    # Places of an expert are a whole number: a half of one may be rounded off.
    chosen = rows * routing.chosen * routing.capacity_percent / 100 - routing.experts / 2
    if routing.exchange_dtype != "same":
        element_bytes = settings.accumulation
    # What experts made is made again where its weights get gradients of their own.
    again = (1 if routing.style.scales_inputs else 2) if run.remat == "full" else 0
    crossings = (4 + again) * sum(kind.is_routed for kind in settings.kinds)
    sent_bytes = crossings * max(chosen, 0) * width * element_bytes
    yield _Sent(axes=("expert",), size_bytes=sent_bytes, is_shared=False)


def _element_bytes(settings: LanguageModel) -> int:
    return 1 if _is_in_few_bits(settings.run) else TYPE_BYTES[settings.dtype]


def _summed_rows(settings: LanguageModel, kind: LayerKind) -> int:
    """Return how often at least devices along ``tp`` sum a layer's rows, in both passes."""
    if kind.mixer != "attention":
        return 0
    if not kind.feeds_forward or settings.style.before_mlp != "yes":
        return 2
    # What attention made goes into the norm behind it, where that is computed again.
    again = getattr(settings.run, "remat", "") == "full"
    return (2 if kind.is_routed else 4) + again


def _is_in_few_bits(run: object) -> bool:
    kinds = (
        *("product_dtype", "expert_product_dtype"),
        *("weight_dtype", "attention_dtype", "expert_dtype"),
    )
    return any(getattr(run, kind, "") in SCALED for kind in kinds)
