"""Dots and convolutions: which dimensions are contracted, and how precisely."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from hespas.errors import UnsupportedError
from hespas.frontend.hlo import mlir
from hespas.program.attrs import Attrs, ConvolutionAttrs, DotAttrs
from hespas.program.dot_algorithms import algorithm_text
from hespas.xla.hlo.schema import enum_names

_FORWARD = ("CONVOLUTION_KIND_UNSET", "CONVOLUTION_KIND_FPROP")


def precisions(config: Any) -> tuple[str, ...]:
    """Return a precision for each operand; empty where all are the default."""
    names = enum_names("xla.PrecisionConfig.Precision")
    found = tuple([names[number] for number in config.operand_precision])
    return found if set(found) - {"DEFAULT"} else ()


def precision_text(found: tuple[str, ...]) -> str:
    """Print a precision for each operand."""
    return f"[{', '.join([mlir.stablehlo('precision', name) for name in found])}]"


def dot(instruction: Any) -> tuple[Attrs, mlir.Attributes]:
    """Read which dimensions a dot contracts."""
    return dot_of(instruction.dot_dimension_numbers, instruction.precision_config)


def ragged_dot(instruction: Any) -> tuple[Attrs, mlir.Attributes]:
    """Read a dot whose groups of rows meet different matrices."""
    numbered = instruction.ragged_dot_dimension_numbers
    attrs, texts = dot_of(numbered.dot_dimension_numbers, instruction.precision_config)
    divided = set(numbered.lhs_ragged_dimensions) <= set(attrs.lhs_contracting)
    ragged = {
        "lhs_ragged_dimensions": mlir.array(tuple(numbered.lhs_ragged_dimensions)),
        "rhs_group_dimensions": mlir.array(tuple(numbered.rhs_group_dimensions)),
    }
    return replace(attrs, is_divided=divided), mlir.listed(dict(texts) | ragged)


def dot_of(numbered: Any, precision: Any) -> tuple[DotAttrs, mlir.Attributes]:
    """Read an ``xla.DotDimensionNumbers`` and an ``xla.PrecisionConfig``."""
    algorithms = enum_names("xla.PrecisionConfig.Algorithm")
    attrs = DotAttrs(
        lhs_batching=tuple(numbered.lhs_batch_dimensions),
        rhs_batching=tuple(numbered.rhs_batch_dimensions),
        lhs_contracting=tuple(numbered.lhs_contracting_dimensions),
        rhs_contracting=tuple(numbered.rhs_contracting_dimensions),
        precision=precisions(precision),
        algorithm=algorithm_text(algorithms[precision.algorithm]),
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
    """Read where a convolution's dimensions lie, and its window."""
    places, sides = instruction.convolution_dimension_numbers, instruction.window.dimensions
    return ConvolutionAttrs(
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


def convolution(instruction: Any) -> tuple[Attrs, mlir.Attributes]:
    """Read a convolution; `UnsupportedError` for one that is written by its forward form."""
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
    given = _letters(attrs.input_spatial, b=attrs.input_batch, f=attrs.input_feature)
    kernel = _letters(
        attrs.kernel_spatial, i=attrs.kernel_input_feature, o=attrs.kernel_output_feature
    )
    made = _letters(attrs.output_spatial, b=attrs.output_batch, f=attrs.output_feature)
    return f"#stablehlo.conv<[{given}]x[{kernel}]->[{made}]>"


def _letters(spatial: tuple[int, ...], **named: int) -> str:
    places = {location: str(at) for at, location in enumerate(spatial)}
    places |= {location: letter for letter, location in named.items()}
    return ", ".join(places[at] for at in sorted(places))
