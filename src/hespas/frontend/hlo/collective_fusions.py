"""Collectives that a TPU's compiler fuses with the computation that hides them.

It writes three fusions: one ends in the custom call ``AsyncCollectiveStart``; others repeat the
collective beside what they compute, and hand its buffers on; the last one ends in
``AsyncCollectiveDone``. Here the first becomes an ``async_start``, the last an ``async_done``, and
those in between keep what they compute. An ``all-reduce`` fused with the slice that a device keeps
of it becomes a ``reduce_scatter``. Any other fusion around a collective is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hespas.errors import UnsupportedError
from hespas.frontend.hlo.asynchronous import HANDLERS as UNFUSED
from hespas.frontend.hlo.asynchronous import start_block
from hespas.frontend.hlo.groups import collective_of, group_size, replica_groups
from hespas.frontend.hlo.reader import Handler, ModuleReader, ended
from hespas.frontend.hlo.scope import Scope
from hespas.frontend.hlo.structure import fusion
from hespas.frontend.hlo.types import Tree, flat, fresh_tree, leaves
from hespas.program.attrs import FusionAttrs
from hespas.program.program import Value
from hespas.program.types import AsyncType, TensorType, Type

_START, _DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"
_COLLECTIVES = frozenset(
    {
        "all-gather",
        "all-reduce",
        "all-to-all",
        "collective-broadcast",
        "collective-permute",
        "reduce-scatter",
    }
)


def any_fusion(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Read a fusion, with a collective in its body or without."""
    body = reader.computation(next(iter(instruction.called_computation_ids), 0))
    held = [each for each in body.instructions if each.opcode in _COLLECTIVES]
    if not held:
        fusion(reader, instruction, scope)
        return
    root = next(each for each in body.instructions if each.id == body.root_id)
    target = root.custom_call_target
    if target == _START and len(held) == 1:
        _begin(reader, instruction, scope, held[0])
    elif target == _DONE:
        _end(reader, instruction, scope)
    elif _bundles([scope.tree(number) for number in instruction.operand_ids]):
        _between(reader, instruction, scope, held)
    elif not _scattered(reader, instruction, scope, held):
        _opened(reader, instruction, scope)


def _begin(reader: ModuleReader, instruction: Any, scope: Scope, collective: Any) -> None:
    """Start the collective; every buffer and counter that comes with it stands for the bundle."""
    body = reader.computation(instruction.called_computation_ids[0])
    parameters = reader.parameters(body)
    inner = Scope()
    before = reader.until(body, collective.id, parameters, inner)
    started = ended(flat(parameters), inner.operations, flat([before]), "stablehlo")
    start_block(reader, instruction, scope, started)
    (bundle,) = leaves(scope.tree(instruction.id))
    members = len(instruction.shape.tuple_shapes)
    given = scope.tree(instruction.operand_ids[0])
    scope.trees[instruction.id] = (given, *[bundle] * (members - 1))


def _bundles(trees: Sequence[Tree]) -> list[Value]:
    found = [value for value in flat(list(trees)) if isinstance(value.type, AsyncType)]
    return list(dict.fromkeys(found))


