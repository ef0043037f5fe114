"""Read a module's computations as blocks of operations.

`ModuleReader` is the state of one load. A handler for each opcode
(`hespas.frontend.hlo.instructions`) reads one instruction into a `Scope`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hespas.errors import ProgramError, UnsupportedError
from hespas.frontend.hlo.attributes import GAPS, Attributes
from hespas.frontend.hlo.config import estimated_cycles
from hespas.frontend.hlo.types import Tree, TypeReader, flat, fresh_tree, leaves
from hespas.frontend.overrides import OverrideRecorder
from hespas.program.attrs import NO_ATTRS, Attrs
from hespas.program.program import Block, Function, Op, Value, returning


@dataclass(slots=True, kw_only=True)
class Scope:
    """A computation during its load: results by instruction id, operations.

    ``synchronous`` holds the ids of starts whose collective the compute stream waits for. For
    transfers between slices, ``sent`` has the bundle of each rendezvous and ``received`` the
    rendezvous of each receive.
    """

    trees: dict[int, Tree] = field(default_factory=dict[int, Tree])
    operations: list[Op] = field(default_factory=list[Op])
    synchronous: set[int] = field(default_factory=set[int])
    sent: dict[str, Value] = field(default_factory=dict[str, Value])
    received: dict[int, str] = field(default_factory=dict[int, str])

    def inner(self) -> Scope:
        """Return a scope for an inlined computation that appends here."""
        return Scope(operations=self.operations)

    def tree(self, number: int) -> Tree:
        """Return an instruction's result; `ProgramError` if it isn't read yet."""
        tree = self.trees.get(number)
        if tree is None:
            raise ProgramError(f"instruction {number} is used before it is defined")
        return tree

    def operands(self, instruction: Any) -> tuple[Value, ...]:
        """Return the values that an instruction reads, with tuples opened."""
        return self.values(instruction.operand_ids)

    def values(self, numbers: Iterable[int]) -> tuple[Value, ...]:
        """Return the results of instructions, with tuples opened."""
        return flat([self.tree(number) for number in numbers])


@dataclass(slots=True)
class Locations:
    """Reads an instruction's name stack and ``file:line``."""

    index: Any
    _frames: dict[int, str] = field(default_factory=dict[int, str])

    def of(self, instruction: Any) -> tuple[str, str]:
        """Return an instruction's name stack and location, or ""."""
        if not instruction.HasField("metadata"):
            return "", ""
        metadata = instruction.metadata
        return metadata.op_name, self._location(metadata)

    def _location(self, metadata: Any) -> str:
        if metadata.source_file:
            return f"{metadata.source_file}:{metadata.source_line}"
        frame: int = metadata.stack_frame_id
        cached = self._frames.get(frame)
        if cached is None:
            cached = self._frames[frame] = self._frame(frame)
        return cached

    def _frame(self, number: int) -> str:
        """Return a stack frame's ``file:line``; indices start at 1."""
        frames, locations = self.index.stack_frames, self.index.file_locations
        if not 0 < number <= len(frames):
            return ""
        location_number = frames[number - 1].file_location_id
        if not 0 < location_number <= len(locations):
            return ""
        location, names = locations[location_number - 1], self.index.file_names
        if not 0 < location.file_name_id <= len(names):
            return ""
        return f"{names[location.file_name_id - 1]}:{location.line}"


# Fields about an instruction's name and origin.
_NAME_FIELDS = (
    "id",
    "name",
    "metadata",
    "operand_ids",
    "called_computation_ids",
    "frontend_attributes",
    "original_value",
    "sharding",
    "statistics_viz",
)
_OPERANDS_END = -1
"""Separates the operands of instructions; no instruction has this number."""


