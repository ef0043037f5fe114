"""Collectives run by themselves where memory is short for what would run beside them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hespas.frontend.load import load_source
from hespas.fuse.fused import fused
from hespas.fuse.short_memory import SHORT, is_short
from hespas.memory.usage import unpacked_bytes
from hespas.program.program import Program
from programs import main_function

MATRIX = "tensor<256x1024xf32>"


def counted_on(program: Program) -> float:
    """Return the capacity of which the limit is what a program needs."""
    held, temporary = unpacked_bytes(program)
    return (temporary + held) / 0.8


def collectives(program: Program) -> Counter[str]:
    starts = [op for op in program.main.body.operations if op.kind == "async_start"]
    return Counter(op.regions[0].operations[0].kind for op in starts)


def beside(program: Program) -> int:
    """Return how many collectives end later than right after they started."""
    pairs = pairwise(program.main.body.operations)
    return sum(one.kind == "async_start" and two.kind != "async_done" for one, two in pairs)


def test_collectives_run_by_themselves_beyond_the_limit(
    llama: Program, fused_llama: Program
) -> None:
    assert beside(fused_llama) > 0
    short = fused(llama, capacity_bytes=int(0.99 * counted_on(fused_llama)))
    assert beside(short) == 0
    assert collectives(short) == collectives(fused_llama)
    assert short.assumptions[0] == SHORT
    assert unpacked_bytes(short)[1] <= unpacked_bytes(fused_llama)[1]


def test_within_the_limit_nothing_changes(llama: Program, fused_llama: Program) -> None:
    enough = fused(llama, capacity_bytes=int(1.01 * counted_on(fused_llama)))
    assert SHORT not in enough.assumptions
    assert beside(enough) == beside(fused_llama)


def test_only_collectives_and_a_known_capacity_can_be_short(fused_llama: Program) -> None:
    assert not is_short(fused_llama, None)
    text = main_function(
        f"%r = stablehlo.add %a, %a : {MATRIX} return %r : {MATRIX}",
        arguments=f"%a: {MATRIX}",
        results=MATRIX,
    )
    alone = load_source(text.encode(), name="test.mlir")
    assert not is_short(fused(alone), 1)
