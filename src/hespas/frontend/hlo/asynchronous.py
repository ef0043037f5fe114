"""Read asynchronous starts and dones.

Every start becomes an ``async_start`` whose region holds the started operation. If the compiler
marks start and done as one (``is_sync``), the operation stands alone: the stream waits for it.

A TPU's compiler also fuses collectives with the computation that hides them, as three fusions: the
first ends in the custom call ``AsyncCollectiveStart``; the following ones repeat the collective
beside their computation, and pass its buffers on; the last ends in ``AsyncCollectiveDone``. The
first becomes an ``async_start``, the last an ``async_done``, and the others keep their computation.
An ``all-reduce`` fused with the slice that a device keeps becomes a ``reduce_scatter``. Any other
fusion around a collective is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hespas.errors import ProgramError, UnsupportedError
from hespas.frontend.hlo import config
from hespas.frontend.hlo.attributes import (
    COLLECTIVE_PREFIXES,
    OPCODES,
    collective_of,
    replica_groups,
)
from hespas.frontend.hlo.instructions import fusion
from hespas.frontend.hlo.reader import Handler, ModuleReader, Scope
from hespas.frontend.hlo.types import Tree, flat, fresh_tree, leaves
from hespas.program.attrs import FusionAttrs
from hespas.program.program import Block, Value, returning
from hespas.program.types import AsyncType, TensorType, Type, bundle_type

_SUFFIX = "-start"
_MAIN_THREAD = "main"
# The member of a start's tuple that the done returns; the others are operands and contexts.
_RESULT_MEMBER = {
    "all-gather-start": 1,
    "all-reduce-start": None,
    "collective-permute-start": 1,
    "copy-start": 0,
    "ragged-all-to-all-start": 1,
}


def _start_collective(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    opcode = OPCODES[instruction.opcode.removesuffix(_SUFFIX)]
    member = _RESULT_MEMBER[instruction.opcode]
    shape = instruction.shape if member is None else _member(instruction, member)
    attrs, attributes = opcode.read(instruction)
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
        results=fresh_tree(reader.types.read(shape)),
    )
    if waits:
        scope.synchronous.add(instruction.id)
    else:
        started = returning(arguments, inner.operations, op.results, "stablehlo")
        start_block(reader, instruction, scope, started)


def _member(instruction: Any, index: int) -> Any:
    members = instruction.shape.tuple_shapes
    if len(members) <= index:
        raise ProgramError(f"the result of {instruction.opcode} is no tuple of {index + 1} or more")
    return members[index]


def start_block(
    reader: ModuleReader,
    instruction: Any,
    scope: Scope,
    started: Block,
    operands: tuple[Value, ...] | None = None,
) -> None:
    """Append an ``async_start`` of a block, by default of the instruction's operands."""
    members = tuple([value.type for value in started.operations[-1].operands])
    thread: str = instruction.async_execution_thread
    is_named = thread not in ("", _MAIN_THREAD)
    reader.emit(
        instruction,
        scope,
        name=("mhlo", "async_start"),
        attributes=(("execution_thread", f'"{thread}"'),) if is_named else (),
        regions=(started,),
        operands=operands,
        results=Value(type=bundle_type(members)),
    )


