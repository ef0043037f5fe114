"""Write recorded products, attention and convolutions as library calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, prod

import msgspec

from hespas.base.frozen import frozen
from hespas.errors import UnsupportedError
from hespas.program.attrs import (
    CONVOLUTION_BACKWARD_FILTER,
    CONVOLUTION_BACKWARD_INPUT,
    CONVOLUTION_FORWARD,
    FLASH_BACKWARD,
    FLASH_FORWARD,
    Attrs,
    ConvolutionAttrs,
    CustomCallAttrs,
    DotAttrs,
)
from hespas.program.recorded import KernelCall, Operation, RecordedTensor

_EXACT = ("HIGHEST", "HIGHEST")
Tensors = tuple[RecordedTensor, ...]


@frozen
class Launch:
    """A launch, by the operation's kind and dialect."""

    kind: str
    attrs: Attrs
    operands: Tensors
    results: Tensors
    dialect: str = "stablehlo"


@frozen
class Settings:
    """Whether torch may compute f32 products and convolutions in tf32."""

    has_tf32_products: bool = False
    has_tf32_convolutions: bool = True


def calls_of(operation: Operation, settings: Settings) -> tuple[Launch, ...]:
    """Return an operation's library calls; empty for torch's own kernels.

    Raises `UnsupportedError` for tensors that don't match the operation.
    """
    rule = _RULES.get(operation.name.partition(".")[0])
    if rule is None:
        return ()
    try:
        return tuple(rule(operation, settings))
    except (IndexError, ValueError) as error:
        raise UnsupportedError(
            f"{operation.name} has other tensors than its schema",
            location=operation.place,
            hint="record it with the version of hespas that reads it",
        ) from error


def _library_call(target: str, config: Mapping[str, object]) -> CustomCallAttrs:
    text = msgspec.json.encode(config).decode() if config else ""
    return CustomCallAttrs(target=target, backend_config=text)


def _is_exact(tensor: RecordedTensor, settings: Settings) -> bool:
    return tensor.dtype == "float32" and not settings.has_tf32_products


def _gemm(
    operation: Operation,
    factors: Tensors,
    settings: Settings,
    *,
    batch: int = 0,
    addend: Tensors = (),
    is_small: bool = False,
) -> Iterator[Launch]:
    """Yield the call of a product; factors end in rows and columns."""
    left, right = factors
    numbers: dict[str, object] = {
        "lhs_contracting_dimensions": [batch + 1],
        "rhs_contracting_dimensions": [batch],
        "lhs_batch_dimensions": list(range(batch)),
        "rhs_batch_dimensions": list(range(batch)),
    }
    is_bias = any(len(tensor.shape) == 1 for tensor in addend)
    config: dict[str, object] = {
        "dot_dimension_numbers": numbers,
        "epilogue": "BIAS" if is_bias else "DEFAULT",
        "beta": float(bool(addend) and not is_bias),
    }
    if _is_exact(left, settings):
        config["precision_config"] = {"operand_precision": _EXACT}
    target = "__cublas$lt$matmul$f8" if is_small else "__cublas$gemm"
    target = "__cublas$lt$matmul" if is_bias and not is_small else target
    yield Launch(
        kind="custom_call",
        attrs=_library_call(target, {"gemm_backend_config": config}),
        operands=(left, right, *addend),
        results=operation.outputs[:1],
    )


def _product(operation: Operation, settings: Settings) -> Iterator[Launch]:
    """Read ``mm`` and ``bmm``; outputs among inputs come last."""
    left, right = operation.inputs[:2]
    return _gemm(operation, (left, right), settings, batch=len(left.shape) - 2)


def _added_product(operation: Operation, settings: Settings) -> Iterator[Launch]:
    """Read ``addmm`` and ``baddbmm``; the addend comes first."""
    addend, left, right = operation.inputs[:3]
    batch = len(left.shape) - 2
    return _gemm(operation, (left, right), settings, batch=batch, addend=(addend,))


def _scaled_product(operation: Operation, settings: Settings) -> Iterator[Launch]:
    """Read ``_scaled_mm``: scales per tensor, row or block follow the factors."""
    left, right, *scales = operation.inputs
    bias = tuple(operand for operand in scales if operand.shape == right.shape[1:])[:1]
    is_bias = bool(bias) and bias[0].dtype in {"bfloat16", "float16"}
    addend = bias if is_bias else ()
    return _gemm(operation, (left, right), settings, addend=addend, is_small=True)


