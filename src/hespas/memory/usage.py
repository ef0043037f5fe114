"""Compute a program's use of device and host memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import lru_cache
from itertools import accumulate, chain

from hespas.base.frozen import frozen
from hespas.memory.allocation import OutputMemory, outside_outputs, packed_bytes, spans_of
from hespas.memory.buffers import THROUGHOUT, Buffer, HeldBuffer, Role, argument_buffers
from hespas.memory.liveness import (
    NOTHING,
    BlockLiveness,
    Destinations,
    block_liveness,
    levels_of,
    peak_of,
)
from hespas.program.program import (
    Alias,
    Block,
    Function,
    Op,
    Program,
    Recorded,
    Value,
    all_ops,
    values_read,
)
from hespas.program.rewrite import with_calls_opened
from hespas.program.scopes import Phase
from hespas.program.types import DEVICE_MEMORY, HOST_MEMORY, tensors


@frozen
class MemoryUse:
    """A step's memory in bytes, on a device or its host.

    ``alias_bytes`` of the outputs are written over arguments. ``temporary_bytes`` is the memory of
    temporaries, ``gap_bytes`` of it unused gaps between them. ``peak_location`` is the operation
    that runs when they take most, empty without temporaries. ``held`` are the buffers that are live
    at that moment, the largest first. In a recorded program, gaps are the memory that the allocator
    reserves beyond live blocks. ``host`` is the use of host memory for one device; None if the
    program uses none, and in the host's own record.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temporary_bytes: int
    gap_bytes: int
    peak_location: str
    held: tuple[HeldBuffer, ...]
    host: MemoryUse | None = None

    @property
    def host_bytes(self) -> int:
        """The memory of the host that the step needs for one device."""
        return 0 if self.host is None else self.host.peak_bytes

    @property
    def live_bytes(self) -> int:
        """The live memory at the peak: all of it without the gaps."""
        return self.peak_bytes - self.gap_bytes

    @property
    def peak_bytes(self) -> int:
        """The step's memory: arguments + outputs - aliases + temporaries."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temporary_bytes


@frozen
class Settled:
    """A program's main function with the buffers that own memory.

    ``held_bytes`` are those of arguments and outputs, which are held throughout; ``temporaries``
    the buffers outside of the memory of outputs.
    """

    main: Function
    liveness: BlockLiveness
    temporaries: tuple[Buffer, ...]
    arguments: tuple[Buffer, ...]
    outputs: tuple[HeldBuffer, ...]
    alias_bytes: int

    @property
    def held_bytes(self) -> int:
        """The bytes of arguments and outputs."""
        argument_bytes = sum(buffer.size_bytes for buffer in self.arguments)
        return argument_bytes + sum(output.size_bytes for output in self.outputs) - self.alias_bytes


@frozen
class _BufferInputs:
    """The parts of a program that decide its buffers."""

    functions: tuple[Function, ...]
    aliases: tuple[Alias, ...]
    is_scheduled: bool
    program: Program = field(compare=False, repr=False)


def settled(program: Program, *, space: int = DEVICE_MEMORY) -> Settled:
    """Return the buffers of a program outside of the memory of outputs.

    Buffers outside of ``space``, a number of `hespas.program.types.TensorType`, have no size.
    """
    inputs = _BufferInputs(
        functions=tuple(program.functions.values()),
        aliases=tuple(program.aliases),
        is_scheduled=program.is_scheduled,
        program=program,
    )
    return _settled(inputs, space)


@lru_cache(maxsize=4)
def _settled(inputs: _BufferInputs, space: int) -> Settled:
    program = inputs.program
    main = with_calls_opened(program)
    arguments = argument_buffers(main.body.arguments, space=space)
    destinations = _destinations(program, main, arguments)
    liveness = block_liveness(program, main.body, arguments, destinations, space=space)
    temporaries = list(liveness.temporaries())
    if program.is_scheduled:
        temporaries = outside_outputs(temporaries, _output_memories(liveness, destinations))
    outputs = tuple([_output(value, number, space) for number, value in enumerate(main.results)])
    written_over = {alias.result for alias in program.aliases}
    return Settled(
        main=main,
        liveness=liveness,
        temporaries=tuple(temporaries),
        arguments=arguments,
        outputs=outputs,
        alias_bytes=sum(outputs[number].size_bytes for number in written_over),
    )


def memory_use(program: Program) -> MemoryUse:
    """Return the memory that a device needs for a step.

    Operations run in the order in which they stand, each value in a buffer of its own type and
    size; `hespas.memory.liveness` determines how long. Constants, which are part of the compiled
    program, are not counted, nor, before compilation, broadcasts, copies and ``iota``. In a program
    that a compiler scheduled, temporaries also use the memory of outputs while that is free, and
    the others are packed, as in XLA's buffer assignment. Host memory is counted apart, in the same
    way. For a recorded program, the framework's own storages count, and everything that its
    allocator reserves for them.
    """
    if program.recorded is not None and program.recorded.storages:
        return _recorded_use(program, program.recorded)
    host = _memory_use(program, HOST_MEMORY) if _uses_host(program) else None
    return replace(_memory_use(program, DEVICE_MEMORY), host=host)


def _recorded_use(program: Program, recorded: Recorded) -> MemoryUse:
    from hespas.memory.caching import allocator_use, rounded  # noqa: PLC0415 - few are recorded

    storages = recorded.storages
    use = allocator_use(storages, is_expandable=recorded.has_expandable_segments)
    argument_bytes = sum(
        rounded(storage.size_bytes) for storage in storages if storage.allocated is None
    )
    live_buffers = [
        HeldBuffer(
            size_bytes=rounded(storages[number].size_bytes),
            type=storages[number].name,
            role=storages[number].role or Role.TEMPORARY,
            location=storages[number].scope,
        )
        for number in use.live
    ]
    operations = program.main.body.operations
    operation_at_peak = max(0, min(use.position, len(operations) - 1))
    return MemoryUse(
        argument_bytes=argument_bytes,
        output_bytes=0,
        alias_bytes=0,
        temporary_bytes=use.reserved_bytes - argument_bytes,
        gap_bytes=use.reserved_bytes - use.live_bytes,
        peak_location=operations[operation_at_peak].place if use.position >= 0 else "",
        held=tuple(sorted(live_buffers, key=lambda buffer: -buffer.size_bytes)),
    )


def unpacked_bytes(program: Program) -> tuple[int, int]:
    """Return the bytes held throughout, and the temporaries' at the peak."""
    state = settled(program)
    return state.held_bytes, peak_of(state.liveness, state.temporaries).size_bytes