def _start(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    (called,) = instruction.called_computation_ids or (0,)
    if config.is_synchronous(instruction.backend_config):
        operands = [scope.tree(number) for number in instruction.operand_ids]
        scope.trees[instruction.id] = reader.inlined(called, operands, scope.inner())
        scope.synchronous.add(instruction.id)
    else:
        start_block(reader, instruction, scope, reader.block(called))


def _update(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    (start_id,) = instruction.operand_ids
    if start_id in scope.synchronous:
        scope.trees[instruction.id] = scope.tree(start_id)
        scope.synchronous.add(instruction.id)
        return
    (bundle,) = scope.operands(instruction)
    name = ("mhlo", "async_update")
    reader.emit(instruction, scope, name=name, results=Value(type=bundle.type))


def _done(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Read the wait for a start, unless it is synchronous."""
    (start_id,) = instruction.operand_ids
    if start_id in scope.synchronous:
        scope.trees[instruction.id] = scope.tree(start_id)
        return
    bundle = scope.tree(start_id)
    if not isinstance(bundle, Value) or not isinstance(bundle.type, AsyncType):
        raise ProgramError("its operand does not come from a start")
    result = fresh_tree(reader.types.read(instruction.shape))
    if tuple([value.type for value in leaves(result)]) != bundle.type.members:
        raise ProgramError("its results have other types than its start's")
    reader.emit(instruction, scope, name=("mhlo", "async_done"), results=result)


_FUSED_START, _FUSED_DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"


def _any_fusion(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    body = reader.computation(next(iter(instruction.called_computation_ids), 0))
    collectives = [
        inner for inner in body.instructions if inner.opcode.startswith(COLLECTIVE_PREFIXES)
    ]
    if not collectives:
        fusion(reader, instruction, scope)
        return
    root = next(inner for inner in body.instructions if inner.id == body.root_id)
    target = root.custom_call_target
    if target == _FUSED_START and len(collectives) == 1:
        _start_fused(reader, instruction, scope, collectives[0])
    elif target == _FUSED_DONE:
        _done_fused(reader, instruction, scope)
    elif _bundles([scope.tree(number) for number in instruction.operand_ids]):
        _overlapped_fusion(reader, instruction, scope, collectives)
    elif not _read_reduce_scatter(reader, instruction, scope, collectives):
        _open_fusion(reader, instruction, scope)


def _start_fused(reader: ModuleReader, instruction: Any, scope: Scope, collective: Any) -> None:
    """Start a fused collective; its bundle replaces the fusion's buffers and counters."""
    body = reader.computation(instruction.called_computation_ids[0])
    parameters = reader.parameters(body)
    inner = Scope()
    collective_tree = reader.until(body, collective.id, parameters, inner)
    started = returning(flat(parameters), inner.operations, flat([collective_tree]), "stablehlo")
    start_block(reader, instruction, scope, started)
    (bundle,) = leaves(scope.tree(instruction.id))
    members = len(instruction.shape.tuple_shapes)
    operand = scope.tree(instruction.operand_ids[0])
    scope.trees[instruction.id] = (operand, *[bundle] * (members - 1))


def _bundles(trees: Sequence[Tree]) -> list[Value]:
    bundles = [value for value in flat(list(trees)) if isinstance(value.type, AsyncType)]
    return list(dict.fromkeys(bundles))


def _done_fused(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    bundles = _bundles([scope.tree(number) for number in instruction.operand_ids])
    if len(bundles) != 1:
        raise UnsupportedError(f"it ends {len(bundles)} collectives at once")
    reader.emit(instruction, scope, name=("mhlo", "async_done"), operands=tuple(bundles))


def _read_reduce_scatter(
    reader: ModuleReader, instruction: Any, scope: Scope, collectives: Sequence[Any]
) -> bool:
    """Read an all-reduce whose result each device slices; return success.

    Combined all-reduces become one operation for each scattered dimension.
    """
    collective = collectives[0]
    if len(collectives) > 1 or collective.opcode != "all-reduce":
        return False
    operands = scope.operands(instruction)
    results = tuple(leaves(fresh_tree(reader.types.read(instruction.shape))))
    reduced = tuple(leaves(fresh_tree(reader.types.read(collective.shape))))
    if not len(operands) == len(results) == len(reduced):
        return False
    size = replica_groups(collective).group_size
    pairs = zip(reduced, results, strict=True)
    dimensions = [_scattered_dimension(full.type, part.type, size) for full, part in pairs]
    if None in dimensions:
        return False
    for dimension in dict.fromkeys(dimensions):
        positions = [
            position for position, scattered in enumerate(dimensions) if scattered == dimension
        ]
        attrs, attributes = collective_of(collective, "reduce-scatter", dimension)
        reader.emit(
            instruction,
            scope,
            name=("stablehlo", "reduce_scatter"),
            attrs=attrs,
            attributes=attributes,
            regions=tuple([reader.body(number) for number in collective.called_computation_ids]),
            operands=tuple([operands[position] for position in positions]),
            results=tuple([results[position] for position in positions]),
        )
    scope.trees[instruction.id] = results if instruction.shape.tuple_shapes else results[0]
    return True


def _scattered_dimension(full: Type, part: Type, parts: int) -> int | None:
    if not isinstance(full, TensorType) or not isinstance(part, TensorType):
        return None
    if full.rank != part.rank:
        return None
    pairs = enumerate(zip(full.shape, part.shape, strict=True))
    differing = [(axis, long, short) for axis, (long, short) in pairs if long != short]
    if len(differing) != 1:
        return None
    ((axis, long, short),) = differing
    return axis if long == parts * short else None


def _open_fusion(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Replace a fusion by its operations, including the collective."""
    operands = [scope.tree(number) for number in instruction.operand_ids]
    called = instruction.called_computation_ids[0]
    scope.trees[instruction.id] = reader.inlined(called, operands, scope.inner())
    reader.overrides.assumptions.append(
        f"%{instruction.name}: a fusion around a collective is counted operation by operation"
    )


def _overlapped_fusion(
    reader: ModuleReader, instruction: Any, scope: Scope, collectives: Sequence[Any]
) -> None:
    """Read a fusion that computes beside a collective and passes its bundle on."""
    operands = [scope.tree(number) for number in instruction.operand_ids]
    bundles = _bundles(operands)
    if len(bundles) != 1:
        raise UnsupportedError(f"it runs beside {len(bundles)} collectives that were started")
    body = reader.computation(instruction.called_computation_ids[0])
    outer_of = {value: value for value in bundles}
    parameters: list[Tree] = []
    for tree in operands:
        is_bundle = isinstance(tree, Value) and tree in outer_of
        parameters.append(tree if is_bundle else _fresh_tree_like(tree, outer_of))
    inner = Scope(trees=dict.fromkeys([collective.id for collective in collectives], bundles[0]))
    root = reader.inlined(body.id, parameters, inner)
    results: dict[Value, Value] = {}
    for value in leaves(root):
        if value not in outer_of and value not in results:
            results[value] = Value(type=value.type)
    arguments = tuple([value for value in flat(parameters) if value not in bundles])
    reader.emit(
        instruction,
        scope,
        name=("mhlo", "fusion"),
        attrs=FusionAttrs(kind=instruction.fusion_kind),
        attributes=(("fusion_kind", f"#mhlo<fusion_kind {instruction.fusion_kind}>"),),
        regions=(returning(arguments, inner.operations, tuple(results), "mhlo"),),
        operands=tuple([value for value in flat(operands) if value not in bundles]),
        results=tuple(results.values()),
    )
    scope.trees[instruction.id] = _renamed(root, outer_of | results)


def _fresh_tree_like(tree: Tree, outer_of: dict[Value, Value]) -> Tree:
    """Copy a tree with fresh values; ``outer_of`` maps them back."""
    if not isinstance(tree, Value):
        return tuple([_fresh_tree_like(member, outer_of) for member in tree])
    copy = fresh_tree(tree.type)
    if isinstance(copy, Value):
        outer_of[copy] = tree
    return copy


def _renamed(tree: Tree, names: Mapping[Value, Value]) -> Tree:
    if isinstance(tree, Value):
        return names[tree]
    return tuple([_renamed(member, names) for member in tree])


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_RESULT_MEMBER, _start_collective),
    **{f"{name.removesuffix(_SUFFIX)}-done": _done for name in _RESULT_MEMBER},
    "async-done": _done,
    "async-start": _start,
    "async-update": _update,
    "fusion": _any_fusion,
}
"""Readers by opcode; those of `hespas.frontend.hlo.instructions` read the other opcodes."""
