"""Divide arrays of named dimensions over a mesh, and count what a device holds of a part's.

It needs no JAX, so that what can't fit is refused before JAX is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import TypeVar

from hespas.base.frozen import frozen
from hespas.errors import refuse
from hespas.models.language import LanguageModel
from hespas.models.model import EXPERT, REDUCED, SHARED, TYPE_BYTES, MeshAxes, Part, PartProgram
from hespas.models.weights import Shapes, is_adapter, layer_weights, outer_weights


@frozen
class Division:
    """Sizes of named dimensions, and the axes that divide them.

    ``axes`` lists, for a dimension, the mesh axes that divide it, major first; those that the
    mesh lacks are left out, and a dimension that is not listed is not divided.
    """

    mesh: MeshAxes
    sizes: Mapping[str, int]
    axes: Mapping[str, tuple[str, ...]]

    def present(self, name: str | None) -> tuple[str, ...]:
        """Return the axes of the mesh that a dimension names."""
        return self.mesh.present(self.axes.get(name or "", ()))

    def axes_of(self, *dimensions: str | None) -> tuple[tuple[str, ...], ...]:
        """Return the axes that divide each dimension.

        An axis divides the first of the dimensions that name it.
        """
        parts: list[tuple[str, ...]] = []
        for name in dimensions:
            used = {axis for part in parts for axis in part}
            parts.append(tuple(axis for axis in self.present(name) if axis not in used))
        return tuple(parts)

    def held_elements(self, *dimensions: str) -> int:
        """Return how many elements of an array one device holds."""
        return prod(
            self.sizes[name] // self.mesh.size(*axes)
            for name, axes in zip(dimensions, self.axes_of(*dimensions), strict=True)
        )


_Division = TypeVar("_Division", bound=Division)


def divided_part(division: _Division, part: Part) -> _Division:
    """Return how a part's arrays are divided.

    ``division`` is that of the model without the pipeline. A pass holds whole weights and a
    micro-batch of one data-parallel part; the optimiser's states are divided over the axes
    `hespas.models.model.SHARED`, those of weights that all devices of experts hold over these, too.
    """
    parts = division.mesh.size(*REDUCED)
    sizes = {
        **division.sizes,
        "batch": division.sizes["batch"] // parts,
        "layers": part.layers,
    }
    axes = {
        name: tuple(axis for axis in dividing if axis not in REDUCED)
        for name, dividing in division.axes.items()
    }
    if part.program is PartProgram.UPDATE:
        over = (*SHARED, *axes.get("embedding", ()))
        for name in ("embedding", "query_rank", "kv_rank"):
            shares = (over, (*over, EXPERT))
            even = [axes for axes in shares if sizes.get(name, 1) % part.mesh.size(*axes) == 0]
            axes[name] = even[-1] if even else ()
    return replace(division, mesh=part.mesh, sizes=sizes, axes=axes)


def model_of_part(settings: LanguageModel, part: Part) -> LanguageModel:
    """Return the model of a part's layers alone.

    Raises `ConfigError` for what does not fit, and for models that no pipeline has.
    """
    settings.check()
    settings = settings.as_run
    zero = settings.training.zero
    refuse(
        zero,
        f"zero = {zero} has no effect in a pipeline, whose optimiser states the axes "
        f"{' and '.join(SHARED)} divide",
        "drop zero, and give fsdp in the place of data",
    )
    refuse(
        settings.mtp_kinds,
        "layers that predict further tokens are not cut into a pipeline",
        "drop mtp_layers, or pipe",
    )
    refuse(
        settings.style.layer_input or any(kind.keys != "own" for kind in settings.kinds),
        "layers that have inputs or keys of other layers are not cut into a pipeline",
        "drop pipe",
    )
    return settings.with_layers(part.layers, first=part.first)


def outside_part(model: LanguageModel, *, is_first: bool, is_last: bool) -> set[str]:
    """Return the weights around layers that a part of the model does not have."""
    before = {"embedding", "positions", "embedding_norm", "embedding_norm_bias"}
    head = "embedding" if model.style.tied else "head"
    behind = {"norm", "norm_bias", head, "head_bias"}
    needed = (before if is_first else set[str]()) | (behind if is_last else set[str]())
    return (before | behind) - needed


def trained_elements(settings: LanguageModel, part: Part, *, along: str | None = None) -> int:
    """Return how many numbers of a part's trained weights one device holds.

    With ``along`` only those of arrays that this axis of the mesh divides count. Raises
    `ConfigError` as `model_of_part` does.
    """
    model = model_of_part(settings, part)
    whole = Division(mesh=model.run.mesh, sizes=model.sizes, axes=model.axes)
    division = divided_part(whole, part)
    absent = outside_part(model, is_first=part.is_first, is_last=part.is_last)
    outer = {name: shape for name, shape in outer_weights(model).items() if name not in absent}

    def elements(shapes: Shapes, division: Division) -> int:
        return sum(
            division.held_elements(*shape)
            for name, shape in shapes.items()
            if (is_adapter(name) or not model.lora_modules)
            and (along is None or any(along in axes for axes in division.axes_of(*shape)))
        )

    def in_layer(sizes: Mapping[str, int], shapes: Shapes) -> int:
        return elements(shapes, replace(division, sizes={**division.sizes, **sizes}))

    of_kinds = {
        kind: in_layer(model.sizes_of(kind), layer_weights(model, kind)) for kind in {*model.kinds}
    }
    return elements(outer, division) + sum(of_kinds[kind] for kind in model.kinds)


def trained_bytes(settings: LanguageModel, part: Part, *, along: str | None = None) -> int:
    """Return a device's bytes of a part's trained weights, or of its summed gradients.

    These are what its passes hold of them, or its optimiser's step. Raises as `trained_elements`.
    """
    is_update = part.program is PartProgram.UPDATE
    dtype = settings.gradient_dtype if is_update else settings.run.dtype
    return trained_elements(settings, part, along=along) * TYPE_BYTES[dtype]
