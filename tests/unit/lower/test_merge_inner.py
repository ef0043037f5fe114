"""What only a kernel of several results itself reads is not written."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import jax
import jax.numpy as jnp

from hespas.frontend.load import load_source
from hespas.lower.fused import fused
from hespas.program.program import size_of

SIZE = 4096


def test_rounds_of_random_bits_write_the_two_words_of_their_state() -> None:
    """The word that both are computed from is read by their kernel alone, as XLA compiles it."""

    def drawn() -> jax.Array:
        return jax.random.bits(jax.random.key(0), (SIZE, SIZE), jnp.uint32)

    text = jax.jit(drawn).trace().lower().as_text()
    program = fused(load_source(text.encode(), name="bits.mlir"))
    written = [
        len([value for value in op.results if size_of(value) == SIZE * SIZE])
        for loop in program.main.body.operations
        if loop.kind == "while"
        for op in loop.regions[1].operations
        if op.kind == "fusion"
    ]
    assert max(written) == 2
