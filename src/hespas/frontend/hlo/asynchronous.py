"""Starts and dones: what runs beside the compute stream, and until when.

Every start becomes an ``async_start`` whose region holds what it starts. Where the compiler says
that start and done are one (``is_sync``), the operation stands alone: the stream waits for it.
"""

from __future__ import annotations

from typing import Any

from hespas.errors import ProgramError
from hespas.frontend.hlo import config
from hespas.frontend.hlo.opcodes import OPCODES
from hespas.frontend.hlo.reader import Handler, ModuleReader, ended
from hespas.frontend.hlo.scope import Scope
from hespas.frontend.hlo.structure import HANDLERS as STRUCTURE
from hespas.frontend.hlo.types import flat, fresh_tree, leaves
from hespas.program.attrs import NO_ATTRS
from hespas.program.program import Block, Value
from hespas.program.types import AsyncType

_SUFFIX = "-start"
_MAIN_THREAD = "main"
# Which member of a start's tuple the done will give; the others are operands and contexts.
_RESULT_MEMBER = {
    "all-gather-start": 1,
    "all-reduce-start": None,
    "collective-permute-start": 1,
    "copy-start": 0,
}


def start_of_one(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Read ``all-gather-start`` and its like, which start the operation they are named after."""
    opcode = OPCODES[instruction.opcode.removesuffix(_SUFFIX)]
    member = _RESULT_MEMBER[instruction.opcode]
    shape = instruction.shape if member is None else _member(instruction, member)
    attrs, attributes = (NO_ATTRS, ()) if opcode.read is None else opcode.read(instruction)
    regions = tuple([reader.body(number) for number in instruction.called_computation_ids])
    waits = config.is_synchronous(instruction.backend_config)
    inner = scope if waits else Scope()
    operands = scope.operands(instruction)
    arguments = operands if waits else flat([fresh_tree(value.type) for value in operands])
    op = reader.emit(
        instruction,
        inner,
        name=(opcode.dialect, opcode.kind),
        attrs=attrs,
        attributes=attributes,
        regions=regions,
        operands=arguments,
        made=fresh_tree(reader.types.read(shape)),
    )
    if waits:
        scope.synchronous.add(instruction.id)
    else:
        started = ended(arguments, inner.operations, op.results, "stablehlo")
        start_block(reader, instruction, scope, started)


def _member(instruction: Any, at: int) -> Any:
    members = instruction.shape.tuple_shapes
    if len(members) <= at:
        raise ProgramError(f"what {instruction.opcode} makes is no tuple of {at + 1} or more")
    return members[at]


def start_block(reader: ModuleReader, instruction: Any, scope: Scope, started: Block) -> None:
    """Append an ``async_start`` of a block, which makes a bundle of the block's results."""
    members = tuple([value.type for value in started.operations[-1].operands])
    spelling = f"!mhlo.async_bundle<{', '.join(map(str, members))}>"
    thread: str = instruction.async_execution_thread
    named = thread not in ("", _MAIN_THREAD)
    reader.emit(
        instruction,
        scope,
        name=("mhlo", "async_start"),
        attributes=(("execution_thread", f'"{thread}"'),) if named else (),
        regions=(started,),
        made=Value(type=AsyncType(spelling=spelling, members=members)),
    )


def start(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Read ``async-start``, which starts a computation of its own."""
    (called,) = instruction.called_computation_ids or (0,)
    if config.is_synchronous(instruction.backend_config):
        given = [scope.tree(number) for number in instruction.operand_ids]
        scope.trees[instruction.id] = reader.inlined(called, given, scope.inner())
        scope.synchronous.add(instruction.id)
    else:
        start_block(reader, instruction, scope, reader.block(called))


def update(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Read ``async-update``: the bundle is handed on."""
    (begun,) = instruction.operand_ids
    if begun in scope.synchronous:
        scope.trees[instruction.id] = scope.tree(begun)
        scope.synchronous.add(instruction.id)
        return
    (bundle,) = scope.operands(instruction)
    name = ("mhlo", "async_update")
    reader.emit(instruction, scope, name=name, made=Value(type=bundle.type))


def done(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Read what waits for a start; where the start waited already, there is nothing to do."""
    (begun,) = instruction.operand_ids
    if begun in scope.synchronous:
        scope.trees[instruction.id] = scope.tree(begun)
        return
    bundle = scope.tree(begun)
    if not isinstance(bundle, Value) or not isinstance(bundle.type, AsyncType):
        raise ProgramError("its operand does not come from a start")
    made = fresh_tree(reader.types.read(instruction.shape))
    if tuple([value.type for value in leaves(made)]) != bundle.type.members:
        raise ProgramError("it gives other types than its start made")
    reader.emit(instruction, scope, name=("mhlo", "async_done"), made=made)


_ASYNCHRONOUS: dict[str, Handler] = {
    **dict.fromkeys(_RESULT_MEMBER, start_of_one),
    **{f"{name.removesuffix(_SUFFIX)}-done": done for name in _RESULT_MEMBER},
    "async-done": done,
    "async-start": start,
    "async-update": update,
}

HANDLERS: dict[str, Handler] = STRUCTURE | _ASYNCHRONOUS
