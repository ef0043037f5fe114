"""Walk a module's computations into blocks of operations."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hespas.errors import ProgramError, UnsupportedError
from hespas.frontend.hlo.config import estimated_cycles
from hespas.frontend.hlo.locations import Locations
from hespas.frontend.hlo.mlir import Attributes
from hespas.frontend.hlo.opcodes import GAPS
from hespas.frontend.hlo.scope import Scope
from hespas.frontend.hlo.shared import Originals
from hespas.frontend.hlo.types import Tree, TypeReader, flat, fresh_tree, leaves
from hespas.frontend.overrides import OverrideRecorder
from hespas.program.attrs import NO_ATTRS, Attrs
from hespas.program.program import Block, Function, Op, Value

Handler = Callable[["ModuleReader", Any, Scope], None]
"""Reads one instruction into a scope."""


@dataclass(slots=True, kw_only=True)
class ModuleReader:
    """State of one load.

    ``handlers`` reads instructions by opcode. ``functions`` gathers what is called by name,
    ``producer`` finds the operation that made a value.
    """

    module: Any
    source: str
    overrides: OverrideRecorder
    handlers: dict[str, Handler]
    locations: Locations
    computations: dict[int, Any]
    originals: Originals
    types: TypeReader = field(default_factory=TypeReader)
    functions: dict[str, Function] = field(default_factory=dict[str, Function])
    producer: dict[Value, Op] = field(default_factory=dict[Value, Op])
    _bodies: dict[tuple[int, str], Block] = field(default_factory=dict[tuple[int, str], Block])
    _open: set[int] = field(default_factory=set[int])

    def computation(self, number: int) -> Any:
        """Return a computation; `ProgramError` where there is none of this number."""
        found = self.computations.get(number)
        if found is None:
            raise ProgramError(f"computation {number} is called but not defined")
        return found

    def body(self, number: int, dialect: str = "stablehlo") -> Block:
        """Return the block of a computation, one for all that equal it but for names."""
        key = self.originals.original(number), dialect
        known = self._bodies.get(key)
        if known is None:
            known = self._bodies[key] = self.block(key[0], dialect)
        return known

    def block(self, number: int, dialect: str = "stablehlo") -> Block:
        """Return a computation as a block; ``dialect`` is that of its terminator."""
        computation = self.computation(number)
        parameters = self.parameters(computation)
        scope = Scope()
        root = self.inlined(number, parameters, scope)
        return ended(flat(parameters), scope.operations, flat([root]), dialect)

    def branch(self, number: int, given: Tree) -> Block:
        """Return a computation of one parameter as a block that uses a value from around it."""
        scope = Scope()
        root = self.inlined(number, [given], scope)
        return ended((), scope.operations, flat([root]), "stablehlo")

    def function(self, number: int) -> str:
        """Make a function of a computation, once, and return its name."""
        name: str = self.computation(number).name
        name = name if name != "main" else f"main.{number}"
        if name not in self.functions:
            self.functions[name] = Function(name=name, body=self.block(number, "func"))
        return name

    def parameters(self, computation: Any) -> list[Tree]:
        """Make values for a computation's parameters."""
        found = [each for each in computation.instructions if each.opcode == "parameter"]
        found.sort(key=lambda each: each.parameter_number)
        if [each.parameter_number for each in found] != list(range(len(found))):
            raise ProgramError(f"the parameters of {computation.name} are not numbered in order")
        return [fresh_tree(self.types.read(each.shape)) for each in found]

    def inlined(self, number: int, parameters: Sequence[Tree], scope: Scope) -> Tree:
        """Read a computation's instructions into a scope and return what its root made.

        Instructions that the scope knows already are left out.
        """
        computation = self.computation(number)
        return self.until(computation, computation.root_id, parameters, scope)

    def until(self, computation: Any, last: int, parameters: Sequence[Tree], scope: Scope) -> Tree:
        """Read the instructions that stand before one, and that one; return what it made."""
        with self._opened(computation):
            for instruction in self._ordered(computation):
                if instruction.id not in scope.trees:
                    self._instruction(instruction, parameters, scope)
                if instruction.id == last and last != computation.root_id:
                    break
        return scope.tree(last)

    @contextmanager
    def _opened(self, computation: Any) -> Generator[None]:
        if computation.id in self._open:
            raise ProgramError(f"computation {computation.name} calls itself", location=self.source)
        self._open.add(computation.id)
        yield
        self._open.discard(computation.id)

    def _ordered(self, computation: Any) -> Sequence[Any]:
        """Return instructions as scheduled, or as they stand, operands first."""
        sequences = self.module.schedule.sequences
        if computation.id not in sequences:
            return computation.instructions
        found = {each.id: each for each in computation.instructions}
        order = sequences[computation.id].instruction_ids
        missing = next((number for number in order if number not in found), None)
        if missing is not None:
            raise ProgramError(
                f"the schedule of {computation.name} names instruction {missing}, "
                "which it does not hold",
                location=self.source,
            )
        return [found[number] for number in order]

    def _instruction(self, instruction: Any, parameters: Sequence[Tree], scope: Scope) -> None:
        opcode = instruction.opcode
        try:
            if opcode == "parameter":
                scope.trees[instruction.id] = _parameter(instruction, parameters)
                return
            handler = self.handlers.get(opcode)
            if handler is None:
                raise _unknown(opcode)
            handler(self, instruction, scope)
        except ProgramError as error:
            if error.location:
                raise
            location = f"{self.source}: %{instruction.name}"
            raise type(error)(error.message, location=location, hint=error.hint) from error
        except (LookupError, ValueError) as error:
            location = f"{self.source}: %{instruction.name}"
            raise ProgramError(
                f"what {opcode} needs is not there: {error}", location=location
            ) from error

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
        made: Tree | None = None,
    ) -> Op:
        """Append the operation of an instruction; ``name`` is its dialect and kind.

        Operands and results are the instruction's own unless they are given.
        """
        tree = fresh_tree(self.types.read(instruction.shape)) if made is None else made
        op = Op(
            dialect=name[0],
            kind=name[1],
            operands=scope.operands(instruction) if operands is None else operands,
            results=tuple(leaves(tree)),
            attrs=attrs,
            attributes=attributes,
            regions=regions,
            source_location=self.locations.of(instruction),
            instruction=instruction.name,
            estimated_cycles=estimated_cycles(instruction.backend_config),
        )
        scope.operations.append(op)
        scope.trees[instruction.id] = tree
        for result in op.results:
            self.producer[result] = op
        return op


def ended(
    arguments: tuple[Value, ...], operations: list[Op], results: tuple[Value, ...], dialect: str
) -> Block:
    """Return a block that returns ``results``."""
    last = Op(dialect=dialect, kind="return", operands=results, results=(), attrs=NO_ATTRS)
    return Block(arguments=arguments, operations=(*operations, last))


def _parameter(instruction: Any, parameters: Sequence[Tree]) -> Tree:
    number: int = instruction.parameter_number
    if number >= len(parameters):
        raise ProgramError(f"parameter {number} is not given")
    return parameters[number]


def _unknown(opcode: str) -> ProgramError:
    if opcode in GAPS:
        return UnsupportedError(f"{opcode} has no model: {GAPS[opcode]}")
    return UnsupportedError(f"HLO opcode {opcode!r} is not known")