@dataclass(slots=True, kw_only=True)
class Originals:
    """Finds the first of computations with equal contents.

    XLA writes one computation for each fusion; hundreds are equal except for names.
    """

    computations: Mapping[int, Any]
    _first: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    _originals: dict[int, int] = field(default_factory=dict[int, int])

    def original(self, number: int) -> int:
        """Return the number of the first equal computation."""
        cached = self._originals.get(number)
        if cached is None:
            # The reader refuses a computation that calls itself.
            self._originals[number] = number
            key = self._key(self.computations[number])
            cached = self._originals[number] = self._first.setdefault(key, number)
        return cached

    def _key(self, computation: Any) -> Hashable:
        copy = type(computation)()
        copy.instructions.extend(computation.instructions)
        positions: dict[int, int] = {}
        operands: list[int] = []
        called: list[Hashable] = []
        for position, inner in enumerate(copy.instructions):
            positions[inner.id] = position
            operands += inner.operand_ids
            operands.append(_OPERANDS_END)
            if inner.called_computation_ids:
                called.append((position, *map(self.original, inner.called_computation_ids)))
            clear = inner.ClearField
            for name in _NAME_FIELDS:
                clear(name)
        operands.append(computation.root_id)
        content = copy.SerializeToString(deterministic=True)
        return content, tuple(map(positions.get, operands)), tuple(called)


Handler = Callable[["ModuleReader", Any, Scope], None]
"""Reads one instruction into a scope."""