def _grouped_product(operation: Operation, settings: Settings) -> Iterator[Launch]:
    """Read ``_grouped_mm``; offsets divide rows, columns or contracted elements."""
    left, right, *options = operation.inputs
    offsets = next(tensor for tensor in options if tensor.dtype == "int32")
    factors = (left, right)
    match len(left.shape), len(right.shape):
        case (2, 3):
            lhs_contracting, rhs_contracting, ragged = 1, 1, 0
        case (2, 2):
            lhs_contracting, rhs_contracting, ragged = 1, 0, 1
        case (3, 2):
            factors = (right, left)
            lhs_contracting, rhs_contracting, ragged = 0, 2, 1
        case _:
            yield from _gemm(operation, factors, settings, batch=1)
            return
    attrs = DotAttrs(
        lhs_batching=(),
        rhs_batching=(),
        lhs_contracting=(lhs_contracting,),
        rhs_contracting=(rhs_contracting,),
        precision=_EXACT if _is_exact(left, settings) else (),
        ragged=ragged,
        is_divided=ragged == lhs_contracting,
    )
    operands = (*factors, offsets)
    yield Launch(kind="ragged_dot", attrs=attrs, operands=operands, results=operation.outputs[:1])


def _length_before_heads(tensor: RecordedTensor) -> RecordedTensor:
    """Reorder (batch, heads, length, size) to (batch, length, heads, size)."""
    batch, heads, length, size = tensor.shape
    outer, middle, inner, fastest = tensor.strides
    return msgspec.structs.replace(
        tensor, shape=(batch, length, heads, size), strides=(outer, inner, middle, fastest)
    )


def _of_sequences(tensor: RecordedTensor, length: int) -> RecordedTensor:
    """Describe rows as sequences of one length, which they fill."""
    _, rows, *inner = tensor.shape
    _, stride, *inner_strides = tensor.strides
    return msgspec.structs.replace(
        tensor,
        shape=(ceil(rows / length), length, *inner),
        strides=(length * stride, stride, *inner_strides),
    )


def _is_causal(operation: Operation) -> bool:
    mask = operation.arguments.get("custom_mask_type")
    return bool(operation.arguments.get("is_causal")) or mask in (1, 2)


def _flash(version: str, *, by_heads: bool) -> Callable[[Operation, Settings], Iterator[Launch]]:
    """Return the rule of a kernel with FlashAttention's arguments.

    ``version`` is the implementation; with ``by_heads`` arrays are (batch, heads, length, size).
    """

    def call(operation: Operation, _settings: Settings) -> Iterator[Launch]:
        is_backward = "backward" in operation.name
        arrays = operation.inputs[is_backward:]
        if any(len(array.shape) != 4 for array in arrays[:3]):
            raise UnsupportedError(
                f"{operation.name} of packed sequences has no model",
                location=operation.place,
                hint="give sequences of equal length, as tensors of four dimensions",
            )
        query, key, value = map(_length_before_heads, arrays[:3]) if by_heads else arrays[:3]
        longest = operation.arguments.get("longest")
        if isinstance(longest, int) and longest:
            query, key, value = (_of_sequences(each, longest) for each in (query, key, value))
        if is_backward:
            operands = (query, key, value, *operation.inputs[4:6], operation.inputs[0])
            results = operation.outputs[:3]
        else:
            operands, results = (query, key, value), operation.outputs[:2]
        kernel = operation.arguments.get("kernel", version)
        config: dict[str, object] = {"is_causal": _is_causal(operation), "kernel": kernel}
        window = operation.arguments.get("window_size_left")
        if isinstance(window, int) and window > 0:
            config["window"] = window + 1
        if "attended" in operation.arguments:
            config["attended"] = operation.arguments["attended"]
        yield Launch(
            kind="custom_call",
            attrs=_library_call(
                FLASH_BACKWARD if is_backward else FLASH_FORWARD,
                {"flash_attention_config": config},
            ),
            operands=operands,
            results=results,
        )

    return call


FLEX_ATTENTION = (
    "attention: FlexAttention's kernels, which Triton compiles, take the time of FlashAttention-2 "
    "over all pairs of tokens, or those of the blocks that a mask leaves"
)
_TEMPLATE = "triton_tem_"


