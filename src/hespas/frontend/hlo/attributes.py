"""What HLO instructions carry beyond their types, one reader for each family of operations."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from math import isfinite, prod
from sys import byteorder
from typing import Any

from msgspec.structs import replace

from hespas.errors import ProgramError, UnsupportedError
from hespas.frontend.hlo import mlir
from hespas.frontend.tables import is_table
from hespas.program.attrs import (
    NO_ATTRS,
    Attrs,
    CompareAttrs,
    ConstantAttrs,
    ConvolutionAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    FftAttrs,
    GatherAttrs,
    SliceAttrs,
    WindowAttrs,
    dot_algorithm_text,
)
from hespas.program.types import TensorType, Type, plain_text
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
    """Return a reader of integers that no stage needs, but that distinguish operations."""

    def read(instruction: Any) -> Reading:
        texts = {field: mlir.integer(getattr(instruction, field)) for field in fields}
        return NO_ATTRS, mlir.listed(texts)

    return read


def slice_bounds(instruction: Any) -> Reading:
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
    """Read the size of a slice at a computed offset."""
    sizes = tuple(instruction.dynamic_slice_sizes)
    return GatherAttrs(slice_sizes=sizes), (("slice_sizes", mlir.array(sizes)),)


def gather(instruction: Any) -> Reading:
    """Read the size and the dimensions of gathered slices."""
    sizes = tuple(instruction.gather_slice_sizes)
    numbered = instruction.gather_dimension_numbers
    texts = {
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
    return GatherAttrs(slice_sizes=sizes), mlir.listed(texts)


def scatter(instruction: Any) -> Reading:
    """Read where scattered updates go."""
    numbered = instruction.scatter_dimension_numbers
    texts = {
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
    return NO_ATTRS, mlir.listed(texts)


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
    texts = {
        "base_dilations": mlir.array(attrs.base_dilation),
        "padding": mlir.rows(attrs.padding),
        "window_dilations": mlir.array(attrs.window_dilation),
        "window_dimensions": mlir.array(attrs.size),
        "window_strides": mlir.array(attrs.strides),
    }
    return attrs, mlir.listed(texts)


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
    """Read which triangle is solved, and on which side."""
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


_FORWARD = ("CONVOLUTION_KIND_UNSET", "CONVOLUTION_KIND_FPROP")


def precisions(config: Any) -> tuple[str, ...]:
    """Return a precision for each operand; empty where all are the default."""
    names = enum_names("xla.PrecisionConfig.Precision")
    precision = tuple([names[number] for number in config.operand_precision])
    return precision if set(precision) - {"DEFAULT"} else ()


def precision_text(precision: tuple[str, ...]) -> str:
    """Print a precision for each operand."""
    return f"[{', '.join([mlir.stablehlo('precision', name) for name in precision])}]"


def dot(instruction: Any) -> tuple[Attrs, mlir.Attributes]:
    """Read which dimensions a dot contracts."""
    return dot_of(instruction.dot_dimension_numbers, instruction.precision_config)


def ragged_dot(instruction: Any) -> tuple[Attrs, mlir.Attributes]:
    """Read a dot whose groups of rows are multiplied by different matrices."""
    numbered = instruction.ragged_dot_dimension_numbers
    attrs, texts = dot_of(numbered.dot_dimension_numbers, instruction.precision_config)
    divided = set(numbered.lhs_ragged_dimensions) <= set(attrs.lhs_contracting)
    ragged = {
        "lhs_ragged_dimensions": mlir.array(tuple(numbered.lhs_ragged_dimensions)),
        "rhs_group_dimensions": mlir.array(tuple(numbered.rhs_group_dimensions)),
    }
    (dimension,) = numbered.lhs_ragged_dimensions
    return replace(attrs, is_divided=divided, ragged=dimension), mlir.listed(dict(texts) | ragged)


def dot_of(numbered: Any, precision: Any) -> tuple[DotAttrs, mlir.Attributes]:
    """Read an ``xla.DotDimensionNumbers`` and an ``xla.PrecisionConfig``."""
    algorithms = enum_names("xla.PrecisionConfig.Algorithm")
    attrs = DotAttrs(
        lhs_batching=tuple(numbered.lhs_batch_dimensions),
        rhs_batching=tuple(numbered.rhs_batch_dimensions),
        lhs_contracting=tuple(numbered.lhs_contracting_dimensions),
        rhs_contracting=tuple(numbered.rhs_contracting_dimensions),
        precision=precisions(precision),
        algorithm=dot_algorithm_text(algorithms[precision.algorithm]),
    )
    named = {
        "lhs_batching_dimensions": attrs.lhs_batching,
        "rhs_batching_dimensions": attrs.rhs_batching,
        "lhs_contracting_dimensions": attrs.lhs_contracting,
        "rhs_contracting_dimensions": attrs.rhs_contracting,
    }
    parts = ", ".join(f"{name} = {list(numbers)}" for name, numbers in named.items() if numbers)
    texts = {"dot_dimension_numbers": f"#stablehlo.dot<{parts}>"}
    if attrs.precision:
        texts["precision_config"] = precision_text(attrs.precision)
    if attrs.algorithm:
        texts["algorithm"] = attrs.algorithm
    return attrs, mlir.listed(texts)


def convolution_attrs(instruction: Any) -> ConvolutionAttrs:
    """Read where a convolution's dimensions lie, and its window.

    Raises `ProgramError` where two of an operand's dimensions lie at one place.
    """
    places, sides = instruction.convolution_dimension_numbers, instruction.window.dimensions
    attrs = ConvolutionAttrs(
        input_batch=places.input_batch_dimension,
        input_feature=places.input_feature_dimension,
        input_spatial=tuple(places.input_spatial_dimensions),
        kernel_input_feature=places.kernel_input_feature_dimension,
        kernel_output_feature=places.kernel_output_feature_dimension,
        kernel_spatial=tuple(places.kernel_spatial_dimensions),
        output_batch=places.output_batch_dimension,
        output_feature=places.output_feature_dimension,
        output_spatial=tuple(places.output_spatial_dimensions),
        strides=tuple([side.stride or 1 for side in sides]),
        padding=tuple([(side.padding_low, side.padding_high) for side in sides]),
        lhs_dilation=tuple([side.base_dilation or 1 for side in sides]),
        rhs_dilation=tuple([side.window_dilation or 1 for side in sides]),
        feature_group_count=instruction.feature_group_count or 1,
        batch_group_count=instruction.batch_group_count or 1,
        precision=precisions(instruction.precision_config),
    )
    _check_places("input", (attrs.input_batch, attrs.input_feature, *attrs.input_spatial))
    _check_places(
        "kernel",
        (attrs.kernel_input_feature, attrs.kernel_output_feature, *attrs.kernel_spatial),
    )
    _check_places("output", (attrs.output_batch, attrs.output_feature, *attrs.output_spatial))
    return attrs


def _check_places(which: str, places: tuple[int, ...]) -> None:
    if sorted(places) != list(range(len(places))):
        raise ProgramError(f"dimensions of a convolution's {which} lie at {places}")


def convolution(instruction: Any) -> tuple[Attrs, mlir.Attributes]:
    """Read a convolution; `UnsupportedError` for a gradient written in its forward form."""
    kind = enum_names("xla.ConvolutionKind")[instruction.conv_kind]
    if kind not in _FORWARD:
        raise UnsupportedError(f"a convolution of the kind {kind.lower()} is not known")
    attrs = convolution_attrs(instruction)
    return attrs, mlir.listed(convolution_texts(attrs, _reversed(instruction)))


def _reversed(instruction: Any) -> tuple[bool, ...]:
    return tuple([side.window_reversal for side in instruction.window.dimensions])


def convolution_texts(attrs: ConvolutionAttrs, turned: tuple[bool, ...] = ()) -> dict[str, str]:
    """Print a convolution's attributes; ``turned`` says which window dimensions run backwards."""
    texts = {
        "batch_group_count": mlir.integer(attrs.batch_group_count),
        "dimension_numbers": _convolution_places(attrs),
        "feature_group_count": mlir.integer(attrs.feature_group_count),
        "lhs_dilation": mlir.array(attrs.lhs_dilation),
        "padding": mlir.rows(attrs.padding),
        "rhs_dilation": mlir.array(attrs.rhs_dilation),
        "window_strides": mlir.array(attrs.strides),
    }
    if any(turned):
        texts["window_reversal"] = mlir.flags(turned)
    if attrs.precision:
        texts["precision_config"] = precision_text(attrs.precision)
    return texts


