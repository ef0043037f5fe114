"""Kernels with several results: of the same data, or of each other.

Two kernels that go over the same elements are one, with the results of both, if neither then waits
for itself. Reading the same large value, or one reading what the other writes, they move fewer
bytes together. The depth of a kernel, the longest way to it from an argument, tells in a few steps
that no way leads from one through others to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from hespas.lower.group import Group, Grouping, module_of
from hespas.lower.roles import Role, bytes_of, is_row
from hespas.program.attrs import SliceAttrs
from hespas.program.operations.traits import Category
from hespas.program.program import Op, Value, size_of, values_read

_MOST_RESULTS = 10
_MOST_ROUNDS = 12
_ALONE = frozenset({"constant", "gather", "iota"})
_ENDING = (Category.REDUCTION, Category.UPDATE)
_MOST_OPERANDS = 64
_SMALL_BYTES = 16
_SLICED_APART_BYTES = 1024
"""Of a value this large, kernels that read parts without a common element stay apart.

Source: openxla/xla, ``ParameterSlicesAreNonOverlapping`` in multi_output_fusion.cc (Apache License
2.0), and what jaxlib 0.10.2 compiles for H100."""

_OF_COLUMNS, _OF_ROW, _SHARED_BYTES = 4 * 32 * 33, 32, 48 * 1024
"""Elements that a sum of columns, or of a row, keeps in shared memory, and what a kernel has of it.

Source: openxla/xla, ``SharedMemoryUsage`` in gpu_fusible.cc (Apache License 2.0)."""


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """A kernel or a single operation, with its neighbours.

    ``size`` is how many elements it goes over, ``how`` how it reduces them, ``shared_bytes`` what
    its reductions keep in shared memory; ``is_alone`` is what has one result in XLA. ``depth`` is
    greater than that of all nodes in ``before``, and less than in ``after``.
    """

    rank: int
    group: Group | None
    operation: int
    size: int
    how: str
    shared_bytes: int
    is_alone: bool
    reads: dict[Value, None] = field(default_factory=dict[Value, None])
    before: set[Node] = field(default_factory=set["Node"])
    after: set[Node] = field(default_factory=set["Node"])
    depth: int = 0


def nodes_of(grouping: Grouping, results: Iterable[Value]) -> list[Node]:
    """Return a block's nodes in program order, kernels merged; ``results`` are its own."""
    graph = _Graph(grouping=grouping, results=frozenset(results))
    graph.build()
    graph.merge_readers()
    graph.set_depths()
    graph.merge_chains(graph.is_pass)
    graph.set_depths()
    graph.merge_readers()
    graph.drop_inner()
    return graph.nodes


def stretches_of(
    grouping: Grouping, results: Iterable[Value], *, by_module: bool = False
) -> list[Node]:
    """Return a block's nodes with kernels of libraries.

    ``results`` are those of the block. With ``by_module``, a kernel is of one module.
    """
    graph = _Graph(grouping=grouping, results=frozenset(results), by_module=by_module)
    graph.build()
    graph.merge_stretches()
    graph.drop_inner()
    return graph.nodes


def outside(operations: Sequence[Op], group: Group) -> Iterator[Value]:
    """Yield values from outside that a group reads, in order."""
    inside = {result for member in group.members for result in operations[member].results}
    seen: set[Value] = set()
    for member in sorted(group.members):
        for value in values_read(operations[member]):
            if value not in inside and value not in seen:
                seen.add(value)
                yield value


