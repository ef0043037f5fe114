"""Count a decoder's weights: parameters, bytes, one device's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import prod

from hespas.models.architecture import LayerKind
from hespas.models.language import LanguageModel
from hespas.models.model import TYPE_BYTES
from hespas.models.quantization import PARTS, ModelPart, Precision
from hespas.models.weights import (
    elements_of,
    is_adapter,
    is_product,
    layer_weights,
    mtp_weights,
    outer_weights,
    part_of,
)

Dimensions = tuple[str, ...]
Arrays = tuple[Dimensions, ...]
_ELEMENTWISE = "elementwise"
_KEEPS_PRODUCTS = frozenset({"minimal_with_context", _ELEMENTWISE})
"""What the backward pass computes again, so that what products make is kept."""
_PROJECTIONS = (
    ("batch", "sequence", "heads", "head_size"),
    ("batch", "sequence", "kv_heads", "head_size"),
    ("batch", "sequence", "kv_heads", "head_size"),
)
_LATENT = (
    ("batch", "sequence", "heads", "query_size"),
    ("batch", "sequence", "heads", "query_size"),
    ("batch", "sequence", "heads", "value_size"),
)


def parameters(model: LanguageModel) -> int:
    """Return how many weights a model has.

    >>> from hespas.models.catalogue import model_named
    >>> parameters(model_named("llama3-8b-decode").settings)
    8030261248
    """
    return _outer_parameters(model) + _in_layers(model, lambda _: True)


def _outer_parameters(model: LanguageModel) -> int:
    return sum(elements_of(model.sizes, shape) for shape in outer_weights(model).values())


def _layer_elements(model: LanguageModel) -> Iterator[tuple[str, int]]:
    """Yield the name and the elements of each weight, summed over equal layers."""
    layers = Counter((kind, layer_weights) for kind in model.kinds)
    layers.update((kind, mtp_weights) for kind in model.mtp_kinds)
    for (kind, weights), count in layers.items():
        sizes = {**model.sizes, **model.sizes_of(kind)}
        for name, shape in weights(model, kind).items():
            yield name, count * elements_of(sizes, shape)


def active_parameters(model: LanguageModel) -> int:
    """Return how many weights one token meets, chosen experts included."""
    routing = model.routing
    experts = _in_layers(model, lambda name: name.startswith("experts_") and not is_adapter(name))
    resting = 0 if routing is None else experts - experts * routing.chosen // routing.experts
    return parameters(model) - resting


def trained_parameters(model: LanguageModel) -> int:
    """Return how many weights training changes: adapters', or all.

    >>> from hespas.models.catalogue import model_named
    >>> llama = model_named("llama3-8b").with_options({"lora_rank": "16"})
    >>> per_layer = 4096 + 4096 + 2 * (4096 + 1024) + 4096 + 4096 + 3 * (4096 + 14336)
    >>> trained_parameters(llama) == 32 * 16 * per_layer
    True
    """
    return _in_layers(model, is_adapter) if model.lora_modules else parameters(model)


def _in_layers(model: LanguageModel, counts: Callable[[str], bool]) -> int:
    """Return how many weights of layers have accepted names."""
    return sum(elements for name, elements in _layer_elements(model) if counts(name))


def layer_products(
    model: LanguageModel, kind: LayerKind, *, of_adapters_alone: bool = False
) -> int:
    """Return how many weights a token meets in a layer."""
    sizes, routing = {**model.sizes, **model.sizes_of(kind)}, model.routing
    total = 0
    for name, shape in layer_weights(model, kind).items():
        if of_adapters_alone and not is_adapter(name):
            continue
        elements = elements_of(sizes, shape)
        if name.startswith("experts_") and routing is not None:
            # Each chosen expert meets the adapter that all experts share.
            among = 1 if is_adapter(name) else routing.experts
            elements = elements * routing.chosen // among
        total += elements if len(shape) > 1 and is_product(name) else 0
    return total


def parameters_by_part(model: LanguageModel) -> dict[ModelPart, int]:
    """Return how many weights each part of a model has."""
    counts: dict[ModelPart, int] = dict.fromkeys(PARTS, 0)
    counts["other"] = _outer_parameters(model)
    for name, elements in _layer_elements(model):
        counts[part_of(name)] += elements
    return counts


def weight_bytes(model: LanguageModel, precision: Precision) -> float:
    """Return the bytes of a model's weights, with their scales."""
    return sum(weight_bytes_by_part(model, precision).values())


