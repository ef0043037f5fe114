"""What training steps of three plain JAX programs need of memory: modelled, and by XLA.

    python validation/memory_steps.py [--only mamba]

Each step is Adam's, with its state donated, on one H100. None of the programs is an example of
hespas, and no rule was built on them. It needs the environment of ``make test-compilers``; a step
takes half a minute.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct, export, lax, nn

from hespas.base.home import cache_home
from hespas.compile.cache import CompiledCache
from hespas.compile.compiler import compile_program
from hespas.compile.job import Layout
from hespas.frontend.load import load_source
from hespas.hardware.presets import load_device
from hespas.lower.expand import expanded
from hespas.lower.fused import fused
from hespas.memory.usage import memory_use
from hespas.xla.cpu import use_cpu

NODE, CAPABILITY = "H100_80GB", 9.0
Tree = Any
Loss = Callable[[Tree, Tree], Any]
_HALF, _FULL = jnp.bfloat16, jnp.float32


def _floats(*shape: int) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(shape, _FULL)


def _numbers(*shape: int) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(shape, jnp.int32)


def _normed(x: Any, scale: Any) -> Any:
    wide = x.astype(_FULL)
    centred = wide - wide.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return (centred * lax.rsqrt(variance + 1e-6) * scale).astype(_HALF)


def _cross_entropy(logits: Any, labels: Any) -> Any:
    chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return (nn.logsumexp(logits, -1) - chosen).mean()


def _attention(weights: Tree, x: Any, read: Any, *, is_causal: bool) -> Any:
    q, k, v = (
        jnp.einsum("btd,dnh->btnh", given, weights[name].astype(_HALF))
        for name, given in (("q", x), ("k", read), ("v", read))
    )
    scores = jnp.einsum("btnh,bsnh->bnts", q, k).astype(_FULL) * q.shape[-1] ** -0.5
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    made = jnp.einsum("bnts,bsnh->btnh", nn.softmax(scores).astype(_HALF), v)
    return jnp.einsum("btnh,nhd->btd", made, weights["o"].astype(_HALF))


def _perceptron(weights: Tree, x: Any) -> Any:
    inner = nn.gelu(jnp.einsum("btd,df->btf", x, weights["in"].astype(_HALF)))
    return jnp.einsum("btf,fd->btd", inner, weights["out"].astype(_HALF))


def encoder_decoder(weights: Tree, batch: Tree) -> Any:
    """Return the loss of a transformer: layers of the encoder written out, a loop of the others."""
    source, target, labels = batch
    table = weights["table"].astype(_HALF)
    x = table[source]
    for layer in weights["encoder"]:
        hidden = _normed(x, layer["first"])
        x = x + _attention(layer["own"], hidden, hidden, is_causal=False)
        x = x + _perceptron(layer["mlp"], _normed(x, layer["last"]))

    def decode(y: Any, layer: Tree) -> tuple[Any, None]:
        hidden = _normed(y, layer["first"])
        y = y + _attention(layer["own"], hidden, hidden, is_causal=True)
        y = y + _attention(layer["cross"], _normed(y, layer["middle"]), x, is_causal=False)
        return y + _perceptron(layer["mlp"], _normed(y, layer["last"])), None

    y, _ = lax.scan(decode, table[target], weights["decoder"])
    return _cross_entropy(jnp.einsum("btd,vd->btv", y, table).astype(_FULL), labels)


def _layer(*stacked: int, width: int = 1024, heads: int = 16) -> Tree:
    split = (*stacked, width, heads, width // heads)
    joined = (*stacked, heads, width // heads, width)
    projections = {name: _floats(*split) for name in "qkv"} | {"o": _floats(*joined)}
    return {
        "own": projections,
        "mlp": {
            "in": _floats(*stacked, width, 4 * width),
            "out": _floats(*stacked, 4 * width, width),
        },
        "first": _floats(*stacked, width),
        "last": _floats(*stacked, width),
    }


class _Net:
    """Layers of a convolutional network: their parameters' shapes, or the parameters given."""

    def __init__(self, given: Tree | None = None) -> None:
        self.given = given
        self.shapes: dict[str, ShapeDtypeStruct] = {}
        self.count = 0

    def parameter(self, *shape: int) -> Any:
        name = f"{self.count:03}"
        self.count += 1
        if self.given is not None:
            return self.given[name].astype(_HALF)
        self.shapes[name] = _floats(*shape)
        return jnp.zeros(shape, _HALF)

    def convolution(self, x: Any, width: int, size: int = 3, stride: int = 1) -> Any:
        kernel = self.parameter(size, size, x.shape[-1], width)
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=numbers
        )

    def norm(self, x: Any, groups: int = 16) -> Any:
        batch, *_, width = x.shape
        wide = x.astype(_FULL).reshape(batch, -1, groups, width // groups)
        centred = wide - wide.mean((1, 3), keepdims=True)
        variance = jnp.square(centred).mean((1, 3), keepdims=True)
        made = (centred * lax.rsqrt(variance + 1e-5)).reshape(x.shape)
        return (made * self.parameter(width) + self.parameter(width)).astype(_HALF)

    def residual(self, x: Any, width: int, time: Any) -> Any:
        made = self.convolution(nn.silu(self.norm(x)), width)
        shift = nn.silu(time) @ self.parameter(time.shape[-1], width)
        made = self.convolution(nn.silu(self.norm(made + shift[:, None, None])), width)
        return made + (x if x.shape[-1] == width else self.convolution(x, width, 1))

    def attention(self, x: Any) -> Any:
        batch, *_, width = x.shape
        flat = self.norm(x).reshape(batch, -1, width)
        q, k, v = (flat @ self.parameter(width, width) for _ in range(3))
        scores = jnp.einsum("btc,bsc->bts", q, k).astype(_FULL) * width**-0.5
        made = jnp.einsum("bts,bsc->btc", nn.softmax(scores).astype(_HALF), v)
        return x + (made @ self.parameter(width, width)).reshape(x.shape)


def _denoised(net: _Net, image: Any, time: Any) -> Any:
    widths = (64, 128, 256)
    given = nn.silu(time.astype(_HALF) @ net.parameter(time.shape[-1], 512))
    time = given @ net.parameter(512, 512)
    x = net.convolution(image.astype(_HALF), widths[0])
    kept = [x]
    for level, width in enumerate(widths):
        for _ in range(2):
            x = net.residual(x, width, time)
            x = net.attention(x) if level == 2 else x
            kept.append(x)
        if level < 2:
            x = net.convolution(x, width, stride=2)
            kept.append(x)
    x = net.residual(net.attention(net.residual(x, 256, time)), 256, time)
    for level, width in reversed([*enumerate(widths)]):
        for _ in range(3):
            x = jnp.concatenate([x, kept.pop()], -1)
            x = net.residual(x, width, time)
            x = net.attention(x) if level == 2 else x
        if level:
            batch, height, across, features = x.shape
            larger = (batch, 2 * height, 2 * across, features)
            x = net.convolution(jax.image.resize(x, larger, "nearest"), width)
    return net.convolution(nn.silu(net.norm(x)), 3)


def diffusion(weights: Tree, batch: Tree) -> Any:
    """Return the loss of a diffusion model's U-Net with attention at its lowest resolution."""
    image, time, noise = batch
    return jnp.square(_denoised(_Net(weights), image, time).astype(_FULL) - noise).mean()


def mamba(weights: Tree, batch: Tree) -> Any:
    """Return the loss of layers with a selective scan, all computed again in the backward pass."""
    tokens, labels = batch
    table = weights["table"].astype(_HALF)
    layer = jax.checkpoint(lambda x, given: (_selective(x, given), None))
    x, _ = lax.scan(layer, table[tokens], weights["layers"])
    return _cross_entropy((x @ table.T).astype(_FULL), labels)


def _selective(x: Any, weights: Tree, piece: int = 64) -> Any:
    batch, length, _ = x.shape
    u, gate = jnp.split(_normed(x, weights["norm"]) @ weights["in"].astype(_HALF), 2, -1)
    shifted = (jnp.pad(u, ((0, 0), (back, 0), (0, 0)))[:, :length] for back in range(4))
    taps = weights["taps"].astype(_HALF)
    u = nn.silu(sum(each * tap for each, tap in zip(shifted, taps, strict=True)))
    low = u @ weights["low"].astype(_HALF) @ weights["high"].astype(_HALF)
    step = nn.softplus(low.astype(_FULL))
    b, c = jnp.split((u @ weights["bc"].astype(_HALF)).astype(_FULL), 2, -1)
    decay = -jnp.exp(weights["decay"])

    def one(state: Any, given: Tree) -> tuple[Any, Any]:
        step, b, c, u = given
        state = jnp.exp(step[..., None] * decay) * state + (step * u)[..., None] * b[:, None]
        return state, jnp.einsum("bdn,bn->bd", state, c)

    def pieces(value: Any) -> Any:
        return jnp.moveaxis(value, 1, 0).reshape(-1, piece, batch, value.shape[-1])

    given = tuple(map(pieces, (step, b, c, u.astype(_FULL))))
    start = jnp.zeros((batch, *decay.shape), _FULL)
    _, y = lax.scan(jax.checkpoint(partial(lax.scan, one)), start, given)
    y = jnp.moveaxis(y.reshape(length, batch, -1), 0, 1) + u.astype(_FULL) * weights["skip"]
    return x + (y.astype(_HALF) * nn.silu(gate)) @ weights["out"].astype(_HALF)


def _encoder_decoder_arguments() -> tuple[Tree, Tree]:
    decoder = _layer(6) | {"cross": _layer(6)["own"], "middle": _floats(6, 1024)}
    weights = {
        "table": _floats(32_000, 1024),
        "encoder": [_layer() for _ in range(6)],
        "decoder": decoder,
    }
    return weights, (_numbers(8, 512), _numbers(8, 256), _numbers(8, 256))


def _diffusion_arguments() -> tuple[Tree, Tree]:
    net = _Net()
    batch = (_floats(16, 64, 64, 3), _floats(16, 128), _floats(16, 64, 64, 3))
    jax.eval_shape(partial(_denoised, net), *batch[:2])
    return net.shapes, batch


def _mamba_arguments() -> tuple[Tree, Tree]:
    width, inner, states = 768, 1536, 16
    shapes = {
        "norm": (width,),
        "in": (width, 2 * inner),
        "taps": (4, inner),
        "low": (inner, 48),
        "high": (48, inner),
        "bc": (inner, 2 * states),
        "decay": (inner, states),
        "skip": (inner,),
        "out": (inner, width),
    }
    layers = {name: _floats(8, *shape) for name, shape in shapes.items()}
    batch = (_numbers(4, 2048), _numbers(4, 2048))
    return {"table": _floats(32_000, width), "layers": layers}, batch


STEPS: dict[str, tuple[Loss, Callable[[], tuple[Tree, Tree]]]] = {
    "encoder-decoder transformer": (encoder_decoder, _encoder_decoder_arguments),
    "U-Net of a diffusion model": (diffusion, _diffusion_arguments),
    "mamba-like scan, all computed again": (mamba, _mamba_arguments),
}


def source(loss: Loss, weights: Tree, batch: Tree) -> bytes:
    """Return a step of Adam's as StableHLO, its state donated."""

    def step(state: Tree, batch: Tree) -> tuple[Tree, Any]:
        weights, first, second = state
        value, slope = jax.value_and_grad(loss)(weights, batch)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slope)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, slope)
        moved = jax.tree.map(
            lambda w, m, v: w - 1e-3 * m / (jnp.sqrt(v) + 1e-8), weights, first, second
        )
        return (moved, first, second), value

    made = export.export(jax.jit(step, donate_argnums=0), platforms=["cuda"])
    return made((weights,) * 3, batch).mlir_module().encode()


def line_of(name: str) -> str:
    """Return a step's line of the table."""
    loss, arguments = STEPS[name]
    text = source(loss, *arguments())
    compiled = compile_program(
        text,
        name=name,
        target=NODE,
        layout=Layout(devices=1, per_host=1),
        cache=CompiledCache(directory=cache_home() / "compiled"),
    )
    theirs = compiled.memory.total_bytes - compiled.memory.generated_code_bytes
    modelled = fused(
        expanded(load_source(text, name=name), has_grouped_products=False),
        capacity_bytes=load_device(NODE).memory_capacity_bytes,
        compute_capability=CAPABILITY,
    )
    ours = map(memory_use, (load_source(compiled.hlo_proto, name=name), modelled))
    errors = [f"{100 * (use.peak_bytes / theirs - 1):+.1f} %" for use in ours]
    cells = [name, f"{theirs / 1e9:.3f} GB", *errors]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="steps whose name holds this")
    given = parser.parse_args()
    use_cpu()
    print("| step | XLA | hespas, compiled | hespas, modelled |")
    print(f"|{'---|' * 4}")
    for name in STEPS:
        if given.only in name:
            print(line_of(name), flush=True)


if __name__ == "__main__":
    main()