@dataclass(slots=True, kw_only=True)
class _Graph:
    """The nodes of a block with ``results`` while they merge, maybe ``by_module``."""

    grouping: Grouping
    results: AbstractSet[Value]
    by_module: bool = False
    nodes: list[Node] = field(default_factory=list[Node])
    writer: dict[Value, Node] = field(default_factory=dict[Value, Node])

    def build(self) -> None:
        """Make the nodes."""
        operations, roles = self.grouping.operations, self.grouping.roles
        rooted: dict[int, Group] = {}
        for group in self.grouping.groups:
            for root in group.roots:
                rooted[root] = group
        for place, op in enumerate(operations):
            group = rooted.get(place)
            if group is None and not (
                self.grouping.written[place] and roles[place] in (Role.FIXED, Role.VIEW)
            ):
                continue
            size, how = _shape(op, place)
            reads = values_read(op) if group is None else outside(operations, group)
            node = Node(
                rank=place,
                group=group,
                operation=place,
                size=size,
                how=how,
                shared_bytes=_shared_bytes(op),
                is_alone=group is None or group.library or self._has_own_kernel(group),
                reads=dict.fromkeys(reads),
            )
            self.nodes.append(node)
            for result in op.results:
                self.writer[result] = node
        for node in self.nodes:
            node.before = {self.writer[value] for value in node.reads if value in self.writer}
            node.before.discard(node)
            for producer in node.before:
                producer.after.add(node)
        self.set_depths()

    def set_depths(self) -> None:
        """Set the depth of every node."""
        missing = {node: len(node.before) for node in self.nodes}
        ready = [node for node in self.nodes if not node.before]
        for node in ready:
            node.depth = 0
        done = 0
        while done < len(ready):
            node = ready[done]
            done += 1
            for user in node.after:
                missing[user] -= 1
                if not missing[user]:
                    user.depth = 1 + max(producer.depth for producer in user.before)
                    ready.append(user)
        assert len(ready) == len(self.nodes), "a kernel waits for itself"  # noqa: S101

    def merge_readers(self) -> None:
        """Merge kernels that read the same value."""
        readers = _readers(node for node in self.nodes if not node.is_alone)
        gone: dict[Node, Node] = {}
        for value, nodes in readers.items():
            if len(nodes) > 1:
                merged = list(dict.fromkeys([_merged_into(gone, node) for node in nodes]))
                self._merge_all(merged, value, gone)
        self._drop(gone)

    def _merge_all(self, nodes: list[Node], read: Value, gone: dict[Node, Node]) -> None:
        """Merge a value's readers that cover the same elements."""
        remaining: dict[int, dict[Node, None]] = {}
        for node in nodes:
            remaining.setdefault(node.size, {})[node] = None
        for first in nodes:
            if first in gone:
                continue
            same = remaining[first.size]
            del same[first]
            for candidate in list(same):
                if _is_full(first):
                    break
                if (
                    _is_alike(first, candidate)
                    and _are_independent(first, candidate)
                    and not self._read_apart(first, candidate, read)
                ):
                    del same[candidate]
                    self._merge(first, candidate, gone)

    def merge_chains(self, belong: Callable[[Node, Node], bool]) -> None:
        """Merge kernels with their first matching reader."""
        gone: dict[Node, Node] = {}
        for node in self.nodes:
            if node in gone:
                continue
            for user in sorted(node.after, key=lambda user: user.rank):
                if belong(node, user) and _can_join(node, user):
                    self._merge(user, node, gone)
                    break
        self._drop(gone)

    def merge_stretches(self) -> None:
        """Merge kernels with their readers, and with readers of the same values."""
        for _ in range(_MOST_ROUNDS):
            before = len(self.nodes)
            self.merge_chains(self._are_one_stretch)
            self.set_depths()
            self._merge_siblings()
            self.set_depths()
            if len(self.nodes) == before:
                return

    def drop_inner(self) -> None:
        """Have no kernel write what only it reads."""
        read = {value for node in self.nodes for value in node.reads}.union(self.results)
        operations = self.grouping.operations
        for group in [node.group for node in self.nodes if node.group is not None]:
            roots = [root for root in group.roots if not read.isdisjoint(operations[root].results)]
            group.roots = roots or group.roots

    def _merge_siblings(self) -> None:
        gone: dict[Node, Node] = {}
        for nodes in _readers(filter(self._is_stretch, self.nodes)).values():
            first, *siblings = dict.fromkeys([_merged_into(gone, node) for node in nodes])
            for sibling in siblings:
                if _are_independent(first, sibling) and self._are_together(first, sibling):
                    self._merge(first, sibling, gone)
        self._drop(gone)

    def _are_one_stretch(self, node: Node, user: Node) -> bool:
        are_stretches = self._is_stretch(node) and self._is_stretch(user)
        return are_stretches and self._are_together(node, user)

    def _are_together(self, first: Node, second: Node) -> bool:
        """Return whether a library may have a kernel for both."""
        if not self.by_module:
            return True
        operations = self.grouping.operations
        return module_of(operations[first.operation]) == module_of(operations[second.operation])

    def _is_stretch(self, node: Node) -> bool:
        """Return whether a library may join a kernel with others."""
        if node.group is None or node.group.library:
            return False
        roots = [self.grouping.operations[root] for root in node.group.roots]
        return not any(
            root.kind in _ALONE or (root.traits.category in _ENDING and root.kind != "reduce")
            for root in roots
        )

    def is_pass(self, node: Node, user: Node) -> bool:
        """Return whether a kernel can compute another's result it reads.

        What only one kernel with one result reads would be part of it, if it were worth it.
        Source: openxla/xla, ``GetProducerConsumerMultiOutputFusionCandidates`` in
        multi_output_fusion.cc (Apache License 2.0).
        """
        if not _is_alike(node, user):
            return False
        if len(node.after) == 1 and not self._is_of_many(node, user):
            return False
        if node.group is not None and not self.grouping.apart.isdisjoint(node.group.roots):
            return False
        operations, roles = self.grouping.operations, self.grouping.roles
        closed = {
            result
            for root in (node.group.roots if node.group else ())
            if roles[root] is not Role.LOOP
            for result in operations[root].results
        }
        return closed.isdisjoint(user.reads)

    def _is_of_many(self, node: Node, user: Node) -> bool:
        """Return whether results leave the block, or the user is several kernels."""
        if user.group is not None and len(user.group.roots) > 1:
            return True
        operations = self.grouping.operations
        roots = node.group.roots if node.group else ()
        return any(not self.results.isdisjoint(operations[root].results) for root in roots)

    def _read_apart(self, first: Node, second: Node, read: Value) -> bool:
        """Return whether two kernels read separate parts of a value.

        XLA leaves a kernel alone that does nothing but slice, unless another uses that slice.
        """
        assert first.group is not None  # noqa: S101 - checked where they were compared
        assert second.group is not None  # noqa: S101 - the same
        members = first.group.members, second.group.members
        if min(map(len, members)) == 1 and members[0].keys() & members[1].keys():
            return False
        cuts = [self._slice_of(group, read) for group in members]
        if any(cut and len(group) == 1 for cut, group in zip(cuts, members, strict=True)):
            return True
        mine, its = cuts
        if mine is None or its is None or bytes_of(read) < _SLICED_APART_BYTES:
            return False
        places = zip(mine.start, mine.limit, its.start, its.limit, strict=True)
        return any(low >= end or start >= high for low, high, start, end in places)

    def _slice_of(self, members: Iterable[int], read: Value) -> SliceAttrs | None:
        """Return the one part of a value that kernels read."""
        operations = self.grouping.operations
        users = [operations[member] for member in members if read in operations[member].operands]
        if len(users) != 1 or not isinstance(users[0].attrs, SliceAttrs):
            return None
        return users[0].attrs

    def _has_own_kernel(self, group: Group) -> bool:
        """Return whether XLA gives a group's kernel one result.

        So has Triton's, which reduces rows and goes over them again, as in a norm, and the one that
        writes operands side by side: ``ConcatenateFusion`` (xla/backends/gpu/codegen/emitters).
        """
        operations = self.grouping.operations
        written = {
            size_of(operations[root].results[0])
            for root in group.roots
            if operations[root].kind == "concatenate" or operations[root].traits.is_elementwise
        }
        for member in group.members:
            kind = operations[member].kind
            is_of_rows = kind == "reduce" and member not in group.roots
            is_joining = kind == "concatenate" and size_of(operations[member].results[0]) in written
            if is_of_rows or is_joining:
                return True
        return False

    def _merge(self, target: Node, merged: Node, gone: dict[Node, Node]) -> None:
        """Put a node into another one, whose depth may change."""
        assert target.group is not None  # noqa: S101 - checked where they were compared
        assert merged.group is not None  # noqa: S101 - the same
        depth = _joint_depth(target, merged)
        target.group.roots = sorted({*target.group.roots, *merged.group.roots})
        for member, times in merged.group.members.items():
            target.group.members[member] = max(times, target.group.members.get(member, 0))
        target.before |= merged.before
        target.after |= merged.after
        for neighbour in merged.before:
            neighbour.after.discard(merged)
            neighbour.after.add(target)
        for neighbour in merged.after:
            neighbour.before.discard(merged)
            neighbour.before.add(target)
        target.before -= {target, merged}
        target.after -= {target, merged}
        target.how = target.how or merged.how
        target.shared_bytes += merged.shared_bytes
        target.depth = depth
        target.rank = max(target.rank, merged.rank)
        target.reads = dict.fromkeys(outside(self.grouping.operations, target.group))
        gone[merged] = target

    def _drop(self, gone: dict[Node, Node]) -> None:
        if gone:
            self.nodes = [node for node in self.nodes if node not in gone]


