"""Collectives run by themselves where memory is short for what would run beside them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from hespas.compile.options import CompileOptions
from hespas.frontend.load import load_source
from hespas.lower.fused import fused
from hespas.lower.overlap import exceeded_limit
from hespas.memory.usage import memory_use, unpacked_bytes
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
    assert short.overlap is not None
    assert short.overlap.is_given_up
    assert unpacked_bytes(short)[1] <= unpacked_bytes(fused_llama)[1]


def test_within_the_limit_nothing_changes(llama: Program, fused_llama: Program) -> None:
    enough = fused(llama, capacity_bytes=int(1.01 * counted_on(fused_llama)))
    assert enough.overlap is None
    assert beside(enough) == beside(fused_llama)


def test_the_limit_is_that_of_xla(llama: Program, fused_llama: Program) -> None:
    """``GetSchedulerMemoryLimit``: 95 % of what arguments leave of 80 % of the memory."""
    held, temporary = unpacked_bytes(fused_llama)
    capacity = int(0.99 * counted_on(fused_llama))
    limit = exceeded_limit(fused_llama, capacity)
    assert limit is not None
    assert limit.limit_bytes == pytest.approx(0.95 * (0.8 * capacity - held), abs=1)
    assert limit.needed_bytes == temporary
    assert limit.full_factor is not None
    # With it the limit is all that arguments leave.
    filled = limit.full_factor / 100 * (0.8 * capacity - held)
    assert filled == pytest.approx(capacity - held, rel=0.01)
    assert filled <= capacity - held
    alone = exceeded_limit(fused_llama, held)
    assert alone is not None
    assert alone.full_factor is None


def test_a_higher_factor_lets_collectives_run_beside_other_work(
    llama: Program, fused_llama: Program
) -> None:
    capacity = int(0.99 * counted_on(fused_llama))
    more = fused(llama, CompileOptions(memory_limit_slop_factor=100), capacity_bytes=capacity)
    assert more.overlap is None
    assert beside(more) == beside(fused_llama)
    less = fused(llama, CompileOptions(memory_limit_slop_factor=90), capacity_bytes=2 * capacity)
    assert less.overlap is None


def test_the_limit_is_raised_where_the_step_then_fits(llama: Program, fused_llama: Program) -> None:
    raises = CompileOptions(memory_limit_slop_factor="auto")
    enough = int(0.99 * counted_on(fused_llama))
    raised = fused(llama, raises, capacity_bytes=enough)
    assert raised.overlap is not None
    assert not raised.overlap.is_given_up
    assert beside(raised) == beside(fused_llama)
    assert memory_use(raised).peak_bytes <= enough
    too_little = memory_use(fused_llama).peak_bytes - 1
    short = fused(llama, raises, capacity_bytes=too_little)
    assert short.overlap is not None
    assert short.overlap.is_given_up
    assert beside(short) == 0


def test_only_collectives_and_a_known_capacity_can_be_short(fused_llama: Program) -> None:
    assert exceeded_limit(fused_llama, None) is None
    text = main_function(
        f"%r = stablehlo.add %a, %a : {MATRIX} return %r : {MATRIX}",
        arguments=f"%a: {MATRIX}",
        results=MATRIX,
    )
    alone = load_source(text.encode(), name="test.mlir")
    assert exceeded_limit(fused(alone), 1) is None