def _end(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    bundles = _bundles([scope.tree(number) for number in instruction.operand_ids])
    if len(bundles) != 1:
        raise UnsupportedError(f"it ends {len(bundles)} collectives at once")
    reader.emit(instruction, scope, name=("mhlo", "async_done"), operands=tuple(bundles))


def _scattered(
    reader: ModuleReader, instruction: Any, scope: Scope, collectives: Sequence[Any]
) -> bool:
    """Read an all-reduce of which each device keeps its own slice; tell whether it is one.

    What was combined becomes one operation for each dimension that is scattered.
    """
    whole = collectives[0]
    if len(collectives) > 1 or whole.opcode != "all-reduce":
        return False
    operands = scope.operands(instruction)
    made = tuple(leaves(fresh_tree(reader.types.read(instruction.shape))))
    reduced = tuple(leaves(fresh_tree(reader.types.read(whole.shape))))
    if not len(operands) == len(made) == len(reduced):
        return False
    size = group_size(replica_groups(whole))
    pairs = zip(reduced, made, strict=True)
    dimensions = [_divided(all_of.type, part.type, size) for all_of, part in pairs]
    if None in dimensions:
        return False
    for dimension in dict.fromkeys(dimensions):
        places = [at for at, found in enumerate(dimensions) if found == dimension]
        attrs, attributes = collective_of(whole, "reduce-scatter", dimension)
        reader.emit(
            instruction,
            scope,
            name=("stablehlo", "reduce_scatter"),
            attrs=attrs,
            attributes=attributes,
            regions=tuple([reader.body(number) for number in whole.called_computation_ids]),
            operands=tuple([operands[at] for at in places]),
            made=tuple([made[at] for at in places]),
        )
    scope.trees[instruction.id] = made if instruction.shape.tuple_shapes else made[0]
    return True


def _divided(whole: Type, part: Type, parts: int) -> int | None:
    """Return the one dimension in which a tensor is so many times as long as its part."""
    if not isinstance(whole, TensorType) or not isinstance(part, TensorType):
        return None
    if whole.rank != part.rank:
        return None
    pairs = enumerate(zip(whole.shape, part.shape, strict=True))
    differing = [(at, long, short) for at, (long, short) in pairs if long != short]
    if len(differing) != 1:
        return None
    ((at, long, short),) = differing
    return at if long == parts * short else None


def _opened(reader: ModuleReader, instruction: Any, scope: Scope) -> None:
    """Run what a fusion holds one by one, the collective among it."""
    given = [scope.tree(number) for number in instruction.operand_ids]
    called = instruction.called_computation_ids[0]
    scope.trees[instruction.id] = reader.inlined(called, given, scope.inner())
    reader.overrides.assumptions.append(
        f"%{instruction.name}: a fusion around a collective is counted operation by operation"
    )


def _between(
    reader: ModuleReader, instruction: Any, scope: Scope, collectives: Sequence[Any]
) -> None:
    """Keep what a fusion computes while a collective runs; the rest of it is handed on."""
    given = [scope.tree(number) for number in instruction.operand_ids]
    bundles = _bundles(given)
    if len(bundles) != 1:
        raise UnsupportedError(f"it runs beside {len(bundles)} collectives that were started")
    body = reader.computation(instruction.called_computation_ids[0])
    handed = {value: value for value in bundles}
    parameters: list[Tree] = []
    for tree in given:
        is_bundle = isinstance(tree, Value) and tree in handed
        parameters.append(tree if is_bundle else fresh_tree_like(tree, handed))
    inner = Scope(trees=dict.fromkeys([each.id for each in collectives], bundles[0]))
    root = reader.inlined(body.id, parameters, inner)
    made: dict[Value, Value] = {}
    for value in leaves(root):
        if value not in handed and value not in made:
            made[value] = Value(type=value.type)
    arguments = tuple([value for value in flat(parameters) if value not in bundles])
    reader.emit(
        instruction,
        scope,
        name=("mhlo", "fusion"),
        attrs=FusionAttrs(kind=instruction.fusion_kind),
        attributes=(("fusion_kind", f"#mhlo<fusion_kind {instruction.fusion_kind}>"),),
        regions=(ended(arguments, inner.operations, tuple(made), "mhlo"),),
        operands=tuple([value for value in flat(given) if value not in bundles]),
        made=tuple(made.values()),
    )
    scope.trees[instruction.id] = renamed(root, handed | made)


def fresh_tree_like(tree: Tree, handed: dict[Value, Value]) -> Tree:
    """Copy a tree with fresh values; ``handed`` learns which value each stands for."""
    if not isinstance(tree, Value):
        return tuple([fresh_tree_like(member, handed) for member in tree])
    copy = fresh_tree(tree.type)
    if isinstance(copy, Value):
        handed[copy] = tree
    return copy


def renamed(tree: Tree, names: Mapping[Value, Value]) -> Tree:
    """Return a tree of other values."""
    if isinstance(tree, Value):
        return names[tree]
    return tuple([renamed(member, names) for member in tree])


HANDLERS: dict[str, Handler] = UNFUSED | {"fusion": any_fusion}
