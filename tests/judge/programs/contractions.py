"""Matrix products and convolutions of every type and layout."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from registry import gradients, program, shape


@program(shape(24, 40), shape(40, 56))
def matmul_f32(left: Any, right: Any) -> Any:
    return left @ right


@program(shape(24, 40, of="bfloat16"), shape(40, 56, of="bfloat16"))
def matmul_bf16(left: Any, right: Any) -> Any:
    return left @ right


@program(shape(24, 40, of="bfloat16"), shape(40, 56, of="bfloat16"))
def matmul_bf16_to_f32(left: Any, right: Any) -> Any:
    return jnp.matmul(left, right, preferred_element_type=jnp.float32)


@program(shape(24, 40, of="float8_e4m3fn"), shape(40, 56, of="float8_e5m2"))
def matmul_f8(left: Any, right: Any) -> Any:
    return lax.dot(left, right, preferred_element_type=jnp.float32)


@program(shape(24, 40, of="int8"), shape(40, 56, of="int8"))
def matmul_i8_to_i32(left: Any, right: Any) -> Any:
    return lax.dot(left, right, preferred_element_type=jnp.int32)


@program(shape(24, 40), shape(40, 56))
def matmul_highest(left: Any, right: Any) -> Any:
    return jnp.matmul(left, right, precision="highest")


@program(shape(24, 40), shape(40, 56))
def matmul_three_passes(left: Any, right: Any) -> Any:
    return lax.dot(left, right, precision="BF16_BF16_F32_X3")


@program(shape(24, 40, of="complex64"), shape(40, 56, of="complex64"))
def matmul_complex(left: Any, right: Any) -> Any:
    return left @ right


@program(shape(3, 5, 24, 40), shape(3, 5, 40, 56))
def matmul_batched(left: Any, right: Any) -> Any:
    return left @ right


@program(shape(40), shape(40), shape(7))
def vector_products(left: Any, right: Any, other: Any) -> Any:
    return left @ right, jnp.outer(left, other)


@program(shape(2, 9, 4, 8), shape(2, 11, 4, 8), shape(4, 8, 32))
def einsum_projection(queries: Any, keys: Any, weights: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys)
    return jnp.einsum("bhqk,bkhd,hdm->bqm", scores, keys, weights)


@program(shape(24, 40), shape(40, 56))
def matmul_gradient(left: Any, right: Any) -> Any:
    return gradients(jnp.matmul, left, right)


def _convolution(image: Any, kernel: Any, layout: tuple[str, str, str], **window: Any) -> Any:
    rank = image.ndim - 2
    settings: dict[str, Any] = {"window_strides": (1,) * rank, "padding": "SAME"} | window
    return lax.conv_general_dilated(image, kernel, dimension_numbers=layout, **settings)


_NWC = ("NWC", "WIO", "NWC")
_NCHW = ("NCHW", "OIHW", "NCHW")
_NHWC = ("NHWC", "HWIO", "NHWC")
_NDHWC = ("NDHWC", "DHWIO", "NDHWC")


@program(shape(2, 50, 6), shape(5, 6, 8))
def convolution_1d(image: Any, kernel: Any) -> Any:
    return _convolution(image, kernel, _NWC)


@program(shape(2, 50, 6), shape(5, 6, 8))
def convolution_1d_gradient(image: Any, kernel: Any) -> Any:
    return gradients(partial(_convolution, layout=_NWC, window_strides=(3,)), image, kernel)


@program(shape(2, 6, 16, 12), shape(8, 6, 3, 3))
def convolution_nchw(image: Any, kernel: Any) -> Any:
    return _convolution(image, kernel, _NCHW)


@program(shape(2, 6, 16, 12), shape(8, 6, 3, 5))
def convolution_nchw_gradient(image: Any, kernel: Any) -> Any:
    return gradients(partial(_convolution, layout=_NCHW, window_strides=(2, 1)), image, kernel)


@program(shape(2, 16, 12, 6, of="bfloat16"), shape(7, 7, 6, 8, of="bfloat16"))
def convolution_nhwc_stem(image: Any, kernel: Any) -> Any:
    return _convolution(image, kernel, _NHWC, window_strides=(2, 2))


@program(shape(2, 16, 12, 6), shape(7, 7, 6, 8))
def convolution_nhwc_stem_gradient(image: Any, kernel: Any) -> Any:
    return gradients(partial(_convolution, layout=_NHWC, window_strides=(2, 2)), image, kernel)


@program(shape(2, 6, 10, 8, 3), shape(3, 3, 3, 3, 4))
def convolution_3d(image: Any, kernel: Any) -> Any:
    return _convolution(image, kernel, _NDHWC, window_strides=(1, 2, 2))


@program(shape(2, 6, 10, 8, 3), shape(3, 3, 3, 3, 4))
def convolution_3d_gradient(image: Any, kernel: Any) -> Any:
    return gradients(partial(_convolution, layout=_NDHWC, window_strides=(1, 2, 2)), image, kernel)


_grouped = partial(_convolution, layout=_NHWC, feature_group_count=3)
_depthwise = partial(_convolution, layout=_NHWC, feature_group_count=6)
_dilated = partial(_convolution, layout=_NHWC, rhs_dilation=(2, 3))


@program(shape(2, 16, 12, 6), shape(3, 3, 2, 9))
def convolution_grouped(image: Any, kernel: Any) -> Any:
    return _grouped(image, kernel)


@program(shape(2, 16, 12, 6), shape(3, 3, 2, 9))
def convolution_grouped_gradient(image: Any, kernel: Any) -> Any:
    return gradients(_grouped, image, kernel)


@program(shape(2, 16, 12, 6), shape(3, 3, 1, 12))
def convolution_depthwise(image: Any, kernel: Any) -> Any:
    return _depthwise(image, kernel)


@program(shape(2, 16, 12, 6), shape(3, 3, 1, 12))
def convolution_depthwise_gradient(image: Any, kernel: Any) -> Any:
    return gradients(_depthwise, image, kernel)


@program(shape(2, 16, 12, 6), shape(3, 3, 6, 8))
def convolution_dilated(image: Any, kernel: Any) -> Any:
    return _dilated(image, kernel)


@program(shape(2, 16, 12, 6), shape(3, 3, 6, 8))
def convolution_dilated_gradient(image: Any, kernel: Any) -> Any:
    return gradients(_dilated, image, kernel)


@program(shape(2, 8, 6, 6), shape(4, 4, 6, 8))
def convolution_transposed(image: Any, kernel: Any) -> Any:
    return lax.conv_transpose(image, kernel, (2, 3), "SAME", dimension_numbers=_NHWC)


@program(shape(2, 16, 12, 6), shape(3, 3, 6, 8))
def convolution_negative_padding(image: Any, kernel: Any) -> Any:
    return _convolution(image, kernel, _NHWC, padding=((-1, 2), (3, -2)), lhs_dilation=(2, 1))


@program(shape(6, 16, 12, 4), shape(3, 3, 4, 8))
def convolution_batch_groups(image: Any, kernel: Any) -> Any:
    return _convolution(image, kernel, _NHWC, batch_group_count=2)


@program(shape(2, 12, 12, 3), shape(4, 4, 3, 16))
def patch_embedding(image: Any, kernel: Any) -> Any:
    return jax.nn.relu(_convolution(image, kernel, _NHWC, window_strides=(4, 4), padding="VALID"))
