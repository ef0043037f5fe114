"""Which operations become one kernel.

Operations are looked at from the last to the first, so that the kernels that read one are known. It
becomes a part of each of them, and is computed in each, if that moves fewer bytes and launches
fewer kernels than to write it once and read it again; a long computation is not repeated for
every place of a broadcast. What a library, a collective, a loop or a caller reads is written.
Reductions, transposes that change which dimension is the fastest, and updates in place end their
kernels; other kernels may share theirs (`hespas.lower.merge`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from hespas.base.frozen import frozen
from hespas.lower.epilogues import Epilogues
from hespas.lower.roles import (
    Role,
    bytes_of,
    is_row,
    role_of,
    scattered_over,
    weight,
    window_of,
)
from hespas.lower.written import multiplied_before, read_often
from hespas.program.operations.traits import Category
from hespas.program.program import Block, Op, Value, size_of, values_read
from hespas.program.scopes import Phase, read_scope

LAUNCH_BYTES = 4_000_000
"""What a GPU moves in the time that launching a kernel takes: 2 to 3 us at 1.5 to 2 TB/s.

That of one device serves all, so that a rate that changes leaves the kernels as they are: what
`hespas explain` changes it prices again, and gets what a run would.
"""

BYTES_PER_INSTRUCTION = 0.16
"""What a GPU moves in the time of an instruction: 1.5 TB/s and 9.7e12 a second on A100."""

CACHE_SPEED_UP = 2.5
"""How much faster L2 has what is gathered again than memory, by XLA's own cost model.

Source: openxla/xla, gpu_performance_model_base.cc (``kL2CacheSpeedup``, Apache License 2.0)."""

_MOST_SOURCES = 8
_MANY_PLACES = 64
"""Times that a broadcast repeats an element, from which on the work of making it does not count.

