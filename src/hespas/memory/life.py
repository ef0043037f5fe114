"""How long each buffer of a block is needed.

Operations run in the order in which they stand. A temporary lives from the operation that makes
it to the last one that reads it; where that one works in place, its result goes on in the same
memory. What a block hands to its surroundings has a place there already: an output of the
program, or a value that a loop carries from one round to the next. That place is free for others
from when the old value is read last until the new one is made; a value that no round changes is
never copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from hespas.errors import ProgramError
from hespas.memory.buffers import (
    CONSTANTS,
    FOLDED_CONSTANTS,
    FOLDED_VIEWS,
    THROUGHOUT,
    VIEWS,
    Buffer,
    Leaves,
    new_buffers,
)
from hespas.memory.in_place import (
    Pairs,
    always_in_place,
    perhaps_in_place,
    started_in_place,
)
from hespas.memory.peak import BlockLife, Peak, peak_of
from hespas.memory.usage import Role
from hespas.program.attrs import CallAttrs
from hespas.program.program import Block, Op, Program, Value, values_read
from hespas.program.types import TensorType

Homes = Sequence[Buffer | None]
"""For each tensor that a block returns, the argument that it is written over, if any."""

_HOLDS_BLOCKS = frozenset({"case", "if", "while"})


def block_life(
    program: Program, block: Block, arguments: Sequence[Buffer], homes: Homes
) -> BlockLife:
    """Return how long the buffers of a block are needed.

    ``arguments`` are the buffers of the block's arguments, one for each tensor in them. Raises
    `ProgramError` for an asynchronous operation that starts nothing.
    """
    walk = _Walk(program=program)
    walk.bind(block.arguments, arguments)
    last = len(block.operations) - 1
    for moment, op in enumerate(block.operations):
        walk.op(op, moment)
    returned = walk.buffers_of(block.operations[-1].operands)
    lent = {home for home in homes if home is not None}
    returned_buffers = frozenset(returned)
    for sharing in walk.sharing:
        if sharing.must or not (program.is_scheduled and sharing.made in returned_buffers):
            sharing.settle(lent)
    for buffer, home in zip(returned, homes, strict=True):
        _send_home(buffer.actual, home, last)
    return BlockLife(
        results=returned,
        made=tuple(walk.made),
        inner=walk.inner,
        places=tuple([_location(op) for op in block.operations]),
    )


def argument_buffers(values: Iterable[Value]) -> tuple[Buffer, ...]:
    """Return the buffers of a block's arguments, there from before the first operation."""
    return tuple([
        buffer
        for number, value in enumerate(values)
        for buffer in new_buffers(
            value, role=Role.ARGUMENT, location=f"argument {number}", at=THROUGHOUT
        )
    ])  # fmt: skip


def _shape(value: Value) -> tuple[int, ...] | None:
    """Return the shape of a tensor, None for anything else."""
    return value.type.shape if isinstance(value.type, TensorType) else None


def _location(op: Op) -> str:
    """Name an operation: by the compiler's name for it, where it has one."""
    if not op.instruction:
        return op.location
    return f"{op.source_location}: {op.instruction}" if op.source_location else op.instruction


def _renewed(
    carried: Iterable[Buffer], returned: Iterable[Buffer]
) -> Iterator[tuple[Buffer, Buffer]]:
    """Yield what a round reads for the last time before it makes what takes its place."""
    for old, new in zip(carried, returned, strict=True):
        if new.actual.role is Role.OUTPUT and old.read_at < new.actual.made_at:
            yield old, new.actual


