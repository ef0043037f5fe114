"""The memory of a whole program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hespas.memory.buffers import THROUGHOUT, Buffer
from hespas.memory.life import Homes, argument_buffers, block_life
from hespas.memory.packing import Span, packed_bytes
from hespas.memory.peak import BlockLife, held_buffer, peak_of
from hespas.memory.reuse import Lease, without_reused
from hespas.memory.usage import HeldBuffer, MemoryUse, Role
from hespas.program.program import Function, Program, Value
from hespas.program.rewrite import with_calls_opened
from hespas.program.types import allocated_bytes


def memory_use(program: Program) -> MemoryUse:
    """Return how much memory one device needs for a step of a program.

    Operations run in the order in which they stand, each value in a buffer of its own type and
    size; see `hespas.memory.life` for how long. Constants, a part of the compiled program, are
    not counted, nor, before a compiler was at work, broadcasts, copies and ``iota``. In a program
    that a compiler scheduled, temporaries also use the memory of outputs while that is free, and
    the rest is packed, as XLA's buffer assignment does it.
    """
    main = with_calls_opened(program)
    arguments = argument_buffers(main.body.arguments)
    homes = _homes(program, main, arguments)
    life = block_life(program, main.body, arguments, homes)
    temporaries = list(life.temporaries())
    if program.is_scheduled:
        temporaries = without_reused(temporaries, _outputs(life, homes))
    peak = peak_of(life, temporaries)
    packed = packed_bytes(_spans(life, temporaries)) if program.is_scheduled else 0
    needed = max(packed, peak.size_bytes)
    outputs = [_output(value, number) for number, value in enumerate(main.results)]
    written_over = {alias.result for alias in program.aliases}
    held = (
        *map(held_buffer, arguments),
        *(each for number, each in enumerate(outputs) if number not in written_over),
        *peak.held,
    )
    return MemoryUse(
        argument_bytes=sum(buffer.size_bytes for buffer in arguments),
        output_bytes=sum(each.size_bytes for each in outputs),
        alias_bytes=sum(outputs[number].size_bytes for number in written_over),
        temporary_bytes=needed,
        gap_bytes=needed - peak.size_bytes,
        peak_place=peak.location,
        held=_sorted(each for each in held if each.size_bytes),
    )


def _homes(program: Program, main: Function, arguments: tuple[Buffer, ...]) -> Homes:
    """Return what each returned tensor is written over."""
    first = _first_tensors(main.body.arguments)
    of_result = {alias.result: alias.argument for alias in program.aliases}
    homes: list[Buffer | None] = []
    for number, value in enumerate(main.results):
        count = len(argument_buffers((value,)))
        at = first[of_result[number]] if number in of_result else None
        homes.extend([None] * count if at is None else arguments[at : at + count])
    return homes


def _first_tensors(values: Iterable[Value]) -> list[int]:
    """Return, for each value, how many tensors stand before it."""
    first, before = list[int](), 0
    for value in values:
        first.append(before)
        before += len(argument_buffers((value,)))
    return first


def _outputs(life: BlockLife, homes: Homes) -> list[Lease]:
    """Return when the memory of each output is in use."""
    last = len(life.places) - 1
    leases: list[Lease] = []
    for buffer, home in zip(life.results, homes, strict=True):
        lease = Lease(size_bytes=buffer.size_bytes)
        if home is not None:
            lease.take(THROUGHOUT, home.read_at)
        lease.take(buffer.actual.made_at, last)
        leases.append(lease)
    return leases


def _spans(life: BlockLife, temporaries: Iterable[Buffer]) -> Iterator[Span]:
    """Yield what is to be packed; what an inner block needs at most is one buffer."""
    for buffer in temporaries:
        yield Span(size_bytes=buffer.size_bytes, first=buffer.made_at, last=buffer.held_until)
    for moment, peak in life.inner.items():
        yield Span(size_bytes=peak.size_bytes, first=moment, last=moment)


def _output(value: Value, number: int) -> HeldBuffer:
    return HeldBuffer(
        size_bytes=allocated_bytes(value.type),
        type=str(value.type),
        role=Role.OUTPUT,
        location=f"result {number}",
    )


def _sorted(held: Iterable[HeldBuffer]) -> tuple[HeldBuffer, ...]:
    return tuple(sorted(held, key=lambda each: -each.size_bytes))