@dataclass(slots=True, kw_only=True)
class ModuleReader:
    """The state of one load.

    ``handlers`` read instructions by opcode. ``functions`` collects called computations by name,
    ``producer`` maps a value to its operation, and ``slices`` is the number of TPU slices.
    """

    module: Any
    source: str
    overrides: OverrideRecorder
    handlers: dict[str, Handler]
    locations: Locations
    computations: dict[int, Any]
    originals: Originals
    slices: int = 1
    types: TypeReader = field(default_factory=TypeReader)
    functions: dict[str, Function] = field(default_factory=dict[str, Function])
    producer: dict[Value, Op] = field(default_factory=dict[Value, Op])
    _bodies: dict[tuple[int, str], Block] = field(default_factory=dict[tuple[int, str], Block])
    _open: set[int] = field(default_factory=set[int])

    def computation(self, number: int) -> Any:
        """Return a computation; `ProgramError` if the number is unknown."""
        computation = self.computations.get(number)
        if computation is None:
            raise ProgramError(f"computation {number} is called but not defined")
        return computation

    def body(self, number: int, dialect: str = "stablehlo") -> Block:
        """Return the block of a computation.

        Computations equal except for names share one.
        """
        key = self.originals.original(number), dialect
        cached = self._bodies.get(key)
        if cached is None:
            cached = self._bodies[key] = self.block(key[0], dialect)
        return cached

    def block(self, number: int, dialect: str = "stablehlo") -> Block:
        """Return a computation as a block.

        ``dialect`` is its terminator's.
        """
        computation = self.computation(number)
        parameters = self.parameters(computation)
        scope = Scope()
        root = self.inlined(number, parameters, scope)
        return returning(flat(parameters), scope.operations, flat([root]), dialect)

    def branch(self, number: int, operand: Tree) -> Block:
        """Return a one-parameter computation as a block that uses ``operand``."""
        scope = Scope()
        root = self.inlined(number, [operand], scope)
        return returning((), scope.operations, flat([root]), "stablehlo")

    def function(self, number: int) -> str:
        """Return the name of a computation's function."""
        name: str = self.computation(number).name
        name = name if name != "main" else f"main.{number}"
        if name not in self.functions:
            self.functions[name] = Function(name=name, body=self.block(number, "func"))
        return name

    def parameters(self, computation: Any) -> list[Tree]:
        """Create values for a computation's parameters."""
        parameters = [item for item in computation.instructions if item.opcode == "parameter"]
        parameters.sort(key=lambda item: item.parameter_number)
        if [item.parameter_number for item in parameters] != list(range(len(parameters))):
            raise ProgramError(f"the parameters of {computation.name} are not numbered in order")
        return [fresh_tree(self.types.read(item.shape)) for item in parameters]

    def inlined(self, number: int, parameters: Sequence[Tree], scope: Scope) -> Tree:
        """Read a computation's missing instructions into a scope; return its result."""
        computation = self.computation(number)
        return self.until(computation, computation.root_id, parameters, scope)

    def until(self, computation: Any, last: int, parameters: Sequence[Tree], scope: Scope) -> Tree:
        """Read the instructions up to ``last``, and return its result."""
        with self._guarded(computation):
            for instruction in self._ordered(computation):
                if instruction.id not in scope.trees:
                    self._instruction(instruction, parameters, scope)
                if instruction.id == last and last != computation.root_id:
                    break
        return scope.tree(last)

    @contextmanager
    def _guarded(self, computation: Any) -> Generator[None]:
        if computation.id in self._open:
            raise ProgramError(f"computation {computation.name} calls itself", location=self.source)
        self._open.add(computation.id)
        yield
        self._open.discard(computation.id)

    def _ordered(self, computation: Any) -> Sequence[Any]:
        sequences = self.module.schedule.sequences
        if computation.id not in sequences:
            return computation.instructions
        by_id = {instruction.id: instruction for instruction in computation.instructions}
        order = sequences[computation.id].instruction_ids
        missing = next((number for number in order if number not in by_id), None)
        if missing is not None:
            raise ProgramError(
                f"the schedule of {computation.name} names instruction {missing}, "
                "which it does not hold",
                location=self.source,
            )
        return [by_id[number] for number in order]

    def _instruction(self, instruction: Any, parameters: Sequence[Tree], scope: Scope) -> None:
        opcode = instruction.opcode
        try:
            if opcode == "parameter":
                scope.trees[instruction.id] = _parameter(instruction, parameters)
                return
            handler = self.handlers.get(opcode)
            if handler is None:
                raise _unknown_opcode_error(opcode)
            handler(self, instruction, scope)
        except ProgramError as error:
            error.location = error.location or f"{self.source}: %{instruction.name}"
            raise
        except (LookupError, ValueError) as error:
            location = f"{self.source}: %{instruction.name}"
            raise ProgramError(
                f"{opcode} lacks something that it needs: {error}", location=location
            ) from error

    def _fused_location(self, instruction: Any) -> tuple[str, str]:
        """Return the name stack and location of a fusion.

        A fusion with several results has no own name: it gets that of the last instruction of its
        body that has one. Its own body is searched, because equal fusions share a block.
        """
        for number in instruction.called_computation_ids:
            for inner in reversed(self.computation(number).instructions):
                if "/" in inner.metadata.op_name:
                    return self.locations.of(inner)
        return "", self.locations.of(instruction)[1]

    def emit(
        self,
        instruction: Any,
        scope: Scope,
        *,
        name: tuple[str, str],
        attrs: Attrs = NO_ATTRS,
        attributes: Attributes = (),
        regions: tuple[Block, ...] = (),
        operands: tuple[Value, ...] | None = None,
        results: Tree | None = None,
    ) -> Op:
        """Append the operation of an instruction.

        ``name`` is the operation's dialect and kind. Operands and results default to the
        instruction's.
        """
        tree = fresh_tree(self.types.read(instruction.shape)) if results is None else results
        stack, location = self.locations.of(instruction)
        if not stack and instruction.opcode == "fusion":
            stack, location = self._fused_location(instruction)
        op = Op(
            dialect=name[0],
            kind=name[1],
            operands=scope.operands(instruction) if operands is None else operands,
            results=tuple(leaves(tree)),
            attrs=attrs,
            attributes=attributes,
            regions=regions,
            source_location=location,
            scope=stack,
            instruction=instruction.name,
            estimated_cycles=estimated_cycles(instruction.backend_config),
        )
        scope.operations.append(op)
        scope.trees[instruction.id] = tree
        for result in op.results:
            self.producer[result] = op
        return op


def _parameter(instruction: Any, parameters: Sequence[Tree]) -> Tree:
    number: int = instruction.parameter_number
    if number >= len(parameters):
        raise ProgramError(f"parameter {number} is not given")
    return parameters[number]


def _unknown_opcode_error(opcode: str) -> ProgramError:
    if opcode in GAPS:
        return UnsupportedError(f"{opcode} has no model: {GAPS[opcode]}")
    return UnsupportedError(f"HLO opcode {opcode!r} is not known")
