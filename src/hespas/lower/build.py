"""Write groups of operations as fusions, with copies, equal kernels once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from msgspec.structs import replace

from hespas.lower.group import Group, Grouping
from hespas.lower.merge import Node
from hespas.lower.roles import Role
from hespas.program.attrs import BitcastAttrs, FusionAttrs, InPlace
from hespas.program.operations.traits import Category
from hespas.program.program import Alias, Block, Op, Value, returning, values_read
from hespas.program.rewrite import Renaming, copied_op, fresh, plain_op, renamed_op
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
    source, result = [
        value.type.layout if isinstance(value.type, TensorType) else None
        for value in (op.operands[0], op.results[0])
    ]
    return replace(
        plain_op(op, "bitcast", op.operands[:1], op.results[0]),
        dialect="mhlo",
        attrs=BitcastAttrs(source_layout=source, result_layout=result),
        instruction=names.next("bitcast"),
    )


def fusion_of(operations: Sequence[Op], group: Group, names: Names, *, writer: str = "") -> Op:
    """Return a group's fusion."""
    roots = [operations[root] for root in group.roots]
    results = [value for root in roots for value in root.results]
    body = [operations[member] for member in sorted(group.members)]
    kind = "kLoop"
    if group.library:
        kind, writer = "kOutput", ""
    elif writer:
        kind = "kCustom"
    elif any(root.traits.category is Category.REDUCTION or root.kind in _ENDS for root in roots):
        kind = "kInput"
    name = names.next(_name(roots, kind))
    fusion = fusion_around(body, results, roots[0], name, kind=kind, writer=writer)
    assert isinstance(fusion.attrs, FusionAttrs)  # noqa: S101 - it is a fusion
    (root, *more_roots) = roots
    if more_roots or root.traits.category is not Category.UPDATE:
        return fusion
    if root.operands[0] not in fusion.operands:
        return fusion
    in_place = InPlace(result=0, operand=fusion.operands.index(root.operands[0]))
    return replace(fusion, attrs=replace(fusion.attrs, in_place=(in_place,)))


_ENDS = frozenset({"copy", "scatter"})


def _name(roots: Sequence[Op], kind: str) -> str:
    if kind == "kOutput":
        return "matmul_add"
    kinds = [root.kind for root in roots if root.traits.category is not Category.CREATION]
    return f"{kind[1:].lower()}_{'_'.join(dict.fromkeys(kinds)) or roots[0].kind}_fusion"


def fusion_around(
    operations: Sequence[Op],
    results: Sequence[Value],
    like: Op,
    name: str,
    *,
    kind: str = "kLoop",
    writer: str = "",
) -> Op:
    """Return a fusion of operations, with operands in order of first use."""
    inside = {value for op in operations for value in op.results}
    read = dict.fromkeys([value for op in operations for value in values_read(op)])
    operands = tuple([value for value in read if value not in inside])
    renaming: Renaming = {}
    arguments = fresh(operands, renaming)
    body = [copied_op(op, renaming) for op in operations]
    outputs = [renaming[value] for value in results]
    return Op(
        dialect="mhlo",
        kind="fusion",
        operands=operands,
        results=tuple(results),
        attrs=FusionAttrs(kind=kind, backend_kind=writer),
        attributes=(
            *((("backend_kind", f'"{writer}"'),) if writer else ()),
            ("fusion_kind", f"#mhlo<fusion_kind {kind}>"),
        ),
        regions=(returning(arguments, body, outputs, "mhlo"),),
        source_location=like.source_location,
        scope=like.scope,
        instruction=name,
    )


def kept_arguments(block: Block, aliases: Sequence[Alias]) -> frozenset[Value]:
    """Return main arguments that no result overwrites."""
    donated = {alias.argument for alias in aliases}
    return frozenset([value for index, value in enumerate(block.arguments) if index not in donated])


def with_copies(operations: Sequence[Op], protected: AbstractSet[Value], names: Names) -> list[Op]:
    """Return operations that overwrite copies of what is kept.

    A caller's argument stays as it is unless the caller donates it. Where a part of one is updated,
    or a loop carries it and changes it, XLA copies all of it before. So it does with what several
    kernels write over, as zeros that sums start from: only the last may, if nothing reads it after.
    A kernel with one result writes the copies of it too.
    """
    protected, last = set(protected), _last_reads(operations)
    writing = {op.results[0]: op for op in operations if _can_write_more(op)}
    more: dict[Op, list[Value]] = {}
    copied: list[Op] = []
    for number, op in enumerate(operations):
        if op.traits.relabels and len(op.operands) == len(op.results):
            pairs = zip(op.operands, op.results, strict=True)
            protected.update([result for operand, result in pairs if operand in protected])
        operands = list(op.operands)
        for index in _overwritten(op):
            value = operands[index]
            is_kept = value in protected or last.get(value, number) > number
            if not is_kept or not isinstance(value.type, TensorType):
                continue
            operands[index] = Value(type=value.type)
            if value in writing:
                more.setdefault(writing[value], []).append(operands[index])
            else:
                copy = replace(plain_op(op, "copy", (value,), operands[index]), dialect="mhlo")
                copied.append(replace(copy, instruction=names.next("copy")))
        copied.append(_reading(op, operands))
    return [_writing(op, more[op]) if op in more else op for op in copied]


