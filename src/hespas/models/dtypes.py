"""Element types by the names that programs print."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from hespas.models.model import one_of

_TYPES: dict[str, Any] = {"bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32}


def dtype_named(name: str) -> Any:
    """Return JAX's type for a name; `ConfigError` for another.

    >>> dtype_named("f16").dtype
    dtype('float16')
    """
    return _TYPES[one_of("dtype", name, tuple(_TYPES))]
