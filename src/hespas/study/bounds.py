"""Lower bounds of a candidate's memory and time.

Bounds follow from sizes alone. No prediction is below its bounds, which tests check for each kind
of step. A study prunes what can't fit, and what takes longer than the best predicted candidates.
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
    local_weights,
)
from hespas.models.quantization import SCALED
from hespas.models.runs import Decode, Training
from hespas.prediction.cutting import Cut, least_memory
from hespas.sources.source import ModelSource
from hespas.study.expected import crossed_by, dimensions_of

_MOMENTS = 2
_SWITCHED = frozenset({Shape.SWITCH, Shape.FAT_TREE})
_GATHERED_AGAIN = frozenset({"full", "minimal_with_context"})
"""Policies that gather a layer's weights again for its backward pass."""


@frozen
class Bounds:
    """The least memory and time of a step.

    ``computing_s`` is the time of its products. Fields are 0 where they are not known.
    """

    memory_bytes: int = 0
    time_s: float = 0.0
    computing_s: float = 0.0


NO_BOUNDS = Bounds()


def bounds_of(source: ModelSource, device: Device | None, system: System | None) -> Bounds:
    """Return the bounds of a zoo model on a system.

    Products run at the device's highest rate, states pass through its memory twice, messages
    occupy its links, and layers wait for their rows: whichever takes longest alone. Models without
    sizes have no bounds.

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
    flops = _needed_flops(settings, model_flops(settings) or 0.0)
    devices = 1 if system is None else system.device_count
    computing_s = flops / devices / _rate(device, settings)
    if not trains:
        return Bounds(memory_bytes=memory_bytes, time_s=computing_s, computing_s=computing_s)
    moved_s = 2 * _state_bytes(settings) / device.memory_bandwidth_bytes_per_s
    network = _Network(mesh=settings.mesh, system=system)
    sending_s = network.busy_s((*_weights_sent(settings), *_rows_sent(settings)))
    waiting_s = _waited_s(settings, computing_s) + network.in_turn_s(_rows_sent(settings))
    time_s = max(computing_s, moved_s, sending_s, waiting_s)
    return Bounds(memory_bytes=memory_bytes, time_s=time_s, computing_s=computing_s)


def pipeline_bounds(cut: Cut, device: Device | None) -> Bounds:
    """Return the bounds of a pipeline.

    They follow from the stages' memory, FLOPs, messages and bubble. Some stage has at least the
    mean number of layers, whose rows cross its links. With one chunk a stage and whole backward
    passes, the last stage computes all micro-batches and the head between the first one's arrival
    and the last one's return.
    """
    settings = cut.settings
    memory_bytes = max(stage.peak_bytes for stage in least_memory(cut))
    if device is None or not isinstance(settings, LanguageModel):
        return Bounds(memory_bytes=memory_bytes)
    rate = _rate(device, settings) * cut.mesh.device_count
    needed = _needed_flops(settings, cut.work.model_flops or 0.0)
    schedule = cut.schedule
    are_equal = len(set(settings.kinds)) == 1
    network = _Network(mesh=cut.mesh, system=cut.system)
    sending_s = network.busy_s(_rows_sent(settings)) / cut.stages
    flops = needed
    if schedule.chunks == 1 and not schedule.splits_backward and are_equal:
        flops = max(needed, _to_last_and_back(cut, settings, needed))
    computing_s = flops / rate
    time_s = max(computing_s, sending_s)
    return Bounds(memory_bytes=memory_bytes, time_s=time_s, computing_s=computing_s)


def _to_last_and_back(cut: Cut, settings: LanguageModel, needed: float) -> float:
    """Return the possible FLOPs until the last stage ends."""
    tokens = settings.batch * settings.parts * settings.sizes["sequence"]
    passes = 4 if settings.lora_modules else 6
    head = passes * tokens * settings.sizes["vocabulary"] * settings.sizes["embedding"]
    layers = [part.layers for part in cut.parts]
    share = sum(layers[:-1]) / cut.schedule.micro_batches + layers[-1]
    return cut.stages * ((needed - head) * share / sum(layers) + head)


def _rate(device: Device, settings: object) -> float:
    """Return a model's fastest product rate; f32 allows tf32."""
    dtype = getattr(settings, "dtype", "")
    if _is_in_few_bits(getattr(settings, "run", None)) or dtype not in TYPE_BYTES:
        return at_fastest(device).peak_flops
    return max(device.rate(dtype), device.rate("tf32") if dtype == "f32" else 0.0)


def _needed_flops(settings: object, flops: float) -> float:
    """Return the FLOPs of every program, masked attention halved."""
    if not isinstance(settings, LanguageModel) or isinstance(settings.run, Decode):
        return flops
    sequences = settings.batch * settings.parts
    needed = flops - sequences * mixing_flops(settings) / 2
    # What goes into the first layer has no gradient where its weights are frozen.
    return needed * (1 - 1 / settings.layers) if settings.lora_modules else needed