def _convolution_places(attrs: ConvolutionAttrs) -> str:
    input_ = _letters(attrs.input_spatial, b=attrs.input_batch, f=attrs.input_feature)
    kernel = _letters(
        attrs.kernel_spatial, i=attrs.kernel_input_feature, o=attrs.kernel_output_feature
    )
    output = _letters(attrs.output_spatial, b=attrs.output_batch, f=attrs.output_feature)
    return f"#stablehlo.conv<[{input_}]x[{kernel}]->[{output}]>"


def _letters(spatial: tuple[int, ...], **named: int) -> str:
    places = {location: str(at) for at, location in enumerate(spatial)}
    places |= {location: letter for letter, location in named.items()}
    return ", ".join(places[at] for at in sorted(places))


_LISTS = ("preds", "s32s", "s64s", "u32s", "u64s", "f32s", "f64s")
# Numbers of one or two bytes, least significant byte first.
_PACKED = {"f16s": "e", "s16s": "h", "u16s": "H", "s8s": "b", "u8s": "B"}
# How infinities and NaNs are packed; bf16 is the upper half of an f32.
_BITS = {"f64": (">d", 8), "f32": (">f", 4), "f16": (">e", 2), "bf16": (">f", 2)}
_MOST_PRINTED = 64

Number = int | float | bool


