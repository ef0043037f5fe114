"""Zeros of the last micro-batch: before the loop, unless gathers or memory want them later."""

from __future__ import annotations

from functools import cache

import pytest

from hespas.frontend.load import load_source
from hespas.lower.fused import fused
from hespas.lower.overlap import with_early_zeros
from hespas.memory.usage import memory_of_operations, memory_use, operation_key, unpacked_bytes
from hespas.program.program import Op, Program
from hespas.program.types import allocated_bytes
from hespas.sources.exported import partitioned
from hespas.sources.function import export_model

OPTIONS = {
    "mesh": "data=2,fsdp=2",
    "batch": "3",
    "accumulation": "3",
    "layers": "4",
    "embedding": "1024",
    "scan": "true",
    "remat": "minimal_with_context",
}


@cache
def program() -> Program:
    """Return a step of three micro-batches with its zeros where they are first needed."""
    text = partitioned(export_model("llama3-100m", OPTIONS)).content
    return fused(load_source(text, name="test.mlir"))


def _holds_loops(op: Op) -> bool:
    return op.kind == "while" and any(each.kind == "while" for each in op.regions[-1].operations)


def around(found: Program) -> Op:
    (loop,) = [op for op in found.main.body.operations if _holds_loops(op)]
    return loop


def late(found: Program) -> list[int]:
    """Return the sizes of the zeros behind the loop over micro-batches."""
    operations = found.main.body.operations
    behind = operations[operations.index(around(found)) :]
    zeros = [op for op in behind if op.kind == "fusion" and not op.operands]
    return [sum(allocated_bytes(value.type) for value in op.results) for op in zeros]


def capacity_bytes(found: Program, *, left_bytes: int) -> int:
    """Return the capacity of which the loop leaves so much."""
    held_bytes, _ = unpacked_bytes(found)
    needed = memory_of_operations(found)[operation_key(around(found))] - held_bytes
    return round(((needed + left_bytes) / 0.95 + held_bytes) / 0.8)


def test_within_a_host_all_are_made_before_the_loop() -> None:
    before = program()
    after = with_early_zeros(before, devices_per_host=4, capacity_bytes=None)
    assert late(before)
    assert not late(after)
    grown = memory_use(after).peak_bytes - memory_use(before).peak_bytes
    assert grown == pytest.approx(sum(late(before)), rel=0.05)
    operations = before.main.body.operations
    assert set(after.main.body.operations) == set(operations)


@pytest.mark.parametrize("devices_per_host", [1, None])
def test_gathers_between_hosts_are_waited_for_with_them(devices_per_host: int | None) -> None:
    after = with_early_zeros(program(), devices_per_host=devices_per_host, capacity_bytes=None)
    assert late(after) == late(program())


def test_the_largest_stay_where_memory_is_short() -> None:
    sizes = late(program())
    capacity = capacity_bytes(program(), left_bytes=sum(sizes) - max(sizes))
    after = with_early_zeros(program(), devices_per_host=4, capacity_bytes=capacity)
    assert 0 < len(late(after)) < len(sizes)
    assert min(late(after)) == max(sizes)


def test_a_step_of_one_batch_stays_as_it_is(fused_llama: Program) -> None:
    after = with_early_zeros(fused_llama, devices_per_host=8, capacity_bytes=None)
    assert after is fused_llama
