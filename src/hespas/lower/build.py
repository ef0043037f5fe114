"""Write groups of operations as fusions, in the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from hespas.lower.group import Group, Grouping
from hespas.lower.kinds import CREATING, IN_PLACE, REDUCING
from hespas.lower.merge import Node, outside
from hespas.lower.roles import Role
from hespas.program.attrs import NO_ATTRS, BitcastAttrs, FusionAttrs, InPlace
from hespas.program.program import Block, Op, Value
from hespas.program.rewrite import Renaming, copied_op, fresh
from hespas.program.types import TensorType


@dataclass(slots=True, kw_only=True)
class Names:
    """Names for kernels, each once: ``loop_add_fusion``, ``loop_add_fusion.1`` and so on."""

    used: dict[str, int] = field(default_factory=dict[str, int])

    def next(self, name: str) -> str:
        """Return a name that was not given before."""
        count = self.used.get(name, 0)
        self.used[name] = count + 1
        return f"{name}.{count}" if count else name


def built(grouping: Grouping, nodes: Sequence[Node], names: Names, *, writer: str = "") -> list[Op]:
    """Return an operation for each node, in the order of the nodes.

    ``writer`` is the `FusionAttrs.backend_kind` of kernels that are no compiler's.
    """
    return [_operation(grouping, node, names, writer) for node in nodes]


def _operation(grouping: Grouping, node: Node, names: Names, writer: str) -> Op:
    op = grouping.operations[node.operation]
    if node.group is None:
        if grouping.roles[node.operation] is Role.VIEW:
            return _bitcast(op, names)
        return op if op.instruction else replace(op, instruction=names.next(op.kind))
    if len(node.group.members) == 1 and op.kind == "constant":
        return op
    return fusion_of(grouping.operations, node.group, names, writer=writer)


def _bitcast(op: Op, names: Names) -> Op:
    source, made = op.operands[0].type, op.results[0].type
    attrs = BitcastAttrs(
        source_layout=source.layout if isinstance(source, TensorType) else None,
        result_layout=made.layout if isinstance(made, TensorType) else None,
    )
    return Op(
        dialect="mhlo",
        kind="bitcast",
        operands=op.operands[:1],
        results=op.results,
        attrs=attrs,
        source_location=op.source_location,
        scope=op.scope,
        instruction=names.next("bitcast"),
    )


def fusion_of(operations: Sequence[Op], group: Group, names: Names, *, writer: str = "") -> Op:
    """Return the fusion that a group of operations becomes."""
    operands = tuple(outside(operations, group))
    renaming: Renaming = {}
    arguments = fresh(operands, renaming)
    body = [copied_op(operations[at], renaming) for at in sorted(group.members)]
    results = tuple([value for root in group.roots for value in operations[root].results])
    end = Op(
        dialect="mhlo",
        kind="return",
        operands=tuple([renaming[value] for value in results]),
        results=(),
        attrs=NO_ATTRS,
    )
    roots = [operations[root] for root in group.roots]
    kind = _kind(roots, group)
    if writer and not group.library:
        kind = "kCustom"
    else:
        writer = ""
    first = roots[0]
    attrs = FusionAttrs(kind=kind, backend_kind=writer, in_place=_in_place(roots, operands))
    return Op(
        dialect="mhlo",
        kind="fusion",
        operands=operands,
        results=results,
        attrs=attrs,
        attributes=(
            *((("backend_kind", f'"{writer}"'),) if writer else ()),
            ("fusion_kind", f"#mhlo<fusion_kind {kind}>"),
        ),
        regions=(Block(arguments=arguments, operations=(*body, end)),),
        source_location=first.source_location,
        scope=first.scope,
        instruction=names.next(_name(roots, kind)),
    )


def _kind(roots: Sequence[Op], group: Group) -> str:
    if group.library:
        return "kOutput"
    ends = REDUCING | {"copy", "scatter"}
    return "kInput" if any(root.kind in ends for root in roots) else "kLoop"


def _name(roots: Sequence[Op], kind: str) -> str:
    if kind == "kOutput":
        return "matmul_add"
    what = "_".join(dict.fromkeys(root.kind for root in roots if root.kind not in CREATING))
    return f"{kind[1:].lower()}_{what or roots[0].kind}_fusion"


def _in_place(roots: Sequence[Op], operands: Sequence[Value]) -> tuple[InPlace, ...]:
    found: list[InPlace] = []
    for number, root in enumerate(roots):
        if root.kind in IN_PLACE and len(roots) == 1 and root.operands[0] in operands:
            operand = operands.index(root.operands[0])
            found.append(InPlace(result=number, operand=operand))
    return tuple(found)