def read_constant(literal: Any, kind: Type) -> tuple[Attrs, mlir.Attributes]:
    """Read a literal; its value is None unless it is one number, alone or everywhere.

    Literals of more than 64 elements, and those of types that Python has no numbers for, print
    as the SHA-256 of their bytes; tables of integers print as their bytes.
    """
    numbers = _numbers(literal, kind)
    single = len(set(map(repr, numbers))) == 1
    if not isinstance(kind, TensorType) or not numbers:
        text = (_hexadecimal(literal) if is_table(kind) else "") or _digest(literal)
    elif single:
        text = _text(numbers[0], kind)
    else:
        text = _nested([_text(number, kind) for number in numbers], kind.shape)
    value = numbers[0] if single else None
    return ConstantAttrs(value=value), (("value", f"dense<{text}> : {plain_text(kind)}"),)


def _numbers(literal: Any, kind: Type) -> tuple[Number, ...]:
    """Return the elements of a small literal, nothing for any other."""
    if not isinstance(kind, TensorType) or kind.element_count > _MOST_PRINTED:
        return ()
    for name in _LISTS:
        values = getattr(literal, name)
        if values:
            return tuple(values)
    for name, form in _PACKED.items():
        packed: bytes = getattr(literal, name)
        if packed:
            return struct.unpack(f"<{len(packed) // struct.calcsize(form)}{form}", packed)
    halves: bytes = literal.bf16s
    whole = b"".join([b"\0\0" + halves[at : at + 2] for at in range(0, len(halves), 2)])
    return struct.unpack(f"<{len(halves) // 2}f", whole)


def _text(value: Number, kind: TensorType) -> str:
    """Print a number as MLIR does.

    >>> from hespas.program.types import tensor_type
    >>> _text(True, tensor_type("i1")), _text(1e-05, tensor_type("f32"))
    ('true', '1.0e-05')
    >>> _text(float("inf"), tensor_type("bf16"))
    '0x7F80'
    """
    if isinstance(value, bool | int):
        return str(value).lower()
    if not isfinite(value):
        form, size = _BITS[kind.element.name]
        return f"0x{struct.pack(form, value)[:size].hex().upper()}"
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _nested(texts: list[str], shape: tuple[int, ...]) -> str:
    """Print elements in brackets, one pair for each dimension."""
    if not shape:
        return texts[0]
    inner = prod(shape[1:])
    rows = [texts[at : at + inner] for at in range(0, len(texts), inner)]
    return f"[{', '.join([_nested(row, shape[1:]) for row in rows])}]"


_INTEGER_LISTS = {"s32s": "i", "s64s": "q", "u32s": "I", "u64s": "Q"}


def _hexadecimal(literal: Any) -> str:
    """Print the bytes of integers as MLIR does; empty for a literal of other numbers."""
    for name, code in _INTEGER_LISTS.items():
        values = getattr(literal, name)
        if values:
            packed = array(code, values)
            if byteorder == "big":
                packed.byteswap()
            return f'"0x{packed.tobytes().hex().upper()}"'
    for name in ("s8s", "u8s", "s16s", "u16s"):
        found: bytes = getattr(literal, name)
        if found:
            return f'"0x{found.hex().upper()}"'
    return ""


def _digest(literal: Any) -> str:
    digest = sha256(literal.SerializeToString(deterministic=True)).hexdigest()
    return f'"sha256:{digest}"'
