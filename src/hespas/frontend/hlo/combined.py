"""Names for the collectives that a compiler combined of several, and gave none.

A reduction is named after what makes its operands, any other collective after what reads its
results. Their name stacks together are the collective's, as XLA joins the names of what it merges
(`hespas.program.scopes.joined_scopes`): it has a module's name where all agree on one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from hespas.program.attrs import CaseAttrs, WhileAttrs
from hespas.program.program import Block, Function, Op, Value, is_communication_op
from hespas.program.scopes import NO_NAME, joined_scopes, read_scope

_REDUCTIONS = frozenset({"all_reduce", "reduce_scatter"})
_FARTHEST = 64
"""How many values without a name are passed to find operations that have one."""


def with_named_collectives(function: Function) -> Function:
    """Return a function whose collectives have name stacks, where their neighbours have."""
    if not _holds_unnamed(function.body):
        return function
    neighbours = _Neighbours()
    neighbours.add(function.body)
    return Function(name=function.name, body=_named_block(function.body, neighbours))


def _named_block(block: Block, neighbours: _Neighbours) -> Block:
    operations: list[Op] = []
    for op in block.operations:
        collective = _unnamed_collective(op)
        if collective is not None:
            scope = neighbours.scope(op, is_reduction=collective.kind in _REDUCTIONS)
            operations.append(_with_scope(op, scope) if scope else op)
        elif any(map(_holds_unnamed, _blocks(op))):
            regions = tuple([_named_block(region, neighbours) for region in op.regions])
            operations.append(replace(op, regions=regions))
        else:
            operations.append(op)
    return replace(block, operations=tuple(operations))


def _blocks(op: Op) -> tuple[Block, ...]:
    return op.regions if isinstance(op.attrs, WhileAttrs | CaseAttrs) else ()


def _unnamed_collective(op: Op) -> Op | None:
    if is_communication_op(op):
        return op if read_scope(op.scope) is NO_NAME else None
    if op.kind != "async_start":
        return None
    started = [each for region in op.regions for each in region.operations]
    collective = next(filter(is_communication_op, started), None)
    return None if collective is None else _unnamed_collective(collective)


def _holds_unnamed(block: Block) -> bool:
    return any(
        _unnamed_collective(op) is not None or any(map(_holds_unnamed, _blocks(op)))
        for op in block.operations
    )


def _with_scope(op: Op, scope: str) -> Op:
    if is_communication_op(op):
        return replace(op, scope=scope)
    regions = [
        replace(region, operations=tuple([_with_own(each, scope) for each in region.operations]))
        for region in op.regions
    ]
    return replace(op, scope=scope, regions=tuple(regions))


def _with_own(op: Op, scope: str) -> Op:
    return replace(op, scope=scope) if is_communication_op(op) else op


@dataclass(frozen=True, slots=True, kw_only=True)
class _Neighbours:
    """What makes and what reads each value of a function, in its loops and branches too.

    ``before`` has what an argument of a loop's body is in the round before, ``after`` the reverse.
    """

    makers: dict[Value, Op] = field(default_factory=dict[Value, Op])
    readers: dict[Value, list[Op]] = field(default_factory=dict[Value, list[Op]])
    before: dict[Value, Value] = field(default_factory=dict[Value, Value])
    after: dict[Value, list[Value]] = field(default_factory=dict[Value, list[Value]])

    def add(self, block: Block) -> None:
        for op in block.operations:
            self.makers.update(dict.fromkeys(op.results, op))
            for value in op.operands:
                self.readers.setdefault(value, []).append(op)
            for inner in _blocks(op):
                self.add(inner)
            if isinstance(op.attrs, WhileAttrs):
                body = op.regions[-1]
                carried = zip(body.operations[-1].operands, body.arguments, strict=False)
                for made, argument in carried:
                    self.before[argument] = made
                    self.after.setdefault(made, []).append(argument)

    def scope(self, op: Op, *, is_reduction: bool) -> str:
        """Return the joined name stacks of the nearest operations that have a name.

        A value of a loop is what its body makes of it, and is read where its body reads it.
        """
        scopes: set[str] = set()
        pending = list(op.operands if is_reduction else op.results)
        seen = set(pending)
        while pending and len(seen) <= _FARTHEST:
            value = pending.pop()
            rounds = self._other_rounds(value, is_reduction=is_reduction)
            pending += [each for each in rounds if each not in seen]
            seen.update(rounds)
            for near in self._near(value, is_reduction=is_reduction):
                if isinstance(near.attrs, WhileAttrs):
                    following = _in_body(near, value, is_reduction=is_reduction)
                elif read_scope(near.scope) is not NO_NAME:
                    scopes.add(near.scope)
                    continue
                else:
                    following = near.operands if is_reduction else near.results
                pending += [each for each in following if each not in seen]
                seen.update(following)
        if pending:
            return ""
        joined = joined_scopes(sorted(scopes))
        return "" if read_scope(joined) is NO_NAME else joined

    def _other_rounds(self, value: Value, *, is_reduction: bool) -> list[Value]:
        if not is_reduction:
            return self.after.get(value, [])
        return [self.before[value]] if value in self.before else []

    def _near(self, value: Value, *, is_reduction: bool) -> Iterable[Op]:
        if not is_reduction:
            return self.readers.get(value, ())
        return [self.makers[value]] if value in self.makers else ()


def _in_body(loop: Op, value: Value, *, is_reduction: bool) -> tuple[Value, ...]:
    body = loop.regions[-1]
    if is_reduction:
        pairs = zip(loop.results, body.operations[-1].operands, strict=False)
    else:
        pairs = zip(loop.operands, body.arguments, strict=False)
    return tuple([inner for outer, inner in pairs if outer is value])
