"""Parts of programs that people run, as modelled and as XLA compiles them for GPUs."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import hespas

f32, bf16, i32, i8, f8 = jnp.float32, jnp.bfloat16, jnp.int32, jnp.int8, jnp.float8_e4m3fn
H100, A100, B200 = "H100_80GB", "A100_SXM_80GB", "B200_180GB"


def of(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def product(values: Any, weights: Any) -> Any:
    return lax.dot_general(values, weights, (((1,), (0,)), ((), ())), preferred_element_type=i32)


def product_of_f8(values: Any, weights: Any) -> Any:
    return lax.dot_general(values, weights, (((1,), (0,)), ((), ())), preferred_element_type=bf16)


def batched(values: Any, weights: Any) -> Any:
    dimensions = (((2,), (1,)), ((0,), (0,)))
    return lax.dot_general(values, weights, dimensions, preferred_element_type=i32)


def taken(values: Any, places: Any) -> Any:
    return jnp.take_along_axis(values, places, 1)


def sampled(logits: Any, key: Any) -> Any:
    best, places = lax.top_k(logits / 0.8, 50)
    chosen = jax.random.categorical(key, best)
    return jnp.take_along_axis(places, chosen[:, None], 1)


def projected(values: Any, *weights: Any) -> Any:
    return [values @ each for each in weights]


def decoded(queries: Any, keys: Any, values: Any) -> Any:
    scores = jnp.einsum("bhd,bhtd->bht", queries, keys).astype(f32) / 11.3
    return jnp.einsum("bht,bhtd->bhd", jax.nn.softmax(scores, -1).astype(bf16), values)


def chunks(values: Any, steps: Any, decay: Any, inputs: Any, outputs: Any) -> Any:
    """Mamba-2's chunks, what one leaves to the next included."""
    b, length, h, p = values.shape
    c, size = length // 128, 128
    rates = (steps * decay).reshape(b, c, size, h)
    scaled = (values * steps[..., None]).reshape(b, c, size, h, p)
    inputs, outputs = (each.reshape(b, c, size, -1) for each in (inputs, outputs))
    sums = jnp.cumsum(rates, 2)
    between = sums[:, :, :, None] - sums[:, :, None]
    below = jnp.tril(jnp.ones((size, size), bool))[None, None, :, :, None]
    weights = jnp.where(below, jnp.exp(between), 0.0)
    scores = jnp.einsum("bcln,bcsn->bcls", outputs, inputs)
    inside = jnp.einsum("bcls,bclsh,bcshp->bclhp", scores, weights, scaled)
    states = jnp.einsum("bcsn,bcsh,bcshp->bchpn", inputs, jnp.exp(sums[:, :, -1:] - sums), scaled)

    def turn(state: Any, given: Any) -> Any:
        kept, new = given
        return state * kept[..., None, None] + new, state

    ends = jnp.exp(sums[:, :, -1]).transpose(1, 0, 2)
    start = jnp.zeros_like(states[:, 0])
    _, before = lax.scan(turn, start, (ends, states.transpose(1, 0, 2, 3, 4)))
    before = before.transpose(1, 0, 2, 3, 4)
    across = jnp.einsum("bcln,bchpn,bclh->bclhp", outputs, before, jnp.exp(sums))
    return (inside + across).reshape(b, length, h, p)


def routed(logits: Any) -> Any:
    return lax.top_k(jax.nn.softmax(logits), 8)


def ordered(values: Any) -> Any:
    return jnp.argsort(values)


def rotated(values: Any, places: Any) -> Any:
    """A rotary embedding of neighbouring pairs."""
    rates = 1.0 / (10000 ** (jnp.arange(0, 128, 2, dtype=f32) / 128))
    angles = places[..., None].astype(f32) * rates
    sine, cosine = jnp.sin(angles)[:, :, None], jnp.cos(angles)[:, :, None]
    left, right = values[..., ::2].astype(f32), values[..., 1::2].astype(f32)
    pairs = [left * cosine - right * sine, right * cosine + left * sine]
    return jnp.stack(pairs, -1).reshape(values.shape).astype(values.dtype)


def smoothed(logits: Any, labels: Any) -> Any:
    """A loss with smoothed labels, and its gradient."""

    def loss(logits: Any) -> Any:
        wanted = jax.nn.one_hot(labels, 32000) * 0.9 + 0.1 / 32000
        return -(wanted * jax.nn.log_softmax(logits.astype(f32))).sum(-1).mean()

    return jax.value_and_grad(loss)(logits)


def bag(table: Any, places: Any) -> Any:
    return table[places].sum(1)


def graph_attention(values: Any, w: Any, both: Any, sources: Any, targets: Any) -> Any:
    made, count = values @ w, values.shape[0]
    scores = jax.nn.leaky_relu((made @ both[0])[sources] + (made @ both[1])[targets])
    most = jax.ops.segment_max(scores, targets, num_segments=count)
    weights = jnp.exp(scores - most[targets])
    total = jax.ops.segment_sum(weights, targets, num_segments=count)
    share = weights / (total[targets] + 1e-9)
    return jax.ops.segment_sum(share[:, None] * made[sources], targets, num_segments=count)


def normalised(values: Any, scale: Any, shift: Any) -> Any:
    apart = values - values.mean(-1, keepdims=True)
    return apart * lax.rsqrt(values.var(-1, keepdims=True) + 1e-5) * scale + shift