def _send_home(buffer: Buffer, home: Buffer | None, last: int) -> None:
    """Let a returned buffer be made where it belongs, if that is free by then."""
    if buffer.role is not Role.TEMPORARY:
        return
    buffer.held_until = last
    if home is None or buffer.made_at >= home.read_at:
        buffer.role = Role.OUTPUT


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sharing:
    """A buffer that is written over another, if nothing reads that one later.

    XLA does what it ``must``, and the rest where an operation reads what another one made, as it
    made it, and where nobody else has a place for the result.
    """

    source: Buffer
    made: Buffer
    moment: int
    must: bool

    def settle(self, lent: set[Buffer]) -> None:
        """Merge the two; of the arguments, only those that are ``lent`` may be written over."""
        source, made = self.source.actual, self.made
        is_ours = source.role is Role.TEMPORARY or source in lent
        fits = source.size_bytes == made.size_bytes and source.read_at == self.moment
        if not (is_ours and fits) or made.merged_into is not None:
            return
        made.merged_into = source
        source.read_at = made.read_at
        source.held_until = max(source.held_until, made.held_until)


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One pass over a block.

    ``working`` is what each asynchronous operation works on, ``single`` holds the values that
    are all that an operation makes.
    """

    program: Program
    leaves: Leaves = field(default_factory=Leaves)
    made: list[Buffer] = field(default_factory=list[Buffer])
    inner: dict[int, Peak] = field(default_factory=dict[int, Peak])
    sharing: list[_Sharing] = field(default_factory=list[_Sharing])
    working: dict[Value, tuple[Buffer, ...]] = field(
        default_factory=dict[Value, tuple[Buffer, ...]]
    )
    single: set[Value] = field(default_factory=set[Value])

    @property
    def _constants(self) -> frozenset[str]:
        return CONSTANTS if self.program.is_scheduled else FOLDED_CONSTANTS

    def bind(self, values: Iterable[Value], buffers: Sequence[Buffer]) -> None:
        remaining = iter(buffers)
        for value in values:
            count = len(argument_buffers((value,)))
            self.leaves[value] = tuple([next(remaining) for _ in range(count)])

    def buffers_of(self, values: Iterable[Value]) -> tuple[Buffer, ...]:
        return tuple([buffer for value in values for buffer in self.leaves[value]])

    def op(self, op: Op, moment: int) -> None:
        for value in op.operands:
            if value not in self.leaves:
                # From around the block: it is there throughout.
                self.leaves[value] = argument_buffers((value,))
        views = VIEWS if self.program.is_scheduled else FOLDED_VIEWS
        view = views.get(op.kind)
        if view is not None:
            self.leaves.update(zip(op.results, view(op, self.leaves), strict=True))
            return
        self._read(op, moment)
        match op.kind:
            case "async_start":
                self._start(op, moment)
            case "async_update" | "async_done":
                self._continue(op, moment)
            case kind if kind in self._constants:
                self.leaves[op.results[0]] = argument_buffers(op.results)
            case _:
                self._make(op, moment)

    def _read(self, op: Op, moment: int) -> None:
        for value in values_read(op):
            for buffer in self.leaves.get(value, ()):
                buffer.read_at = moment
                buffer.held_until = max(buffer.held_until, moment)

    def _make(self, op: Op, moment: int) -> None:
        self._new(op, op.results, moment)
        self._note(always_in_place(op), op.operands, op.results, moment)
        self._note(self._may_be_written_over(op), op.operands, op.results, moment, must=False)
        if not self.program.is_scheduled:
            self._note(started_in_place(op), op.operands, op.results, moment)
        if len(op.results) == 1:
            self.single.add(op.results[0])
        if op.kind == "while":
            self._keep_unchanged(op)
        if op.kind in _HOLDS_BLOCKS:
            peaks = [self._peak_inside(op, number) for number in range(len(op.regions))]
            self.inner[moment] = max(peaks, key=lambda peak: peak.size_bytes)

    def _new(self, op: Op, values: Iterable[Value], moment: int) -> tuple[Buffer, ...]:
        location, made = _location(op), list[Buffer]()
        for value in values:
            buffers = new_buffers(value, role=Role.TEMPORARY, location=location, at=moment)
            self.leaves[value] = buffers
            made.extend(buffers)
        self.made.extend(made)
        return tuple(made)

    def _note(
        self,
        pairs: Pairs,
        operands: Sequence[Value],
        results: Sequence[Value],
        moment: int,
        *,
        must: bool = True,
    ) -> None:
        for operand, result in pairs:
            given, made = self.leaves[operands[operand]], self.leaves[results[result]]
            self.sharing.extend(
                _Sharing(source=source, made=buffer, moment=moment, must=must)
                for source, buffer in zip(given, made, strict=False)
            )

    def _may_be_written_over(self, op: Op) -> Pairs:
        """Yield what may be done in place of what keeps its shape."""
        for operand, result in perhaps_in_place(op):
            given = op.operands[operand]
            made_alone = given in self.single or not self.program.is_scheduled
            if made_alone and _shape(given) == _shape(op.results[result]):
                yield operand, result

    def _keep_unchanged(self, op: Op) -> None:
        """Let what no round of a loop changes be what it was before."""
        body = op.regions[1]
        kept = zip(body.arguments, body.operations[-1].operands, strict=True)
        unneeded = set[Buffer]()
        for (given, returned), operand, result in zip(kept, op.operands, op.results, strict=True):
            if given is returned:
                unneeded.update(self.leaves[result])
                self.leaves[result] = self.leaves[operand]
        self.made = [buffer for buffer in self.made if buffer not in unneeded]

    def _peak_inside(self, op: Op, number: int) -> Peak:
        """Return what a region needs beside the values that it is given."""
        block = op.regions[number]
        arguments = argument_buffers(block.arguments)
        returned = block.operations[-1].operands
        carries = op.kind == "while" and number == 1
        homes: Homes = arguments if carries else [None] * len(argument_buffers(returned))
        life = block_life(self.program, block, arguments, homes)
        if carries:
            life = replace(life, renewed=tuple(_renewed(arguments, life.results)))
        return peak_of(life, life.temporaries())

    def _start(self, op: Op, moment: int) -> None:
        """Make the results now, and keep the operands until the end."""
        block = self._started(op)
        results = block.operations[-1].operands
        made = self._new(op, results, moment)
        self._note(started_in_place(block.operations[0]), op.operands, results, moment)
        self.leaves[op.results[0]] = made
        self.working[op.results[0]] = (*self.buffers_of(op.operands), *made)

    def _continue(self, op: Op, moment: int) -> None:
        bundle = op.operands[0]
        for buffer in self.working.get(bundle, ()):
            buffer.held_until = max(buffer.held_until, moment)
        made = self.leaves[bundle]
        if op.kind == "async_update":
            self.leaves[op.results[0]] = made
            self.working[op.results[0]] = self.working.get(bundle, ())
        else:
            self.bind(op.results, made)

    def _started(self, op: Op) -> Block:
        if op.regions:
            return op.regions[0]
        if isinstance(op.attrs, CallAttrs):
            return self.program.function(op.attrs.callee, location=op.location).body
        raise ProgramError("it starts nothing", location=op.location)
