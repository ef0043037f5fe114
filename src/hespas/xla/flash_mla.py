"""FlashMLA's kernel for JAX programs: new tokens over a cache of latent vectors, one custom call.

The call has a name of its own, since no library of JAX's has the kernel: a program with it is
priced, and optimised by XLA up to the executable, but does not run. Source of what it takes and
makes: deepseek-ai/FlashMLA, ``flash_mla_with_kvcache``: keys are whole vectors, values their first
numbers, for all heads of the queries.
"""

# JAX's internals are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters.mlir import register_lowering

from hespas.program.attrs import FLASH_MLA
from hespas.xla.flash import call_by_rows


def latent_decoding(query: jax.Array, cache: jax.Array, *, value_size: int) -> jax.Array:
    """Return softmax(query cache^T) times the first ``value_size`` numbers of the cache's vectors.

    ``query`` is (batch, 1, heads, vector), scaled, ``cache`` is (batch, 1, tokens, vector), and the
    result is (batch, 1, heads, ``value_size``).
    """
    return _decoding.bind(query, cache, value_size=value_size)


def _shape(query: Any, _cache: Any, *, value_size: int) -> ShapedArray:
    return ShapedArray((*query.shape[:-1], value_size), query.dtype)


def _lower(ctx: Any, *operands: Any, value_size: int) -> Any:
    del value_size
    return call_by_rows(ctx, FLASH_MLA, operands)


_decoding = Primitive("flash_mla")
_decoding.def_abstract_eval(_shape)
register_lowering(_decoding, _lower, platform="cuda")