def _reading(op: Op, operands: Sequence[Value]) -> Op:
    return op if tuple(operands) == op.operands else replace(op, operands=tuple(operands))


def _can_write_more(op: Op) -> bool:
    attrs = op.attrs
    if not isinstance(attrs, FusionAttrs) or len(op.results) != 1:
        return False
    return attrs.kind == "kLoop" and not attrs.in_place


def _writing(op: Op, copies: Sequence[Value]) -> Op:
    """Return a fusion with one result that writes it as often again."""
    (block,) = op.regions
    *inner, end = block.operations
    ends = replace(end, operands=end.operands * (1 + len(copies)))
    body = Block(arguments=block.arguments, operations=(*inner, ends))
    return replace(op, results=(*op.results, *copies), regions=(body,))


def _last_reads(operations: Sequence[Op]) -> dict[Value, int]:
    """Return the last reader of each value that several kernels overwrite."""
    writers = Counter(
        op.operands[index] for op in operations if op.kind == "fusion" for index in _overwritten(op)
    )
    return {
        value: number
        for number, op in enumerate(operations)
        for value in values_read(op)
        if writers[value] > 1
    }


def _overwritten(op: Op) -> Iterator[int]:
    """Yield the indices of operands that an operation overwrites."""
    if isinstance(op.attrs, FusionAttrs):
        yield from dict.fromkeys(alias.operand for alias in op.attrs.in_place)
    if op.kind == "while":
        body = op.regions[1]
        pairs = zip(body.arguments, body.operations[-1].operands, strict=True)
        yield from (index for index, (argument, value) in enumerate(pairs) if argument is not value)


def with_equal_once(operations: Sequence[Op], outputs: Sequence[Value]) -> list[Op]:
    """Return kernels, equal ones of the same operands once.

    What is fused into each of its readers may make two of them equal. Outputs have arrays of their
    own.
    """
    written = set(outputs)
    first: dict[Hashable, Op] = {}
    renaming: Renaming = {}
    distinct: list[Op] = []
    for original in operations:
        op = renamed_op(original, renaming) if renaming else original
        if op.kind == "fusion" and op.operands and written.isdisjoint(op.results):
            same = first.setdefault((op.operands, _key(op)), op)
            if same is not op:
                renaming.update(zip(op.results, same.results, strict=True))
                continue
        distinct.append(op)
    return distinct


def with_equal_together(operations: Sequence[Op], names: Names) -> list[Op]:
    """Move equal kernels without operands behind the first of them.

    A turn of a loop that is written out behind the loop starts sums from zeros, as those before the
    loop do. XLA finds that they are equal and makes them once; what several loops write over is
    copied, and its pass CopyFusion makes the copies in the kernel itself. So all of them are in
    memory from the first on: compiled for 256 H100, llama3-70b holds gradients of 8.7 GB a third
    time in each turn but the last of its micro-batches.
    """
    copies: dict[Op, list[Op]] = {op: [] for op in operations if _reads_nothing(op)}
    apart = [*_written_apart(operations, copies, names)]
    equal: dict[Hashable, list[Op]] = {}
    for op, more in copies.items():
        equal.setdefault(_key(op), []).extend((op, *more))
    together = {kernels[0]: kernels for kernels in equal.values()}
    return [kernel for op in apart for kernel in (together.get(op, ()) if op in copies else (op,))]


def _reads_nothing(op: Op) -> bool:
    return op.kind == "fusion" and not op.operands and len(op.results) == 1


def _written_apart(
    operations: Sequence[Op], copies: Mapping[Op, list[Op]], names: Names
) -> Iterator[Op]:
    """Give each loop that overwrites a shared copy its own."""
    made_by = {op.results[0]: op for op in copies}
    used = set[Value]()
    for op in operations:
        operands = list(op.operands)
        for index in _overwritten(op) if op.kind == "while" else ():
            maker = made_by.get(operands[index])
            if maker is not None and operands[index] in used:
                base = maker.instruction.rpartition(".")[0] or maker.instruction
                copy = replace(copied_op(maker, {}), instruction=names.next(base))
                copies[maker].append(copy)
                operands[index] = copy.results[0]
            used.add(operands[index])
        yield _reading(op, operands)


def _key(op: Op) -> Hashable:
    """Return a key equal for kernels that compute the same."""
    (body,) = op.regions
    numbers = {value: number for number, value in enumerate(body.arguments)}
    steps: list[Hashable] = []
    for inner in body.operations:
        numbers.update((value, len(numbers)) for value in inner.results)
        types = tuple([value.type for value in inner.results])
        operands = tuple([numbers[value] for value in inner.operands])
        steps.append((inner.kind, inner.attrs, inner.attributes, types, operands))
    return tuple(steps)
