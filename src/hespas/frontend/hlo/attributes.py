"""What HLO instructions carry beyond their types, one reader for each family of operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from hespas.errors import ProgramError
from hespas.frontend.hlo import mlir
from hespas.program.attrs import (
    NO_ATTRS,
    Attrs,
    CompareAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    FftAttrs,
    GatherAttrs,
    SliceAttrs,
    WindowAttrs,
)
from hespas.xla.hlo.schema import enum_names

Reading = tuple[Attrs, mlir.Attributes]
Reader = Callable[[Any], Reading]
"""From an ``xla.HloInstructionProto`` to attributes."""


def dimensions(name: str) -> Reader:
    """Return a reader of a list of dimensions, which StableHLO calls ``name``."""

    @lru_cache(maxsize=1024)
    def reading(numbers: tuple[int, ...]) -> Reading:
        return DimensionsAttrs(dimensions=numbers), ((name, mlir.array(numbers)),)

    def read(instruction: Any) -> Reading:
        return reading(tuple(instruction.dimensions))

    return read


def dimension(name: str) -> Reader:
    """Return a reader of a single dimension."""

    def read(instruction: Any) -> Reading:
        if len(instruction.dimensions) != 1:
            raise ProgramError(f"{instruction.opcode} has {len(instruction.dimensions)} dimensions")
        number = instruction.dimensions[0]
        return DimensionAttrs(dimension=number), ((name, mlir.integer(number)),)

    return read


def numbers(*fields: str) -> Reader:
    """Return a reader of integers that no stage needs, but that tell operations apart."""

    def read(instruction: Any) -> Reading:
        found = {field: mlir.integer(getattr(instruction, field)) for field in fields}
        return NO_ATTRS, mlir.listed(found)

    return read


def cut(instruction: Any) -> Reading:
    """Read the bounds of a slice."""
    sides = instruction.slice_dimensions
    attrs = SliceAttrs(
        start=tuple([side.start for side in sides]),
        limit=tuple([side.limit for side in sides]),
        strides=tuple([side.stride or 1 for side in sides]),
    )
    return attrs, (
        ("limit_indices", mlir.array(attrs.limit)),
        ("start_indices", mlir.array(attrs.start)),
        ("strides", mlir.array(attrs.strides)),
    )


def dynamic_slice(instruction: Any) -> Reading:
    """Read the size of a slice at a computed place."""
    sizes = tuple(instruction.dynamic_slice_sizes)
    return GatherAttrs(slice_sizes=sizes), (("slice_sizes", mlir.array(sizes)),)


def gather(instruction: Any) -> Reading:
    """Read the size and the dimensions of gathered slices."""
    sizes = tuple(instruction.gather_slice_sizes)
    numbered = instruction.gather_dimension_numbers
    found = {
        "dimension_numbers": _numbered(
            "gather",
            offset_dims=numbered.offset_dims,
            collapsed_slice_dims=numbered.collapsed_slice_dims,
            operand_batching_dims=numbered.operand_batching_dims,
            start_indices_batching_dims=numbered.start_indices_batching_dims,
            start_index_map=numbered.start_index_map,
            index_vector_dim=numbered.index_vector_dim,
        ),
        "indices_are_sorted": str(instruction.indices_are_sorted).lower(),
        "slice_sizes": mlir.array(sizes),
    }
    return GatherAttrs(slice_sizes=sizes), mlir.listed(found)


def scatter(instruction: Any) -> Reading:
    """Read where scattered updates go."""
    numbered = instruction.scatter_dimension_numbers
    found = {
        "indices_are_sorted": str(instruction.indices_are_sorted).lower(),
        "scatter_dimension_numbers": _numbered(
            "scatter",
            update_window_dims=numbered.update_window_dims,
            inserted_window_dims=numbered.inserted_window_dims,
            input_batching_dims=numbered.input_batching_dims,
            scatter_indices_batching_dims=numbered.scatter_indices_batching_dims,
            scatter_dims_to_operand_dims=numbered.scatter_dims_to_operand_dims,
            index_vector_dim=numbered.index_vector_dim,
        ),
        "unique_indices": str(instruction.unique_indices).lower(),
    }
    return NO_ATTRS, mlir.listed(found)


def _numbered(name: str, *, index_vector_dim: int, **lists: Any) -> str:
    parts = [f"{key} = {list(value)}" for key, value in lists.items() if value]
    return f"#stablehlo.{name}<{', '.join([*parts, f'index_vector_dim = {index_vector_dim}'])}>"


def window(instruction: Any) -> Reading:
    """Read the window of a reduction, one entry for each dimension."""
    sides = instruction.window.dimensions
    attrs = WindowAttrs(
        size=tuple([side.size for side in sides]),
        strides=tuple([side.stride or 1 for side in sides]),
        base_dilation=tuple([side.base_dilation or 1 for side in sides]),
        window_dilation=tuple([side.window_dilation or 1 for side in sides]),
        padding=tuple([(side.padding_low, side.padding_high) for side in sides]),
    )
    found = {
        "base_dilations": mlir.array(attrs.base_dilation),
        "padding": mlir.rows(attrs.padding),
        "window_dilations": mlir.array(attrs.window_dilation),
        "window_dimensions": mlir.array(attrs.size),
        "window_strides": mlir.array(attrs.strides),
    }
    return attrs, mlir.listed(found)


def pad(instruction: Any) -> Reading:
    """Read how far each dimension is padded."""
    sides = instruction.padding_config.dimensions
    return NO_ATTRS, (
        ("edge_padding_high", mlir.array(tuple([side.edge_padding_high for side in sides]))),
        ("edge_padding_low", mlir.array(tuple([side.edge_padding_low for side in sides]))),
        ("interior_padding", mlir.array(tuple([side.interior_padding for side in sides]))),
    )


def compare(instruction: Any) -> Reading:
    """Read the direction of a comparison."""
    direction, kind = instruction.comparison_direction, instruction.comparison_type
    texts = [("comparison_direction", mlir.stablehlo("comparison_direction", direction))]
    if kind:
        texts.insert(0, ("compare_type", mlir.stablehlo("comparison_type", kind)))
    return CompareAttrs(direction=direction), tuple(texts)


def sort(instruction: Any) -> Reading:
    """Read the sorted dimension."""
    attrs, texts = dimension("dimension")(instruction)
    return attrs, (*texts, ("is_stable", str(instruction.is_stable).lower()))


def fft(instruction: Any) -> Reading:
    """Read the kind and the lengths of a Fourier transform."""
    kind = enum_names("xla.FftType")[instruction.fft_type]
    lengths = tuple(instruction.fft_length)
    texts = (("fft_length", mlir.array(lengths)), ("fft_type", mlir.stablehlo("fft_type", kind)))
    return FftAttrs(kind=kind, lengths=lengths), texts


def rng(instruction: Any) -> Reading:
    """Read the distribution of random numbers."""
    name = enum_names("xla.RandomDistribution")[instruction.distribution].removeprefix("RNG_")
    return NO_ATTRS, (("rng_distribution", mlir.stablehlo("rng_distribution", name)),)


def rng_bit_generator(instruction: Any) -> Reading:
    """Read the algorithm of a random number generator."""
    name = enum_names("xla.RandomAlgorithm")[instruction.rng_algorithm].removeprefix("RNG_")
    return NO_ATTRS, (("rng_algorithm", mlir.stablehlo("rng_algorithm", name)),)


def triangular_solve(instruction: Any) -> Reading:
    """Read which triangle is solved, and on which side it stands."""
    options = instruction.triangular_solve_options
    kinds = enum_names("xla.TriangularSolveOptions.Transpose")
    return NO_ATTRS, (
        ("left_side", str(options.left_side).lower()),
        ("lower", str(options.lower).lower()),
        ("transpose_a", mlir.stablehlo("transpose", kinds[options.transpose_a])),
        ("unit_diagonal", str(options.unit_diagonal).lower()),
    )


def cholesky(instruction: Any) -> Reading:
    """Read which triangle is factorised."""
    return NO_ATTRS, (("lower", str(instruction.cholesky_options.lower).lower()),)