Found in what XLA compiles of ResNets and U-Nets, whose norms it computes again where they are read.
"""


@dataclass(slots=True, kw_only=True, eq=False)
class Group:
    """Operations that become one kernel.

    ``roots`` are those whose results it writes. ``members`` are all of them, with the number of
    times that each is evaluated, ``reads`` about how many bytes of which values it loads.
    ``library`` marks a product with what it adds.
    """

    roots: list[int]
    members: dict[int, int]
    reads: dict[Value, int] = field(default_factory=dict[Value, int])
    library: bool = False


@frozen
class Grouping:
    """The groups of a block, and which operations have results in memory.

    Those ``apart`` are written by kernels that do nothing of what reads them.
    """

    operations: Sequence[Op]
    roles: Sequence[Role]
    groups: Sequence[Group]
    written: Sequence[bool]
    apart: AbstractSet[int] = frozenset()


def grouped(block: Block, *, by_module: bool = False) -> Grouping:
    """Return the kernels of a block in which values have layouts.

    With ``by_module``, a kernel writes what another module of the program reads.
    """
    walk = _Walk(operations=block.operations[:-1])
    walk.prepare(block.operations[-1].operands)
    if by_module:
        walk.end_modules()
    for at in reversed(range(len(walk.operations))):
        walk.op(at)
    return Grouping(
        operations=walk.operations,
        roles=walk.roles,
        groups=walk.groups,
        written=walk.written,
        apart=walk.apart,
    )


def module_of(op: Op) -> tuple[Phase | None, tuple[str, ...]]:
    """Return the pass that an operation belongs to, and the path of its module.

    What a backward pass computes again is a part of it: kernels of gradients do so on the spot.
    """
    named = read_scope(op.scope)
    is_again = named.phase is Phase.RECOMPUTATION
    return Phase.BACKWARD if is_again else named.phase, named.path


def _repeats_much(op: Op) -> bool:
    """Return whether an operation repeats few elements many times."""
    repeats = op.traits.category is Category.BROADCAST and bool(op.operands)
    return repeats and size_of(op.results[0]) >= _MANY_PLACES * size_of(op.operands[0])


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One pass over a block, backwards.

    ``into`` lists the groups that each operation is a part of, ``users`` the operations that read
    it, ``is_needed`` whether something else than a kernel reads it. ``sources`` are what it is
    computed from in memory, with how many bytes of it; ``work`` counts the instructions for one
    element, those of the operations before included. ``products`` maps what a product ends in to
    the product and all else that it takes in. ``often`` are those that kernels would read at too
    many places, ``apart`` those that kernels would sum in few blocks, ``rows`` the reductions of
    whose rows a result comes.
    """

    operations: Sequence[Op]
    roles: list[Role] = field(default_factory=list[Role])
    users: list[list[int]] = field(default_factory=list[list[int]])
    is_needed: list[bool] = field(default_factory=list[bool])
    into: list[list[Group]] = field(default_factory=list[list[Group]])
    written: list[bool] = field(default_factory=list[bool])
    sources: list[dict[Value, int]] = field(default_factory=list[dict[Value, int]])
    work: list[int] = field(default_factory=list[int])
    producer: dict[Value, int] = field(default_factory=dict[Value, int])
    products: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    often: AbstractSet[int] = frozenset()
    apart: AbstractSet[int] = frozenset()
    rows: list[int | None] = field(default_factory=list[int | None])
    groups: list[Group] = field(default_factory=list[Group])

    def prepare(self, results: Iterable[Value]) -> None:
        """Find users, sources and what products take in.

        What scatters add to, as zeros, they write over: it ends its kernel, and all read it there.
        """
        started = {value for op in self.operations for value in scattered_over(op)}
        for at, op in enumerate(self.operations):
            is_start = not started.isdisjoint(op.results)
            role = role_of(op)
            self.roles.append(Role.END if is_start and role in (Role.MADE, Role.LOOP) else role)
            self.users.append([])
            for value in dict.fromkeys(values_read(op)):
                before = self.producer.get(value)
                if before is not None:
                    self.users[before].append(at)
            for result in op.results:
                self.producer[result] = at
            self._add_sources(at, op)
            self.rows.append(self._rows_behind(at, op))
        count = len(self.operations)
        self.is_needed = [False] * count
        self.written = [False] * count
        self.into = [[] for _ in range(count)]
        for value in results:
            if value in self.producer:
                self.is_needed[self.producer[value]] = True
        self.apart = multiplied_before(self.operations)
        self.often = read_often(
            self.operations,
            loops=self._of(Role.LOOP, Role.VIEW),
            free=self._of(Role.MADE),
        )
        self.products = Epilogues(
            operations=self.operations,
            roles=self.roles,
            users=self.users,
            producer=self.producer,
            is_needed=self.is_needed,
        ).find()

    def end_modules(self) -> None:
        """Have operations write what operations of other modules read."""
        modules = [module_of(op) for op in self.operations]
        for at, users in enumerate(self.users):
            if self.roles[at] not in (Role.LOOP, Role.END) or _repeats_much(self.operations[at]):
                continue
            if any(modules[user] != modules[at] for user in users):
                self.is_needed[at] = True

    def _of(self, *roles: Role) -> set[int]:
        return {at for at, role in enumerate(self.roles) if role in roles}

    def _add_sources(self, at: int, op: Op) -> None:
        role = self.roles[at]
        if role is Role.MADE:
            self.sources.append({})
            self.work.append(weight(op))
            return
        own = {result: bytes_of(result) for result in op.results}
        if role in (Role.FIXED, Role.END):
            self.sources.append(own)
            self.work.append(0)
            return
        found: dict[Value, int] = {}
        work, places = weight(op), 0 if _repeats_much(op) else window_of(op)
        for value in dict.fromkeys(op.operands):
            before = self.producer.get(value)
            if before is None:
                found[value] = bytes_of(value)
                continue
            work += self.work[before] * places
            for source, size in self.sources[before].items():
                found[source] = max(found.get(source, 0), size)
        if op.traits.reads_part:
            cut = bytes_of(op.results[0])
            found = {value: min(size, cut) for value, size in found.items()}
        self.sources.append(found if len(found) <= _MOST_SOURCES else own)
        self.work.append(min(work, 1_000_000) if len(found) <= _MOST_SOURCES else weight(op))

    def op(self, at: int) -> None:
        """Decide where an operation is computed; all that read it are decided."""
        role = self.roles[at]
        if at in self.products:
            self._product_group(at)
        elif role is Role.FIXED:
            self._fixed(at)
        elif role in (Role.VIEW, Role.MADE):
            self._unwritten(at, self._readers(at))
        elif role is Role.END:
            self._end(at, self._readers(at))
        else:
            self._loop(at, self._readers(at))

    def _unwritten(self, at: int, readers: dict[Group, int]) -> None:
        """Have what costs nothing wherever it is read."""
        self._join(at, readers)
        self.written[at] = self.is_needed[at]
        if self.is_needed[at] and self.roles[at] is Role.VIEW:
            self._need(at)
        elif self.is_needed[at]:
            self._new(at)

    def _end(self, at: int, readers: dict[Group, int]) -> None:
        if not self.is_needed[at] and self._is_normalised(at, readers):
            self._join(at, readers)
        else:
            self._new(at)

    def _loop(self, at: int, readers: dict[Group, int]) -> None:
        if self.is_needed[at]:
            self._new(at)
            free = {group: count for group, count in readers.items() if self._is_free(at, count)}
            self._join(at, free)
        elif (
            not self._is_before_copies(at, readers)
            and at not in self.often
            and at not in self.apart
            and not self._reads_what_is_overwritten(at, readers)
            and (self._is_worth(at, readers) or self._is_of_row(at, readers))
        ):
            self._join(at, readers)
        elif readers:
            self._new(at)

    def _reads_what_is_overwritten(self, at: int, readers: Iterable[Group]) -> bool:
        """Return whether an operation reads what its would-be kernel overwrites.

        Source: openxla/xla, ``CanEmitInputFusedScatter`` in gpu_fusible.cc (Apache License 2.0).
        """
        read = self.operations[at].operands
        return any(
            value in read
            for group in readers
            for root in group.roots
            for value in scattered_over(self.operations[root])
        )

    def _is_before_copies(self, at: int, readers: Iterable[Group]) -> bool:
        """Return whether an operation is written before it is copied into another layout.

        So it is if there are two copies, or if it comes of sums of its rows. What is rounded for a
        copy is rounded with it where what it is made of has other readers.
        """
        copies = [
            root
            for group in readers
            for root in group.roots
            if self.operations[root].kind == "copy"
        ]
        if len(copies) > 1:
            return True
        op = self.operations[at]
        made = self.producer.get(op.operands[0]) if op.kind == "convert" else None
        if made is not None and len(self.users[made]) > 1:
            return False
        is_of_rows = self._elements_of_rows(self.rows[at]) == size_of(op.results[0])
        return is_of_rows and any(self.roles[root] is Role.END for root in copies)

    def _elements_of_rows(self, reduction: int | None) -> int:
        return 0 if reduction is None else size_of(self.operations[reduction].operands[0])

    def _rows_behind(self, at: int, op: Op) -> int | None:
        """Return the reduction of rows whose sums an operation's result comes of."""
        if op.kind == "reduce":
            return at if is_row(op) else None
        if role_of(op) not in (Role.LOOP, Role.VIEW):
            return None
        before = [self.producer.get(value) for value in op.operands]
        rows = [self.rows[each] for each in before if each is not None]
        return max(rows, key=self._elements_of_rows, default=None)

    def _fixed(self, at: int) -> None:
        if not self.into[at]:
            self.written[at] = True
            self._need(at)

    def _need(self, at: int) -> None:
        """Have what an operation reads in memory."""
        for value in values_read(self.operations[at]):
            before = self.producer.get(value)
            if before is not None:
                self.is_needed[before] = True

    def _product_group(self, at: int) -> None:
        """Make a kernel of a product and its epilogue, given the last operation."""
        group = Group(roots=[at], members={}, library=True)
        self.groups.append(group)
        self.written[at] = True
        inner = {at, *self.products[at]}
        pending = sorted(inner)
        while pending:
            each = pending.pop()
            group.members[each] = size_of(self.operations[each].results[0])
            if each != at:
                self.into[each].append(group)
            for value in self.operations[each].operands:
                before = self.producer.get(value)
                if before is None or before in inner:
                    continue
                if self.roles[before] is not Role.MADE:
                    self.is_needed[before] = True
                else:
                    inner.add(before)
                    pending.append(before)

    def _readers(self, at: int) -> dict[Group, int]:
        """Return the groups that read an operation, and how often they would evaluate it."""
        found: dict[Group, int] = {}
        for user in self.users[at]:
            for group in self.into[user]:
                if not group.library:
                    times = self._times(at, user, group)
                    found[group] = max(found.get(group, 0), times)
        return found

    def _times(self, at: int, user: int, group: Group) -> int:
        """Return how often a group evaluates an operation for one that reads it."""
        reading, made = self.operations[user], self.operations[at]
        times = group.members[user]
        kind = reading.kind
        own = size_of(made.results[0])
        if reading.traits.category is Category.REDUCTION:
            return own if kind == "reduce" else max(own, times * window_of(reading))
        if kind in ("concatenate", "pad"):
            return max(1, min(times, times * own // max(1, size_of(reading.results[0]))))
        if reading.traits.category is Category.UPDATE:
            return own
        return times

    def _new(self, at: int) -> None:
        op = self.operations[at]
        size = size_of(op.results[0])
        if op.kind == "dynamic_update_slice":
            size = size_of(op.operands[1])
        group = Group(roots=[at], members={at: size})
        self.groups.append(group)
        self.into[at].append(group)
        self.written[at] = True
        self._add_reads(at, group)

    def _join(self, at: int, readers: dict[Group, int]) -> None:
        for group, times in readers.items():
            group.members[at] = max(group.members.get(at, 0), times)
            if group not in self.into[at]:
                self.into[at].append(group)
            for result in self.operations[at].results:
                group.reads.pop(result, None)
            self._add_reads(at, group)

    def _add_reads(self, at: int, group: Group) -> None:
        for value in self.operations[at].operands:
            before = self.producer.get(value)
            found = {value: bytes_of(value)} if before is None else self.sources[before]
            for source, size in found.items():
                group.reads[source] = max(group.reads.get(source, 0), size)

    def _is_free(self, at: int, times: int) -> bool:
        """Return whether recomputing costs no more than reading what is written anyway."""
        size = size_of(self.operations[at].results[0])
        is_known = self.operations[at].results[0] not in self.sources[at]
        return (
            is_known
            and sum(self.sources[at].values()) <= bytes_of(self.operations[at].results[0])
            and times <= size
            and self.work[at] <= 8
        )

    def _is_worth(self, at: int, readers: dict[Group, int]) -> bool:
        """Return whether to compute in each group instead of writing and reading."""
        op = self.operations[at]
        size, written = size_of(op.results[0]), sum([bytes_of(value) for value in op.results])
        if op.traits.category is Category.BROADCAST or (
            len(readers) == 1 and max(readers.values()) <= size
        ):
            return bool(readers)
        loaded = sum(self.sources[at].values())
        apart = LAUNCH_BYTES + written * (1 + len(readers)) + loaded
        each = self.work[at] * BYTES_PER_INSTRUCTION
        repeated = sum([max(0, times - size) for times in readers.values()]) * each
        # Arithmetic hides behind the loads of the same kernel.
        evaluated = sum([min(times, size) for times in readers.values()])
        again = max(0, evaluated / max(1, size) - 1) * max(0, size * each - loaded)
        if any(self.operations[user].kind == "gather" for user in self.users[at]):
            rounds = sum([max(0, times - size) for times in readers.values()]) / max(1, size)
            again += max(0, loaded - written) * rounds / CACHE_SPEED_UP
        return loaded * len(readers) + repeated + again <= apart

    def _is_of_row(self, at: int, readers: dict[Group, int]) -> bool:
        """Return whether only the row's kernel uses the result of its reduction.

        Such are a mean and the root of a variance: the block that has the row computes them once.
        """
        reduction = self._row_behind(at)
        return reduction is not None and self._is_normalised(reduction, readers)

    def _row_behind(self, at: int) -> int | None:
        """Return the reduction that alone, beside constants, decides an operation's result."""
        while not self.is_needed[at]:
            op = self.operations[at]
            if op.kind == "reduce":
                return at
            if self.roles[at] not in (Role.LOOP, Role.VIEW) or (
                op.traits.category is Category.MOVEMENT and op.kind not in _SAME
            ):
                return None
            before = {self.producer.get(value) for value in op.operands}
            made = {each for each in before if each is None or self.roles[each] is not Role.MADE}
            if len(made) != 1:
                return None
            (found,) = made
            if found is None or len(self.users[found]) != 1:
                return None
            at = found
        return None

    def _is_normalised(self, at: int, readers: dict[Group, int]) -> bool:
        """Return whether a row is multiplied by its own reduction, as in norms.

        One block of threads has a whole row, so that both are one kernel. A row that is all there
        is has no dimension of rows left, and is no such row to XLA.
        """
        op = self.operations[at]
        if op.kind != "reduce" or not readers or len(op.results) != 1 or not is_row(op):
            return False
        if size_of(op.results[0]) == 1:
            return False
        value = op.operands[0]
        before = self.producer.get(value)
        shared = {value} if before is None else set(self.sources[before])
        large = {source for source in shared if size_of(source) >= size_of(value)}
        return bool(large) and all(
            times == size_of(value) and large <= set(group.reads) and self._has_rows(group, value)
            for group, times in readers.items()
        )

    def _has_rows(self, group: Group, value: Value) -> bool:
        """Return whether a kernel makes one array, of rows as a value's or of their sums."""
        if len(group.roots) != 1:
            return False
        (root,) = group.roots
        op = self.operations[root]
        if op.kind == "reduce":
            return is_row(op) and size_of(op.operands[0]) == size_of(value)
        return self.roles[root] is not Role.END and size_of(op.results[0]) == size_of(value)


_SAME = frozenset({"reshape", "transpose"})
"""Of operations that move data, those that give elements another place and no other use."""
