"""Loops that multiply a state along a sequence: each is one kernel.

Frameworks run delta rules by kernels in which a block of threads holds the state of one head on
chip, goes through the chunks of the sequence, and writes what it makes of each. A small loop, such
as a search, is one block. Source: fla-org/flash-linear-attention, fla/ops/common/chunk_delta_h.py,
``chunk_gated_delta_rule_fwd_kernel_h``.

State spaces only add up what chunks make of them, in a kernel too (state-spaces/mamba,
mamba_ssm/ops/triton/ssd_state_passing.py). Their loops stay as they are: published steps of
Nemotron 3 are 4 % longer than predicted with them, and 10 % with one kernel in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.lower.loops import handed_on
from hespas.lower.roles import bytes_of
from hespas.program.attrs import DotAttrs, KernelAttrs, WhileAttrs
from hespas.program.operations.traits import Category
from hespas.program.program import Block, Op, tensor_of, values_read
from hespas.program.rewrite import Builder, Pattern
from hespas.program.types import TensorType, size_bytes
from hespas.program.uses import Uses
from hespas.work.expand import expand, total

RECURRENCE = "recurrence"
"""The kind of such a kernel, and its name in reports."""

_MOST_STATE_BYTES = 256 * 1024
"""What a multiprocessor's registers hold; source: NVIDIA, CUDA C++ Programming Guide, table of
compute capabilities: 64 K of 32 bits, from 7.0 on."""
_ONE_BLOCK_BYTES = 48 * 1024
"""The shared memory that a block of threads has without asking."""
_INSIDE = frozenset(
    {
        Category.BROADCAST,
        Category.CREATION,
        Category.ELEMENTWISE,
        Category.MOVEMENT,
        Category.REDUCTION,
        Category.STRUCTURE,
        Category.UPDATE,
    }
)


@frozen
class _Carried:
    """The arguments of a loop's body, and what turns make of them.

    It changes whole ``states`` and parts of ``stacks``, counts ``counters``, and hands on the rest.
    """

    states: tuple[int, ...]
    stacks: tuple[int, ...]
    handed_on: tuple[int, ...]
    counters: tuple[int, ...]


def _as_kernel(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return the kernel of a loop that carries states."""
    turns = op.attrs.trip_count if isinstance(op.attrs, WhileAttrs) else None
    if turns is None or turns < 2:
        return None
    carried = _carried(op)
    blocks = _blocks(op.regions[1], carried)
    if not blocks or any(uses.readers(op.results[place]) for place in carried.counters):
        return None
    read = [op.operands[place] for place in (*carried.states, *carried.handed_on)]
    read.extend(values_read(op)[len(op.operands) :])
    written = [op.results[place] for place in (*carried.states, *carried.stacks)]
    kernel = replace(
        op,
        kind=RECURRENCE,
        attrs=KernelAttrs(
            bytes_read=sum(map(bytes_of, read)),
            bytes_written=sum(map(bytes_of, written)),
            label=RECURRENCE,
            flops=tuple(total(expand(op)).flops),
            rounds=turns,
            blocks=blocks,
        ),
        operands=tuple(read),
        results=tuple(written),
        regions=(),
    )
    build = Builder(op)
    operations = [kernel]
    for place in carried.handed_on:
        if uses.readers(op.results[place]):
            operations.extend(build.making(op.results[place], op.operands[place]))
    return operations


RECURRENCES = Pattern(kinds=("while",), change=_as_kernel)


def _carried(loop: Op) -> _Carried:
    body = loop.regions[1]
    makers = {value: op for op in body.operations for value in op.results}
    invariant = tuple(place for place, _ in handed_on(loop))
    states, stacks, counters = list[int](), list[int](), list[int]()
    for place, value in enumerate(body.operations[-1].operands):
        maker = makers.get(value)
        if place in invariant:
            continue
        if isinstance(value.type, TensorType) and value.type.rank == 0:
            counters.append(place)
        elif maker is not None and maker.kind == "dynamic_update_slice":
            stacks.append(place)
        else:
            states.append(place)
    return _Carried(
        states=tuple(states), stacks=tuple(stacks), handed_on=invariant, counters=tuple(counters)
    )


def _blocks(body: Block, carried: _Carried) -> int:
    """Return how many states a loop carries; 0 without any.

    A multiprocessor holds each, a matrix, and every product is of as many. A loop without products
    has no more than one block of threads holds.
    """
    shapes = {tensor_of(body.arguments[place]).shape[:-2] for place in carried.states}
    if len(shapes) != 1:
        return 0
    blocks = prod(shapes.pop())
    state_bytes = sum(bytes_of(body.arguments[place]) for place in carried.states)
    if state_bytes > blocks * _MOST_STATE_BYTES:
        return 0
    multiplies = any(isinstance(op.attrs, DotAttrs) for op in body.operations)
    if not multiplies and state_bytes > _ONE_BLOCK_BYTES:
        return 0
    fits = all(_fits(op, blocks) for op in body.operations)
    return blocks if fits else 0


def _fits(op: Op, blocks: int) -> bool:
    if isinstance(op.attrs, DotAttrs):
        lhs = tensor_of(op.operands[0])
        shared = prod(lhs.shape[axis] for axis in op.attrs.lhs_batching)
        parts = [size_bytes(tensor_of(value)) for value in (*op.operands, *op.results)]
        return shared == blocks and max(parts) <= blocks * _MOST_STATE_BYTES
    return op.traits.category in _INSIDE