def _decoder_bytes(settings: LanguageModel) -> int:
    """Return the bytes of states and the least transient arrays.

    Transient are gradients, and activations at the last layer's gradient. Gradients are of the
    compute type until they are summed or used; accumulated sums, of the states' type, always exist.
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
    """Return the time of products that no message overlaps.

    These are the products forward and of rows' gradients, where each waits for the one before;
    gradients of weights may wait.
    """
    routing = settings.routing
    has_parallel = routing is not None and (routing.shared_width or routing.style.beside_dense)
    is_chain = settings.style.before_mlp == "yes" and not has_parallel
    return computing_s * 2 / 3 if is_chain else 0.0


@frozen
class _Messages:
    """A device's received bytes by messages of one kind.

    Neighbouring devices need the same bytes where these are ``is_shared``.
    """

    axes: tuple[str, ...]
    size_bytes: float
    is_shared: bool


@frozen
class _Network:
    """A mesh on a system, with bounds of message times.

    Only switches have bounds: a device there has no more than its own link.
    """

    mesh: MeshAxes
    system: System | None

    def busy_s(self, messages: Iterable[_Messages]) -> float:
        """Return the time that messages occupy the busiest links.

        Messages of one dimension run in sequence; those of two dimensions may run concurrently.
        """
        busy_s: defaultdict[int, float] = defaultdict(float)
        for sent in messages:
            for dimension, time_s in self._crossing_s(sent):
                busy_s[dimension] += time_s
        return max(busy_s.values(), default=0.0)

    def in_turn_s(self, messages: Iterable[_Messages]) -> float:
        """Return the time of messages in sequence."""
        return sum(time_s for sent in messages for _, time_s in self._crossing_s(sent))

    def _crossing_s(self, sent: _Messages) -> Iterator[tuple[int, float]]:
        """Yield the farthest dimension that messages cross, and their time."""
        if any(dimension.shape not in _SWITCHED for dimension in dimensions_of(self.system)):
            return
        devices, crossed = crossed_by(self.mesh, self.system, sent.axes)
        if not crossed:
            return
        # Messages of all but the ``nearer`` devices come through the farthest dimension.
        farthest = crossed[-1]
        outside_bytes = sent.size_bytes * (devices - farthest.nearer) / devices
        links = farthest.nearer if sent.is_shared else 1
        yield farthest.number, outside_bytes / links / farthest.bandwidth_bytes_per_s


def _weights_sent(settings: LanguageModel) -> Iterator[_Messages]:
    """Yield the messages of layers' weights and gradients.

    Weights are gathered for the forward pass and perhaps again for the backward pass. A sum counts
    the bytes of its operand: all where switches reduce, and half of what rings send.
    """
    run, axes = settings.run, settings.axes
    if not isinstance(run, Training):
        return
    element_bytes, gathering = _element_bytes(settings), axes["embedding"]
    shard = local_weights(settings, axes, outer=False)
    total = local_weights(settings, {**axes, **settings.sharded(())}, outer=False)
    is_again = run.scan and run.remat in _GATHERED_AGAIN
    times = 3 * settings.accumulation if is_again else 1
    count = settings.mesh.size(*gathering)
    if count > 1:
        received = (total - shard) * count / (count - 1)
        yield _Messages(axes=gathering, size_bytes=times * received * element_bytes, is_shared=True)
    if "data" in axes["batch"] and "data" not in gathering:
        yield _Messages(axes=("data",), size_bytes=shard * element_bytes, is_shared=True)


def _rows_sent(settings: LanguageModel) -> Iterator[_Messages]:
    """Yield the messages of rows in both passes.

    Devices sum rows along ``tp``, and send them to experts and back.
    """
    run, axes, sizes, routing = settings.run, settings.axes, settings.sizes, settings.routing
    if not isinstance(run, Training):
        return
    element_bytes = settings.accumulation * _element_bytes(settings)
    rows = local_elements(settings, ("batch", "sequence", "row"), sizes, axes)
    crossings = sum(_summed_rows(settings, kind) for kind in settings.kinds)
    yield _Messages(axes=("tp",), size_bytes=rows * crossings * element_bytes, is_shared=True)
    if routing is None or routing.axes != ("expert",) or routing.expert_groups > 1:
        return
    width = sizes["expert_row"]
    rows = local_elements(settings, ("batch", "sequence", "expert_row"), sizes, axes) / width
    # The capacity of an expert is a whole number: up to a half is rounded off.
    chosen = rows * routing.chosen * routing.capacity_percent / 100 - routing.experts / 2
    if routing.exchange_dtype != "same":
        element_bytes = settings.accumulation
    # Outputs of experts are recomputed where their weights have gradients of their own.
    again = (1 if routing.style.scales_inputs else 2) if run.remat == "full" else 0
    crossings = (4 + again) * sum(kind.is_routed for kind in settings.kinds)
    sent_bytes = crossings * max(chosen, 0) * width * element_bytes
    yield _Messages(axes=("expert",), size_bytes=sent_bytes, is_shared=False)


def _element_bytes(settings: LanguageModel) -> int:
    return 1 if _is_in_few_bits(settings.run) else TYPE_BYTES[settings.dtype]


def _summed_rows(settings: LanguageModel, kind: LayerKind) -> int:
    """Return the fewest sums along ``tp`` of a layer."""
    if kind.mixer != "attention":
        return 0
    if not kind.feeds_forward or settings.style.before_mlp != "yes":
        return 2
    # Recomputing the norm after attention needs the summed output of attention.
    again = getattr(settings.run, "remat", "") == "full"
    return (2 if kind.is_routed else 4) + again


def _is_in_few_bits(run: object) -> bool:
    kinds = (
        *("product_dtype", "expert_product_dtype"),
        *("weight_dtype", "attention_dtype", "expert_dtype"),
    )
    return any(getattr(run, kind, "") in SCALED for kind in kinds)
