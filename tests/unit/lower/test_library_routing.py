"""What chooses experts is one kernel of a library, and what sorts the choices another."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from hespas.frontend.load import load_source
from hespas.hardware.presets import load_device
from hespas.lower.fused import Writer, fused
from hespas.program.program import Op

EXPERTS, CHOSEN, WIDTH = 128, 8, 256


def _routed(x: Any, router: Any, up: Any) -> Any:
    """Two layers of experts, the second of what the first makes."""
    for layer in range(2):
        logits = (x @ router[layer]).astype(jnp.float32)
        best, chosen = lax.top_k(logits, CHOSEN)
        gates = jax.nn.softmax(best, -1)
        order = jnp.argsort(chosen.reshape(-1), stable=True)
        counts = jnp.bincount(chosen.reshape(-1), length=EXPERTS)
        made = lax.ragged_dot(x[order // CHOSEN], up[layer], counts)
        back = jnp.zeros_like(order).at[order].set(jnp.arange(len(order), dtype=order.dtype))
        by_choice = made[back].reshape(*chosen.shape, -1)
        x = jnp.einsum("tk,tkd->td", gates.astype(x.dtype), by_choice)
    return x


def _kernels(tokens: int, writer: Writer) -> list[Op]:
    shapes = ((tokens, WIDTH), (2, WIDTH, EXPERTS), (2, EXPERTS, WIDTH, WIDTH))
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    text = jax.jit(_routed).lower(*arguments).as_text()
    program = fused(
        load_source(text.encode(), name="routed.mlir"),
        writer=writer,
        device=load_device("H100_80GB"),
    )
    return [op for op in program.main.body.operations if not op.traits.runs_nothing]


def _routing(kernels: list[Op]) -> list[Op]:
    """Return the kernels that compute with indices, or choose."""
    return [
        op
        for op in kernels
        if op.kind in {"sort", "topk", "copy"}
        or (op.kind == "fusion" and {"sort", "topk", "scatter"} & _kinds(op))
    ]


def _kinds(op: Op) -> set[str]:
    return {each.kind for block in op.regions for each in block.operations}


@pytest.mark.parametrize("tokens", [1, 4, 64])
def test_few_tokens_are_routed_in_two_kernels_a_layer(tokens: int) -> None:
    kernels = _routing(_kernels(tokens, Writer.LIBRARY))
    assert len(kernels) == 4
    sorting = [op for op in kernels if "scatter" in _kinds(op)]
    assert len(sorting) == 2
    for op in sorting:
        assert {"sort", "scatter"} <= _kinds(op)
    assert len(_routing(_kernels(tokens, Writer.GPU))) > 6


def test_many_tokens_do_not_fit_one_block_of_threads() -> None:
    few, many = (len(_routing(_kernels(tokens, Writer.LIBRARY))) for tokens in (64, 8192))
    assert many > few


def test_every_operation_is_still_there() -> None:
    program = _kernels(4, Writer.LIBRARY)
    made = {value for op in program for value in op.results}
    assert len({value for op in program for value in op.operands} - made) >= 3
    for number, op in enumerate(program):
        later = {value for each in program[number:] for value in each.results}
        assert later.isdisjoint(op.operands)
