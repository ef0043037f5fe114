"""What each layer of a decoder keeps for the backward pass at least, from its sizes alone.

Importing this does not import JAX.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from hespas.models.language import LanguageModel, Training
from hespas.models.model import TYPE_BYTES

_KEEPS_PRODUCTS = "minimal_with_context"
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
_WIDTH = ("batch", "sequence", "mlp")
_SHARED_WIDTH = ("batch", "sequence", "shared_mlp")

Arrays = tuple[tuple[str, ...], ...]


def least_kept_bytes(model: LanguageModel) -> int:
    """Return the bytes of one device that a layer holds at least of a micro-batch.

    It is what goes into the layer, and what ``remat`` keeps beside: query, key, value, and the
    products before the activation. Of experts only the shared ones are counted, and of a layer that
    keeps everything nothing more than its input.

    >>> from hespas.models.catalogue import model_named
    >>> settings = model_named("llama3-8b").settings
    >>> least_kept_bytes(settings) == 4096 * (4096 + 6144 + 2 * 14336) * 2
    True
    """
    axes = model.axes
    elements = sum(local_elements(model, names, axes) for names in _arrays(model))
    return elements * TYPE_BYTES[model.dtype]


def _arrays(model: LanguageModel) -> Arrays:
    into, run = ("batch", "norm_sequence", "row"), model.run
    if not isinstance(run, Training) or run.remat != _KEEPS_PRODUCTS:
        return (into,)
    arrays: Arrays = (into, *(_PROJECTIONS if model.latent is None else _LATENT))
    if model.routing is not None and not model.routing.shared_experts:
        return arrays
    width = _WIDTH if model.routing is None else _SHARED_WIDTH
    return (*arrays, width, width) if model.style.gated else (*arrays, width)


def local_elements(
    model: LanguageModel, names: tuple[str, ...], axes: Mapping[str, tuple[str, ...]]
) -> int:
    """Return how many elements of an array with these dimensions one device has.

    ``axes`` of the mesh divide dimensions, each one only of an array, the first that it can.
    """
    divided: set[str] = set()
    parts = 1
    for name in names:
        for axis in axes.get(name, ()):
            if axis not in divided:
                divided.add(axis)
                parts *= model.mesh.size(axis)
    sizes = model.sizes
    return -(-prod(sizes.get(name, 1) for name in names) // parts)
