"""What a device's memory lets XLA's GPU scheduler run beside collectives.

The scheduler has a limit (`hespas.program.program.OverlapLimit`), and gives up overlap gradually:
compiled for eight H100, nearly all collectives of llama3-8b with 3,584 tokens run beside other work
though the scheduler counts 79.0 GB where its limit is 58.8, and with 3,840 a part of them runs
alone; those of llama3-70b on 256 H100 with 71.0 GB of temporaries all do at limits up to 66.3 GB,
and nearly none at 79.6. So temporaries may exceed the limit by the ratio that they may at the
flag's default: all of what arguments and results leave of 80 % of the memory.

The last turn of a loop over micro-batches is written out behind the loop (`pipelined`), with the
zeros that its layers write what they keep over. These wait for nothing. XLA's latency-hiding
scheduler goes from the last operation to the first, and takes what follows collectives first
(``kAsyncDepth``): zeros come last, and so stand before the loop, whose turns then hold them. It
takes them before that where a gather would be waited for (``kLessStall``): where gathers leave a
host, they take longer than the work beside them, and zeros fill the wait. And it takes them where
the loop would need more than the limit beside them (``kMemoryPeakOverLimit``). Both were read in
its log, of llama3-8b and llama3-70b compiled for 8, 16 and 256 H100.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from hespas.compile.options import SLOP_FACTOR
from hespas.memory.usage import memory_of_operations, operation_key, unpacked_bytes
from hespas.program.attrs import CollectiveAttrs
from hespas.program.groups import ReplicaGroups
from hespas.program.program import (
    Op,
    OverlapLimit,
    Program,
    all_ops,
    counted_bytes,
    full_factor,
    is_communication_op,
    nested_ops,
)
from hespas.program.types import allocated_bytes


def exceeded_limit(
    program: Program, capacity_bytes: int | None, factor: int = SLOP_FACTOR
) -> OverlapLimit | None:
    """Return the scheduler's limit where temporaries need more; None where they don't.

    ``factor`` is that of the limit, in per cent. Programs without collectives have nothing that
    could wait.
    """
    if capacity_bytes is None or not any(map(is_communication_op, all_ops(program))):
        return None
    held_bytes, temporary_bytes = unpacked_bytes(program)
    if has_room(held_bytes, temporary_bytes, capacity_bytes=capacity_bytes, factor=factor):
        return None
    counted = counted_bytes(capacity_bytes, held_bytes)
    return OverlapLimit(
        limit_bytes=max(0, round(factor / 100 * counted)),
        needed_bytes=temporary_bytes,
        factor=factor,
        full_factor=full_factor(capacity_bytes, counted, above=factor),
    )


def has_room(held_bytes: int, temporary_bytes: int, *, capacity_bytes: int, factor: int) -> bool:
    """Return whether the scheduler overlaps collectives of a program with these sizes.

    ``factor`` is that of its limit, in per cent.

    >>> [has_room(20, size, capacity_bytes=80, factor=95) for size in (40, 50)]
    [True, False]
    """
    return temporary_bytes <= factor / SLOP_FACTOR * counted_bytes(capacity_bytes, held_bytes)


def with_early_zeros(
    program: Program,
    *,
    devices_per_host: int | None,
    capacity_bytes: int | None,
    factor: int = SLOP_FACTOR,
) -> Program:
    """Return a scheduled program with a last turn's zeros before its loop.

    They stay where a collective of the loop leaves a host of so many devices, or where hosts are
    not known. Where the loop then needs too much, the largest stay. A device of no known capacity
    has enough. ``factor`` is that of the scheduler's limit, in per cent.
    """
    operations = program.main.body.operations
    around = _last_around(operations)
    if around is None or devices_per_host is None:
        return program
    zeros = [op for op in operations[around + 1 :] if op.kind == "fusion" and not op.operands]
    if not zeros or not _stays(operations[around], devices_per_host):
        return program
    left_bytes = _left_bytes(program, operations[around], capacity_bytes, factor)
    early = set(_fitting(zeros, left_bytes))
    ordered = (
        *operations[:around],
        *(op for op in zeros if op in early),
        *(op for op in operations[around:] if op not in early),
    )
    main = replace(program.main, body=replace(program.main.body, operations=ordered))
    return replace(program, functions={**program.functions, main.name: main})


def _last_around(operations: Sequence[Op]) -> int | None:
    """Return the place of the last loop around loops that communicate."""
    places = [
        place
        for place, op in enumerate(operations)
        if op.kind == "while"
        and any(
            inner.kind == "while" and any(map(is_communication_op, nested_ops(inner.regions[1])))
            for inner in op.regions[1].operations
        )
    ]
    return max(places, default=None)


def _stays(loop: Op, devices_per_host: int) -> bool:
    """Return whether a loop's gathers stay within hosts."""
    return all(
        _is_within(op.attrs.groups, devices_per_host)
        for op in nested_ops(loop.regions[1])
        if op.kind == "all_gather" and isinstance(op.attrs, CollectiveAttrs)
    )


def _is_within(groups: ReplicaGroups, devices_per_host: int) -> bool:
    listed = groups.listed()
    return bool(listed) and all(
        len({number // devices_per_host for number in group}) == 1 for group in listed
    )


def _left_bytes(program: Program, loop: Op, capacity_bytes: int | None, factor: int) -> float:
    """Return what a loop leaves of the scheduler's limit."""
    if capacity_bytes is None:
        return float("inf")
    held_bytes, _ = unpacked_bytes(program)
    limit_bytes = factor / 100 * counted_bytes(capacity_bytes, held_bytes)
    return limit_bytes + held_bytes - memory_of_operations(program)[operation_key(loop)]


def _fitting(zeros: Sequence[Op], left_bytes: float) -> list[Op]:
    """Return the zeros that fit together, the largest left out first."""
    fitting = sorted(zeros, key=_size_bytes)
    while fitting and sum(map(_size_bytes, fitting)) > left_bytes:
        fitting.pop()
    return fitting


def _size_bytes(op: Op) -> int:
    return sum(allocated_bytes(value.type) for value in op.results)