def template_of(call: KernelCall) -> Operation | None:
    """Return the attention of an Inductor template kernel, or None.

    The PTX lacks the trip counts of its loops. Without a block mask those of FlexAttention visit
    all pairs of tokens. Raises `UnsupportedError` for masks whose blocks were not counted, and for
    other templates.
    """
    if not call.kernel.startswith(_TEMPLATE):
        return None
    indices = [
        tensor for tensor in call.reads if tensor.dtype == "int32" and len(tensor.shape) == 4
    ]
    numbers = [tensor for tensor in call.reads if tensor.dtype != "int32"]
    if "flex_attention" not in call.kernel:
        raise UnsupportedError(
            f"{call.kernel} is a template of Inductor's, and how often its loops run is not known",
            location=call.place,
            hint="compile without max-autotune",
        )
    is_counted = bool(indices) and all(tensor.shape[-1] == 1 for tensor in indices)
    if call.attended is None and not is_counted:
        raise UnsupportedError(
            "which blocks a mask of FlexAttention leaves depends on tensors that have no data here",
            location=call.place,
            hint="make the mask by create_block_mask, outside of other compiled code, of positions "
            "and of tensors that the host made and copied to the GPU",
        )
    query, key, value, *others = _by_heads(numbers)
    name = "aten::_scaled_dot_product_flash_attention"
    inputs, outputs = (query, key, value), call.writes
    if "backward" in call.kernel:
        normaliser, delta, gradient, *gradients = others[:5]
        name = f"{name}_backward"
        inputs, outputs = (gradient, *inputs, normaliser, delta), (*gradients, *call.writes)
    return Operation(
        name=f"{name}.default",
        inputs=inputs,
        outputs=outputs,
        arguments={} if call.attended is None else {"attended": call.attended},
        stream=call.stream,
        scope=call.scope,
        phase=call.phase,
        place=call.place,
    )