def _uses_host(program: Program) -> bool:
    arguments = (
        value for function in program.functions.values() for value in function.body.arguments
    )
    results = (value for op in all_ops(program) for value in op.results)
    return any(
        tensor.memory_space == HOST_MEMORY
        for kind in dict.fromkeys(value.type for value in chain(arguments, results))
        for tensor in tensors(kind)
    )


def _memory_use(program: Program, space: int) -> MemoryUse:
    state = settled(program, space=space)
    peak = peak_of(state.liveness, state.temporaries)
    spans = spans_of(state.liveness, state.temporaries)
    needed = max(packed_bytes(spans) if program.is_scheduled else 0, peak.size_bytes)
    written_over = {alias.result for alias in program.aliases}
    buffers = (
        *(buffer.held for buffer in state.arguments),
        *(output for number, output in enumerate(state.outputs) if number not in written_over),
        *peak.held,
    )
    sized = [buffer for buffer in buffers if buffer.size_bytes]
    return MemoryUse(
        argument_bytes=sum(buffer.size_bytes for buffer in state.arguments),
        output_bytes=sum(output.size_bytes for output in state.outputs),
        alias_bytes=state.alias_bytes,
        temporary_bytes=needed,
        gap_bytes=needed - peak.size_bytes,
        peak_location=peak.location,
        held=tuple(sorted(sized, key=lambda buffer: -buffer.size_bytes)),
    )


def _destinations(program: Program, main: Function, arguments: tuple[Buffer, ...]) -> Destinations:
    counts = [len(tensors(value.type)) for value in main.body.arguments]
    of_result = {alias.result: alias.argument for alias in program.aliases}
    destinations: list[Buffer | None] = []
    for number, value in enumerate(main.results):
        count = len(tensors(value.type))
        if number in of_result:
            first = sum(counts[: of_result[number]])
            destinations.extend(arguments[first : first + count])
        else:
            destinations.extend([None] * count)
    return destinations


def _output_memories(liveness: BlockLiveness, destinations: Destinations) -> list[OutputMemory]:
    last = len(liveness.operations) - 1
    memories: list[OutputMemory] = []
    overwritten: dict[Buffer, set[Buffer]] = {}
    for operand, result in liveness.overwritten:
        overwritten.setdefault(result, set()).add(operand)
    for buffer, destination in zip(liveness.results, destinations, strict=True):
        over = frozenset(overwritten.get(buffer, ()))
        written_at = buffer.actual.written_at
        memory = OutputMemory(size_bytes=buffer.size_bytes, written_at=written_at, overwritten=over)
        if destination is not None:
            memory.use(THROUGHOUT, destination.read_at)
        memory.use(written_at, last)
        memories.append(memory)
    return memories


