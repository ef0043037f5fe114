"""Kernels of TPUs that tests write with Pallas, lowered without a TPU."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from hespas.frontend.load import load_per_device, load_source
from hespas.program.attrs import MOSAIC, CustomCallAttrs
from hespas.program.program import Op, Program, all_ops
from hespas.work.mosaic.kernel import KernelLoad, kernel_load


def shape(*sizes: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    """Return an array's shape and type."""
    return jax.ShapeDtypeStruct(sizes, dtype)


def lowered(function: Callable[..., Any], *arguments: jax.ShapeDtypeStruct) -> Program:
    """Return the program that JAX makes of a function for a TPU."""
    made = jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",))
    return load_source(made.as_text().encode(), name="test")


def kernels(program: Program) -> list[Op]:
    """Return the calls of kernels, in order."""
    return [
        op
        for op in all_ops(program)
        if isinstance(op.attrs, CustomCallAttrs) and op.attrs.target == MOSAIC
    ]


def loads(function: Callable[..., Any], *arguments: jax.ShapeDtypeStruct) -> list[KernelLoad]:
    """Return what the kernels of a function do."""
    return [kernel_load(op) for op in kernels(lowered(function, *arguments))]


def matmul(
    m: int, n: int, k: int, *, blocks: tuple[int, int, int], parallel: bool = False
) -> Callable[..., Any]:
    """Return a matrix product by blocks, the shared dimension innermost, with a scratch sum."""
    block_m, block_n, block_k = blocks

    def kernel(x, y, out, acc):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc[...] = jnp.zeros_like(acc)

        acc[...] += jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out[...] = acc[...].astype(out.dtype)

    semantics = ("parallel" if parallel else "arbitrary", "arbitrary", "arbitrary")
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(m, block_m), pl.cdiv(n, block_n), pl.cdiv(k, block_k)),
        in_specs=[
            pl.BlockSpec((block_m, block_k), lambda i, _, s: (i, s)),
            pl.BlockSpec((block_k, block_n), lambda _, j, s: (s, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j, _: (i, j)),
        out_shape=shape(m, n),
        scratch_shapes=[pltpu.VMEM((block_m, block_n), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
    )


def splash_attention(
    length: int, heads: int, *, is_causal: bool, block: int = 128
) -> Callable[..., Any]:
    """Return splash attention over (heads, length, head size), which JAX ships."""
    mask = masks.CausalMask((length, length)) if is_causal else masks.FullMask((length, length))
    sizes = splash.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    return splash.make_splash_mha(
        masks.MultiHeadMask([mask] * heads), block_sizes=sizes, head_shards=1, q_seq_shards=1
    )


def divided_attention(
    length: int, devices: int, rows: Sequence[int], *, window: int | None = None
) -> Program:
    """Return splash attention whose queries are divided over devices, as one of them runs it.

    ``rows`` is the order that the queries stand in; each sees the keys up to its own position, or
    the ``window`` last of them.
    """
    queries, keys = np.array(rows)[:, None], np.arange(length)[None, :]
    seen = (queries >= keys) & (queries - keys < (window or length))
    mesh = AbstractMesh((devices,), ("context",))
    kernel = splash.make_splash_mha(
        masks.MultiHeadMask([masks.NumpyMask(seen)]),
        block_sizes=splash.BlockSizes(block_q=128, block_kv=128, block_kv_compute=128),
        head_shards=1,
        q_seq_shards=devices,
    )
    divided = PartitionSpec(None, "context")
    tables = kernel.manual_sharding_spec(NamedSharding(mesh, divided))
    whole = PartitionSpec()
    step = jax.shard_map(
        lambda kernel, *qkv: kernel(*qkv),
        mesh=mesh,
        in_specs=(tables, divided, whole, whole),
        out_specs=divided,
        check_vma=False,
    )
    traced = jax.jit(lambda *qkv: step(kernel, *qkv)).trace(*(shape(1, length, 128),) * 3)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    # JAX counts no devices where a mesh is abstract.
    counted = text.replace("mhlo.num_partitions = 1", f"mhlo.num_partitions = {devices}")
    return load_per_device(counted.encode(), name="test").program


def flash_attention(*, is_causal: bool) -> Callable[..., Any]:
    """Return flash attention over (batch, heads, length, head size), which JAX ships."""
    return lambda q, k, v: flash.flash_attention(q, k, v, causal=is_causal)


def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the gradients of the sum of a function of three arrays."""
    return jax.grad(lambda *of: function(*of).astype(jnp.float32).sum(), argnums=(0, 1, 2))


def grouped_matmul() -> Callable[..., Any]:
    """Return the product of each group of rows with a matrix of its own (megablox)."""
    return gmm


def decode_attention(pages: int) -> Callable[..., Any]:
    """Return attention of one query over a paged cache, some pages at a time."""
    return lambda q, k, v, lengths, table: paged_attention(
        q, k, v, lengths, table, pages_per_compute_block=pages
    )


def copied_by_hand(chunks: int) -> Callable[..., Any]:
    """Return twice an array of chunks of (8, 128), each copied in and out by the kernel."""

    def kernel(x, out, chunk, arrived):
        def one(at, _):
            copy_in = pltpu.make_async_copy(x.at[pl.ds(at * 8, 8)], chunk, arrived)
            copy_in.start()
            copy_in.wait()
            chunk[...] = chunk[...] * 2
            copy_out = pltpu.make_async_copy(chunk, out.at[pl.ds(at * 8, 8)], arrived)
            copy_out.start()
            copy_out.wait()

        jax.lax.fori_loop(0, chunks, one, None)

    return pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=shape(chunks * 8, 128, dtype=jnp.float32),
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA],
    )


def doubled_until(*, known: bool) -> Callable[..., Any]:
    """Return an array that is doubled as often as a number says, or five times."""

    def kernel(times, x, out):
        end = 5 if known else times[0]
        out[...] = jax.lax.fori_loop(0, end, lambda _, value: value * 2, x[...])

    return pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)],
        out_shape=shape(8, 128, dtype=jnp.float32),
    )