def dilated(images: Any, kernel: Any) -> Any:
    names = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        images, kernel, (1, 1), "SAME", rhs_dilation=(2, 2), dimension_numbers=names
    )


EDGES = [of(i32, 1_000_000)] * 2
SQUARE = (2048, 2048)
CACHE = (16, 32, 2048, 128)
SCAN = [of(f32, 2, 2048, 24, 64), of(f32, 2, 2048, 24), of(f32, 24), *[of(f32, 2, 2048, 128)] * 2]
LEFT, RIGHT = (512, 4096), (4096, 14336)
WIDE = (64, 128256)
Case = tuple[Callable[..., Any], list[jax.ShapeDtypeStruct], str, float, float | None]

# What jaxlib 0.10.2 compiles: time, and bytes that kernels move but where XLA's sorts make places.
CASES: dict[str, Case] = {
    "i8 on H100": (product, [of(i8, *LEFT), of(i8, *RIGHT)], H100, 120.4e-6, 207.6e6),
    "i8 on A100": (product, [of(i8, *LEFT), of(i8, *RIGHT)], A100, 237.3e-6, 207.6e6),
    "i8 on B200": (product, [of(i8, *LEFT), of(i8, *RIGHT)], B200, 77.8e-6, 207.6e6),
    "f8 on H100": (product_of_f8, [of(f8, *LEFT), of(f8, *RIGHT)], H100, 120.5e-6, 192.9e6),
    "f8 on B200": (product_of_f8, [of(f8, *LEFT), of(f8, *RIGHT)], B200, 36.7e-6, 75.5e6),
    "i8, batched": (batched, [of(i8, 8, 512, 1024), of(i8, 8, 1024, 2048)], H100, 44.9e-6, 88.1e6),
    "one taken of a row": (taken, [of(f32, *WIDE), of(i32, 64, 1)], H100, 3.0e-6, 768),
    "all taken of a row": (
        taken,
        [of(f32, 4096, 4096), of(i32, 4096, 4096)],
        H100,
        71.9e-6,
        201.3e6,
    ),
    "a vector by rows": (
        projected,
        [of(f32, 1, 1024), of(f32, 1024, 1024)],
        H100,
        10.7e-6,
        12.6e6,
    ),
    "a vector by matrices": (
        projected,
        [of(bf16, 1, 2048), *[of(bf16, *SQUARE)] * 3],
        H100,
        44.8e-6,
        75.5e6,
    ),
    "decode of whole heads": (
        decoded,
        [of(bf16, 16, 32, 128), *[of(bf16, *CACHE)] * 2],
        H100,
        254.8e-6,
        549.7e6,
    ),
    "a router of 256 experts": (routed, [of(f32, 16384, 256)], H100, 169.6e-6, None),
    "rows sorted by a network": (ordered, [of(f32, 4096, 8192)], H100, 3957.3e-6, None),
    "pairs rotated": (
        rotated,
        [of(bf16, 4, 4096, 32, 128), of(i32, 4, 4096)],
        H100,
        161.1e-6,
        285.3e6,
    ),
    "smoothed labels": (smoothed, [of(bf16, 4096, 32000), of(i32, 4096)], H100, 560.1e-6, 1061.5e6),
    "bags of 32 rows": (bag, [of(f32, 1_000_000, 128), of(i32, 8192, 32)], H100, 77.7e-6, 139.5e6),
    "a graph's attention": (
        graph_attention,
        [of(f32, 100_000, 128), of(f32, 128, 64), of(f32, 2, 64), *EDGES],
        H100,
        243.4e-6,
        262.0e6,
    ),
    "single elements": (
        lambda table, places: table[places],
        [of(f32, 2**28), of(i32, 2**24)],
        H100,
        238.3e-6,
        201.3e6,
    ),
    "sums of 4096 columns": (lambda x: x.sum(0), [of(f32, 32768, 4096)], H100, 191.0e-6, 541.1e6),
    "a norm by its variance": (
        normalised,
        [of(f32, 16384, 4096), *[of(f32, 4096)] * 2],
        H100,
        187.8e-6,
        536.9e6,
    ),
    "a convolution with gaps": (
        dilated,
        [of(bf16, 32, 64, 64, 128), of(bf16, 3, 3, 128, 128)],
        H100,
        56.0e-6,
        68.0e6,
    ),
    "a state-space model": (chunks, SCAN, H100, 495.6e-6, 722.9e6),
    "top 50 sampled": (sampled, [of(f32, *WIDE), of(jnp.uint32, 2)], H100, 480.4e-6, 1083.8e6),
}


@pytest.mark.parametrize("name", CASES)
def test_a_program_takes_about_as_long_as_compiled(name: str, tmp_path: Path) -> None:
    function, given, node, compiled_s, compiled_bytes = CASES[name]
    file = tmp_path / "program.mlir"
    file.write_text(jax.jit(function).trace(*given).lower().as_text())
    predicted = hespas.predict(file, node, devices=1, fidelity="fused")
    moved = predicted.estimates.total.total.bytes_moved
    assert predicted.step_time_s == pytest.approx(compiled_s, rel=0.11)
    if compiled_bytes is not None:
        assert moved == pytest.approx(compiled_bytes, rel=0.05)
