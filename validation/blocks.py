"""Blocks of a Llama-3-like step whose time on GPUs was published, against what their kernels say.

    python validation/blocks.py            print the table
    python validation/blocks.py --write    put it into docs/evidence/kernels.md

Each block is written in JAX, compiled for the GPU without having one, and priced kernel by kernel:
matrix products by measured tables, everything else from the PTX that the compiler wrote. Needs
hespas[gpu]. The published times come from profiling the blocks one by one on two GPU types; the
model has 9 heads of 128, an embedding of 576, sequences of 4096 and a vocabulary of 128256.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import jax
import jax.numpy as jnp

from hespas.base.home import cache_home
from hespas.compile.cache import CompiledCache
from hespas.compile.compiler import compile_program
from hespas.frontend.load import load_source
from hespas.hardware.presets import load_device
from hespas.price.driver import is_kernel
from hespas.price.measured import make
from hespas.price.methods import EstimatorSpec
from hespas.program.kernels import CompiledKernels
from hespas.program.program import Program
from hespas.work.expand import Leaf, expand

PAGE = Path("docs/evidence/kernels.md")
NODES = {"A100": "A100_SXM_40GB", "H100": "H100_80GB"}
TOKENS, HEADS, SIZE, EMBEDDING, HIDDEN, VOCABULARY = 4096, 9, 128, 576, 2016, 128256
_TABLE = re.compile(r"<!-- blocks -->\n.*?<!-- end -->", re.DOTALL)
_FAR = -2.4e38
_BF16, _I32, _PRED = jnp.bfloat16, jnp.int32, jnp.bool_
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A function, the types it takes, and the microseconds published for each GPU type.

    Several figures of one type are of different clusters.
    """

    name: str
    function: Function
    types: tuple[Any, ...]
    published_us: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A block on a GPU type: what was published, what is predicted, in microseconds."""

    block: str
    gpu: str
    published_us: tuple[float, ...]
    predicted_us: float

    @property
    def error(self) -> float:
        """Predicted over the mean of what was published, less one."""
        return self.predicted_us / mean(self.published_us) - 1


def shaped(kind: Any, *shape: int) -> Any:
    """Return the type of an argument."""
    return jax.ShapeDtypeStruct(shape, kind)


def one_hot(tokens: Any) -> Any:
    """Write a row of zeros with a single one for each token."""
    return (tokens[..., None] == jax.lax.iota(_I32, VOCABULARY)).astype(_BF16)


def normed(x: Any, scale: Any) -> Any:
    """Divide by the root of the mean square, in f32."""
    wide = x.astype(jnp.float32)
    root = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
    return (wide * root).astype(_BF16) * scale


def embedding(hot: Any, table: Any, scale: Any) -> tuple[Any, Any]:
    """Look tokens up by a product, and norm."""
    x = jnp.dot(hot, table)
    return x, normed(x, scale)


def heads(x: Any, weight: Any) -> Any:
    """Project to all heads."""
    return jnp.einsum("bse,ehd->bshd", x, weight)


def rotated_heads(x: Any, weight: Any, positions: Any) -> Any:
    """Project to all heads, and rotate by position."""
    projected = heads(x, weight)
    periods = 5e5 ** (2 * jnp.arange(0, SIZE // 2) / SIZE)
    angles = positions[:, :, None, None] / periods
    sine, cosine = jnp.sin(angles).astype(_BF16), jnp.cos(angles).astype(_BF16)
    left, right = jnp.split(projected, 2, -1)
    return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], -1)


def visible(segments: Any) -> Any:
    """Return which keys each query sees: of its own segment, none behind it."""
    row = jax.lax.broadcasted_iota(_I32, (TOKENS, TOKENS), 0)
    column = jax.lax.broadcasted_iota(_I32, (TOKENS, TOKENS), 1)
    same = segments[:, :, None] == segments[:, None, :]
    return jnp.logical_and(same[:, None, None], column <= row)


def heads_and_mask(x: Any, weight: Any, segments: Any) -> tuple[Any, Any]:
    """Project to all heads, and write the mask of every head."""
    return heads(x, weight), jnp.broadcast_to(visible(segments), (1, HEADS, 1, TOKENS, TOKENS))


def attention(query: Any, key: Any, value: Any, segments: Any) -> Any:
    """Attend, with a softmax that is divided after the second product."""
    grouped = jnp.reshape(query, (1, TOKENS, HEADS, 1, SIZE))
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, key)
    masked = jnp.where(visible(segments), scores, _FAR).reshape(1, HEADS, TOKENS, TOKENS)
    powers = jnp.exp(masked - jnp.max(masked, -1, keepdims=True))
    sums = jnp.transpose(jnp.sum(powers, -1, keepdims=True), (0, 2, 1, 3))
    mixed = jnp.einsum("bkgts,bskd->btkgd", powers.reshape(scores.shape), value)
    return mixed.reshape(1, TOKENS, HEADS, SIZE) / sums


def output(mixed: Any, weight: Any, x: Any, scale: Any) -> tuple[Any, Any]:
    """Project back, add the residual, and norm."""
    y = x + jnp.einsum("bshd,hde->bse", mixed, weight)
    return y, normed(y, scale)


def gate(x: Any, weight: Any) -> tuple[Any, Any]:
    """Project to the gate of the MLP."""
    projected = jnp.einsum("bse,ef->bsf", x, weight)
    return projected, jax.nn.silu(projected)


def gated(x: Any, weight: Any, opened: Any) -> tuple[Any, Any]:
    """Project to what is gated."""
    projected = jnp.einsum("bse,ef->bsf", x, weight)
    return projected, opened * projected


def narrowed(x: Any, weight: Any, residual: Any) -> Any:
    """Project back, and add the residual."""
    return jnp.einsum("bsf,fe->bse", x, weight) + residual


_X = shaped(_BF16, 1, TOKENS, EMBEDDING)
_HEADS = shaped(_BF16, 1, TOKENS, HEADS, SIZE)
_TO_HEADS = shaped(_BF16, EMBEDDING, HEADS, SIZE)
_INDICES = shaped(_I32, 1, TOKENS)
_SCALE = shaped(_BF16, EMBEDDING)
_WIDE = shaped(_BF16, 1, TOKENS, HIDDEN)
_WIDEN = shaped(_BF16, EMBEDDING, HIDDEN)
BLOCKS = (
    Block(
        name="one-hot of tokens",
        function=one_hot,
        types=(_INDICES,),
        published_us={"A100": (994.5,), "H100": (691, 630)},
    ),
    Block(
        name="embedding product, norm",
        function=embedding,
        types=(
            shaped(_BF16, 1, TOKENS, VOCABULARY),
            shaped(_BF16, VOCABULARY, EMBEDDING),
            _SCALE,
        ),
        published_us={"A100": (2974,), "H100": (1052, 718)},
    ),
    Block(
        name="attention core, 9 heads",
        function=attention,
        types=(_HEADS, _HEADS, _HEADS, _INDICES),
        published_us={"A100": (9 * 257,), "H100": (9 * 111, 9 * 115)},
    ),
    Block(
        name="value projection, mask of every head",
        function=heads_and_mask,
        types=(_X, _TO_HEADS, _INDICES),
        published_us={"A100": (372,), "H100": (240,)},
    ),
    Block(
        name="key projection, rotation",
        function=rotated_heads,
        types=(_X, _TO_HEADS, _INDICES),
        published_us={"A100": (82.7,), "H100": (27.3,)},
    ),
    Block(
        name="output projection, residual, norm",
        function=output,
        types=(_HEADS, shaped(_BF16, HEADS, SIZE, EMBEDDING), _X, _SCALE),
        published_us={"A100": (67,), "H100": (25,)},
    ),
    Block(name="gate", function=gate, types=(_X, _WIDEN), published_us={"H100": (37.5,)}),
    Block(name="gated", function=gated, types=(_X, _WIDEN, _WIDE), published_us={"H100": (37.5,)}),
    Block(
        name="MLP output, residual",
        function=narrowed,
        types=(_WIDE, shaped(_BF16, HIDDEN, EMBEDDING), _X),
        published_us={"H100": (32,)},
    ),
    Block(
        name="value projection",
        function=heads,
        types=(_X, _TO_HEADS),
        published_us={"H100": (16,)},
    ),
)


def compiled(block: Block, node: str) -> tuple[Program, CompiledKernels]:
    """Return a block as the compiler of a GPU would run it."""
    text = jax.jit(block.function).lower(*block.types).as_text()
    made = compile_program(
        text.encode(),
        name=block.name,
        target=node,
        cache=CompiledCache(directory=cache_home() / "compiled"),
    )
    if made.kernels is None:
        raise SystemExit(f"no kernels of {block.name} for {node}")
    return load_source(made.hlo_proto, name=block.name), made.kernels


def predicted_us(block: Block, node: str) -> float:
    """Return the sum of a block's kernels in microseconds."""
    program, kernels = compiled(block, node)
    estimator = make(EstimatorSpec(device=load_device(node), kernels=kernels))
    leaves = expand(program.main.body.operations, program.functions)
    times = [
        estimator.time(leaf, is_kernel=is_kernel(leaf.op, program)).time_s
        for leaf in leaves
        if isinstance(leaf, Leaf)
    ]
    return 1e6 * sum(times)


def rows() -> list[Row]:
    """Return all blocks on all GPU types that figures were published for."""
    return [
        Row(
            block=block.name,
            gpu=gpu,
            published_us=published,
            predicted_us=predicted_us(block, NODES[gpu]),
        )
        for block in BLOCKS
        for gpu, published in block.published_us.items()
    ]


def table(found: list[Row]) -> str:
    """Return the rows as Markdown, with the mean of the errors without their signs."""
    lines = ["| block | GPU | published, us | predicted, us | error |", "|---|---|---|---|---|"]
    for row in found:
        published = " and ".join(f"{each:g}" for each in row.published_us)
        lines.append(
            f"| {row.block} | {row.gpu} | {published} | {row.predicted_us:.1f} | "
            f"{100 * row.error:+.1f} % |"
        )
    average = mean(abs(row.error) for row in found)
    return "\n".join([*lines, "", f"Mean error, without signs: {100 * average:.1f} %."])


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    made = table(rows())
    if not parser.parse_args().write:
        print(made)
        return
    page = PAGE.read_text()
    PAGE.write_text(_TABLE.sub(lambda _: f"<!-- blocks -->\n{made}\n<!-- end -->", page))


if __name__ == "__main__":
    main()