def weight_bytes_by_part(model: LanguageModel, precision: Precision) -> dict[ModelPart, float]:
    """Return the bytes of each part's weights, with scales."""
    counts = parameters_by_part(model).items()
    return {part: count * precision.of(part).bits_of_weight / 8 for part, count in counts}


def local_weights(
    model: LanguageModel,
    axes: Mapping[str, tuple[str, ...]],
    *,
    frozen: bool = False,
    outer: bool = True,
) -> int:
    """Return one device's elements of trained or ``frozen`` weights.

    Those outside of layers are among them unless ``outer`` is false.
    """
    weights = [(outer_weights(model), model.sizes, 1)] if outer else []
    weights += [
        (layer_weights(model, kind), {**model.sizes, **model.sizes_of(kind)}, count)
        for kind, count in Counter(model.kinds).items()
    ]
    return sum(
        count * local_elements(model, shape, sizes, axes)
        for shapes, sizes, count in weights
        for name, shape in shapes.items()
        if (bool(model.lora_modules) and not is_adapter(name)) == frozen
    )


def least_kept_bytes(model: LanguageModel) -> int:
    """Return the least bytes that a layer keeps per micro-batch.

    It is what goes into the layer, and what ``remat`` keeps beside: query, key, value, and the
    products before the activation, or all operands of products; of a layer that keeps everything,
    or where layers differ, nothing more than its input. What experts keep is `least_routed_bytes`.

    >>> from hespas.models.catalogue import model_named
    >>> settings = model_named("llama3-8b").settings
    >>> least_kept_bytes(settings) == 4096 * (4096 + 6144 + 2 * 14336) * 2
    True
    """
    return _local_bytes(model, _arrays(model))


def least_routed_bytes(model: LanguageModel) -> int:
    """Return the least bytes that experts keep per micro-batch.

    It is what their products make of as many rows as tokens choose, if ``remat`` keeps products.

    >>> from hespas.models.catalogue import model_named
    >>> settings = model_named("Qwen/Qwen3-30B-A3B").settings
    >>> least_routed_bytes(settings) == 8 * 4096 * (2 * 768 + 2048) * 2
    True
    """
    routing = model.routing
    if routing is None or model.training.remat not in _KEEPS_PRODUCTS:
        return 0
    width, row = (("batch", "sequence", name) for name in ("expert_mlp", "expert_row"))
    arrays = (row, width, width) if model.style.gated else (row, width)
    share = min(100, routing.capacity_percent) / 100 * routing.chosen
    # Where tensor parallelism divides the experts, its devices share their rows.
    devices = model.mesh.size("tp") if "tp" in routing.axes else 1
    return int(_local_bytes(model, arrays) * share) // devices


def _local_bytes(model: LanguageModel, arrays: Arrays) -> int:
    axes, sizes = model.axes, model.sizes
    elements = sum(local_elements(model, names, sizes, axes) for names in arrays)
    return elements * TYPE_BYTES[model.dtype]


def _arrays(model: LanguageModel) -> Arrays:
    into, run = ("batch", "norm_sequence", "row"), model.training
    is_plain = all(kind.mixer == "attention" and kind.feeds_forward for kind in model.kinds)
    is_even = not any(kind.head_size or kind.kv_heads or kind.mlp for kind in model.kinds)
    if run.remat not in _KEEPS_PRODUCTS or not (is_plain and is_even):
        return (into,)
    arrays: Arrays = (into, *(_PROJECTIONS if model.latent is None else _LATENT))
    keeps_operands = run.remat == _ELEMENTWISE
    if keeps_operands and model.style.before_mlp == "yes":
        # What both norms make goes into products.
        arrays = (*arrays, into, into)
    if model.routing is not None and not model.routing.shared_width:
        return arrays
    width = ("batch", "sequence", "mlp" if model.routing is None else "shared_mlp")
    widths = 1 + model.style.gated + keeps_operands
    return (*arrays, *(width for _ in range(widths)))


def local_elements(
    model: LanguageModel,
    names: tuple[str, ...],
    sizes: Mapping[str, int],
    axes: Mapping[str, tuple[str, ...]],
) -> int:
    """Return how many elements of an array one device has.

    ``axes`` of the mesh divide dimensions, each one only of an array, the first that it can.
    """
    divided: set[str] = set()
    parts = 1
    for name in names:
        for axis in axes.get(name, ()):
            if axis not in divided:
                divided.add(axis)
                parts *= model.mesh.size(axis)
    return -(-prod(sizes.get(name, 1) for name in names) // parts)