def _by_heads(numbers: Sequence[RecordedTensor]) -> Tensors:
    """Return FlexAttention's arguments, query, key and value as (batch, heads, length, size).

    One that a product has just written comes with that product's shape. The fourth argument has a
    number for each row of the query.
    """
    query, key, value, normaliser, *others = numbers
    rows = normaliser.shape
    query = _shaped(query, rows)
    if len(key.shape) == len(value.shape) == 2:
        keys = (rows[0], prod(key.shape) // (rows[0] * rows[2] * query.shape[-1]), rows[2])
    else:
        keys = (value if len(key.shape) == 2 else key).shape[:3]
    return (query, _shaped(key, keys), _shaped(value, keys), normaliser, *others)


def _shaped(tensor: RecordedTensor, rows: tuple[int, ...]) -> RecordedTensor:
    if len(tensor.shape) == 4:
        return tensor
    batch, heads, length = rows
    row = prod(tensor.shape) // (batch * length)
    size = row // heads
    return msgspec.structs.replace(
        tensor, shape=(*rows, size), strides=(length * row, size, row, 1)
    )


def _cudnn(operation: Operation, _settings: Settings) -> Iterator[Launch]:
    """Read cuDNN's attention; arrays are (batch, heads, length, size)."""
    is_backward = "backward" in operation.name
    query, key, value, *options = operation.inputs[is_backward:]
    scores = (query.shape[2], key.shape[2])
    bias = [tensor for tensor in options if len(tensor.shape) == 4 and tensor.shape[2:] == scores]
    target = f"__cudnn$fmha{'ScaleBias' if bias else ''}Softmax{'Backward' * is_backward}"
    config = {
        "intermediate_tensor_shape": {"dimensions": (*query.shape[:2], *scores)},
        "mask_type": "CAUSAL" if _is_causal(operation) else "NO_MASK",
    }
    operands = (query, key, value, *bias[:1])
    if is_backward:
        operands = (*operands, *options[:2], operation.inputs[0])
    yield Launch(
        kind="custom_call",
        attrs=_library_call(target, {"cudnn_fmha_backend_config": config}),
        operands=operands,
        results=operation.outputs[: 3 if is_backward else 2],
    )


def _integers(operation: Operation, name: str, rank: int, default: int) -> tuple[int, ...]:
    listed = operation.arguments.get(name, (default,))
    numbers = listed if isinstance(listed, tuple) else (listed,)
    chosen = tuple([number for number in numbers if isinstance(number, int)]) or (default,)
    return chosen * rank if len(chosen) == 1 else chosen


def _convolution_attrs(
    operation: Operation, image: RecordedTensor, settings: Settings
) -> ConvolutionAttrs:
    """Return a forward convolution of (batch, features, positions) and (out, in, window)."""
    rank = len(image.shape) - 2
    spatial = tuple(range(2, 2 + rank))
    groups = operation.arguments.get("groups", 1)
    is_exact = image.dtype == "float32" and not settings.has_tf32_convolutions
    return ConvolutionAttrs(
        input_batch=0,
        input_feature=1,
        input_spatial=spatial,
        kernel_input_feature=1,
        kernel_output_feature=0,
        kernel_spatial=spatial,
        output_batch=0,
        output_feature=1,
        output_spatial=spatial,
        strides=_integers(operation, "stride", rank, 1),
        padding=tuple([(pad, pad) for pad in _integers(operation, "padding", rank, 0)]),
        lhs_dilation=(1,) * rank,
        rhs_dilation=_integers(operation, "dilation", rank, 1),
        feature_group_count=groups if isinstance(groups, int) else 1,
        batch_group_count=1,
        precision=_EXACT if is_exact else (),
    )


def _convolution_call(
    target: str, attrs: ConvolutionAttrs, operands: Tensors, result: RecordedTensor
) -> Launch:
    call = CustomCallAttrs(target=target, convolution=attrs, precision=attrs.precision)
    return Launch(kind="custom_call", attrs=call, operands=operands, results=(result,))


def _convolution(operation: Operation, settings: Settings) -> Iterator[Launch]:
    """Yield the call; a transposed one is the gradient of the image of the one it transposes."""
    image, kernel = operation.inputs[:2]
    is_transposed = bool(operation.arguments.get("transposed"))
    attrs = _convolution_attrs(operation, image, settings)
    target = CONVOLUTION_BACKWARD_INPUT if is_transposed else CONVOLUTION_FORWARD
    yield _convolution_call(target, attrs, (image, kernel), operation.outputs[0])


def _convolution_gradients(operation: Operation, settings: Settings) -> Iterator[Launch]:
    """Yield a call for each computed gradient, image's and kernel's."""
    gradient, image, kernel = operation.inputs[:3]
    is_transposed = bool(operation.arguments.get("transposed"))
    attrs = _convolution_attrs(operation, image, settings)
    target = CONVOLUTION_FORWARD if is_transposed else CONVOLUTION_BACKWARD_INPUT
    pair = (gradient, image) if is_transposed else (image, gradient)
    for output in operation.outputs:
        if output.shape == image.shape:
            yield _convolution_call(target, attrs, (gradient, kernel), output)
        elif output.shape == kernel.shape:
            yield _convolution_call(CONVOLUTION_BACKWARD_FILTER, attrs, pair, output)


_FLASH_2, _EFFICIENT = "flash_attention_2", "memory_efficient"
_RULES: Mapping[str, Callable[[Operation, Settings], Iterator[Launch]]] = {
    "aten::mm": _product,
    "aten::bmm": _product,
    "aten::_int_mm": _product,
    "aten::addmm": _added_product,
    "aten::baddbmm": _added_product,
    "aten::_scaled_mm": _scaled_product,
    "aten::_grouped_mm": _grouped_product,
    "aten::_scaled_grouped_mm": _grouped_product,
    "aten::_scaled_dot_product_flash_attention": _flash(_FLASH_2, by_heads=True),
    "aten::_scaled_dot_product_flash_attention_backward": _flash(_FLASH_2, by_heads=True),
    "hespas::flash_attention": _flash(_FLASH_2, by_heads=False),
    "hespas::flash_attention_backward": _flash(_FLASH_2, by_heads=False),
    "aten::_flash_attention_forward": _flash(_FLASH_2, by_heads=False),
    "aten::_flash_attention_backward": _flash(_FLASH_2, by_heads=False),
    "aten::_scaled_dot_product_efficient_attention": _flash(_EFFICIENT, by_heads=True),
    "aten::_scaled_dot_product_efficient_attention_backward": _flash(_EFFICIENT, by_heads=True),
    "aten::_efficient_attention_forward": _flash(_EFFICIENT, by_heads=False),
    "aten::_efficient_attention_backward": _flash(_EFFICIENT, by_heads=False),
    "aten::_scaled_dot_product_cudnn_attention": _cudnn,
    "aten::_scaled_dot_product_cudnn_attention_backward": _cudnn,
    "aten::convolution": _convolution,
    "aten::cudnn_convolution": _convolution,
    "aten::convolution_backward": _convolution_gradients,
}
