"""Compute the liveness of a block's buffers and the peak memory.

Operations run in the order in which they stand. A temporary is live from the operation that writes
it to the last one that reads it; if that one works in place, its result uses the same memory. A
value that a block returns has a destination outside of the block: an output of the program, or the
value that a loop carries into its next iteration. The memory of a carried value is free for other
buffers from when the old value is read last until the new one is written; a value that no iteration
changes is never copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from hespas.base.frozen import frozen
from hespas.errors import ProgramError
from hespas.memory.buffers import (
    CONSTANTS,
    FOLDED_CONSTANTS,
    FOLDED_VIEWS,
    REDUCED,
    VIEWS,
    Buffer,
    Buffers,
    HeldBuffer,
    Leaves,
    Pairs,
    Role,
    always_in_place,
    argument_buffers,
    new_buffers,
    perhaps_in_place,
    started_in_place,
)
from hespas.program.attrs import CallAttrs, WhileAttrs
from hespas.program.operations.traits import Category
from hespas.program.program import Block, Op, Program, Value, values_read
from hespas.program.types import tensors


@frozen
class Peak:
    """The peak of temporaries: its operation and live buffers."""

    size_bytes: int
    location: str
    held: tuple[HeldBuffer, ...]


NOTHING = Peak(size_bytes=0, location="", held=())


@frozen
class BlockLiveness:
    """A block's buffers, and the peaks inside it.

    A moment is the position of an operation, the return being the last; ``operations`` names them.
    ``inner`` maps a moment to the peak of the operation's regions, and ``regions`` to the regions'
    liveness. ``carried`` pairs each value that a loop carries in with the one that it hands on;
    ``replaced`` are those of them whose memory is free after the old value is read last.
    ``overwritten`` pairs operands with returned results that may be written in the operands'
    memory.
    """

    results: Buffers
    written: Buffers
    inner: dict[int, Peak]
    regions: dict[int, Inside]
    operations: tuple[str, ...]
    overwritten: tuple[tuple[Buffer, Buffer], ...] = ()
    carried: tuple[tuple[Buffer, Buffer], ...] = ()
    replaced: tuple[tuple[Buffer, Buffer], ...] = ()

    def temporaries(self) -> Iterator[Buffer]:
        """Yield the temporaries that have memory of their own."""
        return (
            buffer
            for buffer in self.written
            if buffer.merged_into is None and buffer.role is Role.TEMPORARY
        )


@frozen
class Inside:
    """A loop's or branch's regions, and the buffers passed in."""

    blocks: tuple[BlockLiveness, ...]
    inputs: Buffers


def levels_of(liveness: BlockLiveness, temporaries: Iterable[Buffer]) -> list[int]:
    """Return the bytes of temporaries at each moment, without inner blocks."""
    change = [0] * (len(liveness.operations) + 1)
    for buffer in temporaries:
        change[buffer.written_at] += buffer.size_bytes
        change[buffer.held_until + 1] -= buffer.size_bytes
    for old, new in liveness.replaced:
        change[old.read_at + 1] -= old.size_bytes
        change[new.written_at] += old.size_bytes
    return list(accumulate(change[:-1]))


def peak_of(liveness: BlockLiveness, temporaries: Iterable[Buffer]) -> Peak:
    """Return the first moment that needs most memory."""
    owned = list(temporaries)
    needed = [
        live + liveness.inner.get(moment, NOTHING).size_bytes
        for moment, live in enumerate(levels_of(liveness, owned))
    ]
    peak_bytes = max(needed, default=0)
    if peak_bytes <= 0:
        return NOTHING
    moment_of_peak = needed.index(peak_bytes)
    inner = liveness.inner.get(moment_of_peak, NOTHING)
    live_buffers = [
        buffer.held for buffer in owned if buffer.written_at <= moment_of_peak <= buffer.held_until
    ]
    return Peak(
        size_bytes=peak_bytes,
        location=inner.location or liveness.operations[moment_of_peak],
        held=(*live_buffers, *inner.held),
    )


Destinations = Sequence[Buffer | None]
"""For each returned tensor, the argument in whose memory it goes, if any."""


def block_liveness(
    program: Program, block: Block, arguments: Buffers, destinations: Destinations, *, space: int
) -> BlockLiveness:
    """Return how long the buffers of a block are live.

    ``arguments`` are the buffers of the block's arguments, one for each tensor in them. Raises
    `ProgramError` for an asynchronous operation that starts nothing.
    """
    walk = _Walk(program=program, space=space)
    walk.bind(block.arguments, arguments)
    last = len(block.operations) - 1
    for moment, op in enumerate(block.operations):
        walk.op(op, moment)
    returned = walk.buffers_of(block.operations[-1].operands)
    donated = {argument for argument in destinations if argument is not None}
    returned_buffers = frozenset(returned)
    optional_reuses: list[_Reuse] = []
    for reuse in walk.reuses:
        if reuse.must or not (program.is_scheduled and reuse.result in returned_buffers):
            reuse.merge(donated)
        else:
            optional_reuses.append(reuse)
    for buffer, destination in zip(returned, destinations, strict=True):
        _mark_output(buffer.actual, destination, last)
    return BlockLiveness(
        results=returned,
        written=tuple(walk.written),
        inner=walk.inner,
        regions=walk.regions,
        overwritten=tuple(
            (reuse.operand.actual, reuse.result) for reuse in optional_reuses if reuse.fits
        ),
        operations=tuple([_location(op) for op in block.operations]),
    )


def _location(op: Op) -> str:
    if not op.instruction:
        return op.location
    return f"{op.place}: {op.instruction}" if op.place else op.instruction


def _mark_output(buffer: Buffer, destination: Buffer | None, last: int) -> None:
    """Make a returned buffer an output if its destination allows."""
    if buffer.role is not Role.TEMPORARY:
        return
    buffer.held_until = last
    if destination is None or buffer.written_at >= destination.read_at:
        buffer.role = Role.OUTPUT


@frozen
class _Reuse:
    """An operation that may write its result into an operand's memory.

    It may only if nothing reads the operand later. XLA does so where it ``must``. It may also do so
    in the memory of an output, and elsewhere if the operation reads the ``whole`` result of another
    one, unchanged.
    """

    operand: Buffer
    result: Buffer
    moment: int
    must: bool
    is_whole: bool

    @property
    def fits(self) -> bool:
        """Whether nothing reads the operand later, and the result is as large."""
        operand = self.operand.actual
        return operand.size_bytes == self.result.size_bytes and operand.read_at == self.moment

    def merge(self, donated: set[Buffer]) -> None:
        """Merge the two buffers if possible; of arguments only ``donated`` ones."""
        operand, result = self.operand.actual, self.result
        may_overwrite = self.is_whole and (operand.role is Role.TEMPORARY or operand in donated)
        if not (may_overwrite and self.fits) or result.merged_into is not None:
            return
        result.merged_into = operand
        operand.read_at = result.read_at
        operand.held_until = max(operand.held_until, result.held_until)


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One pass over a block.

    ``in_flight`` maps the bundle of an asynchronous operation to the buffers that it works on;
    ``single`` holds the values that are the only result of their operation.
    """

    program: Program
    space: int
    leaves: Leaves = field(default_factory=Leaves)
    written: list[Buffer] = field(default_factory=list[Buffer])
    inner: dict[int, Peak] = field(default_factory=dict[int, Peak])
    regions: dict[int, Inside] = field(default_factory=dict[int, Inside])
    reuses: list[_Reuse] = field(default_factory=list[_Reuse])
    in_flight: dict[Value, Buffers] = field(default_factory=dict[Value, Buffers])
    single: set[Value] = field(default_factory=set[Value])

    def bind(self, values: Iterable[Value], buffers: Sequence[Buffer]) -> None:
        remaining = iter(buffers)
        for value in values:
            self.leaves[value] = tuple([next(remaining) for _ in tensors(value.type)])

    def buffers_of(self, values: Iterable[Value]) -> Buffers:
        return tuple([buffer for value in values for buffer in self.leaves[value]])

    def op(self, op: Op, moment: int) -> None:
        for value in op.operands:
            if value not in self.leaves:
                # A value from outside of the block is live throughout.
                self.leaves[value] = argument_buffers((value,), space=self.space)
        is_scheduled = self.program.is_scheduled
        view = (VIEWS if is_scheduled else FOLDED_VIEWS).get(op.kind)
        if view is not None:
            self.leaves.update(zip(op.results, view(op, self.leaves), strict=True))
            return
        for value in values_read(op):
            for buffer in self.leaves.get(value, ()):
                buffer.read_at = moment
                buffer.held_until = max(buffer.held_until, moment)
        match op.kind:
            case "async_start":
                self._start(op, moment)
            case "async_update" | "async_done":
                self._continue(op, moment)
            case kind if kind in (CONSTANTS if is_scheduled else FOLDED_CONSTANTS):
                self.leaves[op.results[0]] = argument_buffers(op.results, space=self.space)
            case _:
                self._write(op, moment)

    def _write(self, op: Op, moment: int) -> None:
        self._allocate(op, op.results, moment)
        self._reuse(always_in_place(op), op.operands, op.results, moment)
        self._reuse(perhaps_in_place(op), op.operands, op.results, moment, must=False)
        is_scheduled = self.program.is_scheduled
        if not is_scheduled and op.kind in REDUCED:
            self._reuse(started_in_place(op), op.operands, op.results, moment)
        if len(op.results) == 1:
            self.single.add(op.results[0])
        if op.traits.category is not Category.CONTROL:
            return
        if isinstance(op.attrs, WhileAttrs):
            self._alias_unchanged(op)
        elif is_scheduled:
            self._share_passed_values(op, moment)
        blocks = tuple([self._region_liveness(op, number) for number in range(len(op.regions))])
        peaks = [peak_of(block, block.temporaries()) for block in blocks]
        self.inner[moment] = max(peaks, key=lambda peak: peak.size_bytes)
        self.regions[moment] = Inside(blocks=blocks, inputs=self.buffers_of(op.operands))

    def _region_liveness(self, op: Op, number: int) -> BlockLiveness:
        block = op.regions[number]
        arguments = argument_buffers(block.arguments, space=self.space)
        carries = isinstance(op.attrs, WhileAttrs) and number == 1
        returned_count = sum(len(tensors(value.type)) for value in block.operations[-1].operands)
        destinations: Destinations = arguments if carries else [None] * returned_count
        liveness = block_liveness(self.program, block, arguments, destinations, space=self.space)
        if not carries:
            return liveness
        carried = tuple(zip(arguments, liveness.results, strict=True))
        # Carried values that an iteration reads for the last time before it writes the new value.
        replaced = [
            (old, new.actual)
            for old, new in carried
            if new.actual.role is Role.OUTPUT and old.read_at < new.actual.written_at
        ]
        return replace(liveness, carried=carried, replaced=tuple(replaced))

    def _allocate(self, op: Op, values: Iterable[Value], moment: int) -> Buffers:
        location, new = _location(op), list[Buffer]()
        for value in values:
            buffers = new_buffers(value, Role.TEMPORARY, location, moment, self.space)
            self.leaves[value] = buffers
            new.extend(buffers)
        self.written.extend(new)
        return tuple(new)

    def _reuse(
        self,
        pairs: Pairs,
        operands: Sequence[Value],
        results: Sequence[Value],
        moment: int,
        *,
        must: bool = True,
    ) -> None:
        for operand, result in pairs:
            read, written = self.leaves[operands[operand]], self.leaves[results[result]]
            is_whole = must or operands[operand] in self.single or not self.program.is_scheduled
            self.reuses.extend(
                _Reuse(operand=source, result=buffer, moment=moment, must=must, is_whole=is_whole)
                for source, buffer in zip(read, written, strict=False)
            )

    def _alias_unchanged(self, op: Op) -> None:
        """Alias loop invariants to their buffers before the loop."""
        body = op.regions[1]
        returned = body.operations[-1].operands
        unneeded = set[Buffer]()
        carried = zip(body.arguments, returned, op.operands, op.results, strict=True)
        for argument, value, operand, result in carried:
            if argument is value:
                unneeded.update(self.leaves[result])
                self.leaves[result] = self.leaves[operand]
        self.written = [buffer for buffer in self.written if buffer not in unneeded]

    def _share_passed_values(self, op: Op, moment: int) -> None:
        """Give results the memory of values that an alternative passes through."""
        returned = [self._passed_through(region) for region in op.regions]
        for result, sources in zip(op.results, zip(*returned, strict=True), strict=True):
            result_buffers = self.leaves[result]
            if sources[0] and len(set(sources)) == 1:
                self.leaves[result] = sources[0]
                self.written = [buffer for buffer in self.written if buffer not in result_buffers]
                continue
            self.reuses.extend(
                _Reuse(operand=source, result=buffer, moment=moment, must=True, is_whole=True)
                for buffers in sources
                for source, buffer in zip(buffers, result_buffers, strict=False)
            )

    def _passed_through(self, region: Block) -> list[Buffers]:
        """Return the buffers of a region's results, if known."""
        leaves = dict(self.leaves)
        for op in region.operations[:-1]:
            view = VIEWS.get(op.kind)
            if view is not None and all(value in leaves for value in op.operands):
                leaves.update(zip(op.results, view(op, leaves), strict=True))
        return [leaves.get(value, ()) for value in region.operations[-1].operands]

    def _start(self, op: Op, moment: int) -> None:
        """Allocate results now, and hold operands until the end."""
        if op.regions:
            block = op.regions[0]
        elif isinstance(op.attrs, CallAttrs):
            block = self.program.function(op.attrs.callee, location=op.location).body
        else:
            raise ProgramError("it starts nothing", location=op.location)
        results = block.operations[-1].operands
        new = self._allocate(op, results, moment)
        self._reuse(started_in_place(block.operations[0]), op.operands, results, moment)
        self.leaves[op.results[0]] = new
        self.in_flight[op.results[0]] = (*self.buffers_of(op.operands), *new)

    def _continue(self, op: Op, moment: int) -> None:
        bundle = op.operands[0]
        for buffer in self.in_flight.get(bundle, ()):
            buffer.held_until = max(buffer.held_until, moment)
        results = self.leaves[bundle]
        if op.kind == "async_update":
            self.leaves[op.results[0]] = results
            self.in_flight[op.results[0]] = self.in_flight.get(bundle, ())
        else:
            self.bind(op.results, results)