def _output(value: Value, number: int, space: int) -> HeldBuffer:
    return HeldBuffer(
        size_bytes=sum(
            tensor.allocated_bytes for tensor in tensors(value.type) if tensor.memory_space == space
        ),
        type=str(value.type),
        role=Role.OUTPUT,
        location=f"result {number}",
    )


def operation_key(op: Op) -> Hashable:
    """Return an operation's name, or the operation if it has no name."""
    return op.instruction or op


def memory_of_operations(program: Program) -> Mapping[Hashable, int]:
    """Return the memory in use during each scheduled operation.

    Arguments and outputs are held throughout. The largest value is
    `hespas.memory.usage.MemoryUse.peak_bytes` without the gaps between buffers. A program that no
    compiler scheduled gives nothing: its order isn't that of a device.
    """
    if not program.is_scheduled:
        return {}
    if program.recorded is not None and program.recorded.storages:
        from hespas.memory.caching import live_levels  # noqa: PLC0415 - few are recorded

        operations = program.main.body.operations
        levels = live_levels(program.recorded.storages, len(operations))
        return {operation_key(op): level for op, level in zip(operations, levels, strict=True)}
    state = settled(program)
    main = state.main.body
    return dict(_use_by_operation(main, state.liveness, state.temporaries, state.held_bytes))


def _use_by_operation(
    block: Block, liveness: BlockLiveness, temporaries: Iterable[Buffer], outer_bytes: int
) -> Iterator[tuple[Hashable, int]]:
    """Yield each operation's memory, in regions too."""
    for moment, level in enumerate(levels_of(liveness, temporaries)):
        op, live_bytes = block.operations[moment], outer_bytes + level
        yield operation_key(op), live_bytes + liveness.inner.get(moment, NOTHING).size_bytes
        if moment in liveness.regions:
            for region, inner in zip(op.regions, liveness.regions[moment].blocks, strict=True):
                yield from _use_by_operation(region, inner, inner.temporaries(), live_bytes)


_LATER = frozenset({Phase.BACKWARD, Phase.RECOMPUTATION})


def held_between(
    program: Program, phase_of: Callable[[Op], Phase | None], *, space: int
) -> tuple[int, int]:
    """Return what forward holds for backward, and the peak of temporaries.

    Both are bytes in a memory space: the device's, or the host's. The first is the largest sum, at
    any moment, of buffers that the forward pass writes and the backward pass reads last. Operations
    of no phase belong to the pass that they serve.

    Compilers mix the passes: a part of the weights that the backward pass reads is cut out, and a
    stack of zeros that it adds to is made, while the forward pass still runs. So there is no moment
    between them, and buffers are told apart by the passes that write them and read them last.
    """
    state = settled(program, space=space)
    owned = list(state.liveness.temporaries())
    operations = state.main.body.operations
    later = _backward_operations(operations, phase_of)
    serving = _serving_operations(operations, later)
    passed = later | serving
    end = max((moment for moment, op in enumerate(operations[:-1]) if op not in passed), default=0)

    def is_read_later(buffer: Buffer) -> bool:
        op = operations[buffer.read_at]
        return op in later or (
            op in serving and buffer.read_at > end and not _changes_space(op, space)
        )

    written: dict[Buffer, int] = {}
    for buffer in state.liveness.written:
        if operations[buffer.written_at] not in later:
            written.setdefault(buffer.actual, buffer.written_at)
    change = [0] * (len(operations) + 1)
    for buffer in owned:
        if buffer in written and is_read_later(buffer):
            change[written[buffer]] += buffer.size_bytes
            change[buffer.held_until] -= buffer.size_bytes
    return max(accumulate(change)), peak_of(state.liveness, owned).size_bytes


def _changes_space(op: Op, space: int) -> bool:
    results = [tensor for value in op.results for tensor in tensors(value.type)]
    return any(tensor.memory_space != space for tensor in results)


def _backward_operations(
    operations: tuple[Op, ...], phase_of: Callable[[Op], Phase | None]
) -> set[Op]:
    later: set[Op] = set()
    produced: set[Value] = set()
    forward = {op for op in operations if phase_of(op) is Phase.FORWARD}
    for op in operations[:-1]:
        needs_later = op not in forward and not produced.isdisjoint(values_read(op))
        if needs_later or phase_of(op) in _LATER:
            later.add(op)
            produced.update(op.results)
    return later | (_serving_operations(operations, later) - forward)


def _serving_operations(operations: tuple[Op, ...], later: set[Op]) -> set[Op]:
    """Return the other operations whose results only the backward pass needs."""
    serving: set[Op] = set()
    elsewhere: set[Value] = set()
    for op in reversed(operations):
        if op in later:
            continue
        if op.results and elsewhere.isdisjoint(op.results):
            serving.add(op)
        else:
            elsewhere.update(values_read(op))
    return serving