def _readers(nodes: Iterable[Node]) -> dict[Value, list[Node]]:
    """Return the kernels that read each value of more than a few bytes."""
    readers: dict[Value, list[Node]] = {}
    for node in nodes:
        for value in node.reads:
            if bytes_of(value) > _SMALL_BYTES:
                readers.setdefault(value, []).append(node)
    return readers


def _is_full(node: Node) -> bool:
    """Return whether a kernel has the most results or operands already."""
    results = 0 if node.group is None else len(node.group.roots)
    return results >= _MOST_RESULTS or len(node.reads) >= _MOST_OPERANDS


def _is_alike(first: Node, second: Node) -> bool:
    """Return whether two kernels go over the same elements."""
    if first.is_alone or second.is_alone or first.size != second.size:
        return False
    if first.how and second.how and first.how != second.how:
        return False
    return (
        sum([len(node.group.roots) for node in (first, second) if node.group]) <= _MOST_RESULTS
        and len(first.reads) + len(second.reads) <= _MOST_OPERANDS
        and first.shared_bytes + second.shared_bytes <= _SHARED_BYTES
    )


def _shared_bytes(op: Op) -> int:
    """Return what a reduction keeps in shared memory."""
    if op.kind != "reduce":
        return 0
    element_bytes = bytes_of(op.operands[0]) // max(1, size_of(op.operands[0]))
    return (_OF_ROW if is_row(op) else _OF_COLUMNS) * element_bytes


def _shape(op: Op, root: int) -> tuple[int, str]:
    if op.kind == "reduce":
        kind = "row" if is_row(op) else "column"
        return size_of(op.operands[0]), f"{kind} {size_of(op.results[0])}"
    if op.traits.category in _ENDING:
        return -root, op.kind
    if op.kind == "copy":
        return size_of(op.results[0]), f"copy {op.operands[0].type} {op.results[0].type}"
    return size_of(op.results[0]), ""


def _merged_into(gone: dict[Node, Node], node: Node) -> Node:
    while node in gone:
        node = gone[node]
    return node


def _are_independent(first: Node, second: Node) -> bool:
    if second in first.after or first in second.after:
        return False
    return _can_join(first, second)


def _can_join(first: Node, second: Node) -> bool:
    """Return whether depths rule out a path between nodes through others."""
    low, high = (first, second) if first.depth <= second.depth else (second, first)
    return _can_rise(low, high) or _can_sink(low, high)


def _can_rise(low: Node, high: Node) -> bool:
    return all(producer is low or producer.depth < low.depth for producer in high.before)


def _can_sink(low: Node, high: Node) -> bool:
    return all(reader is high or reader.depth > high.depth for reader in low.after)


def _joint_depth(first: Node, second: Node) -> int:
    low, high = (first, second) if first.depth <= second.depth else (second, first)
    return low.depth if _can_rise(low, high) else high.depth
