"""Which operations become one kernel.

Operations are looked at from the last to the first, so that the kernels that read one are known. It
becomes a part of each of them, and is computed in each, if that moves fewer bytes and launches
fewer kernels than to write it once and read it again; a long computation is not repeated for
every place of a broadcast. What a library, a collective, a loop or a caller reads is written.
Reductions, transposes that change which dimension is the fastest, and updates in place end their
kernels; other kernels may share theirs (`hespas.lower.merge`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from hespas.lower.epilogues import Epilogues
from hespas.lower.layouts import VIEWS
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


def grouped(
    block: Block, *, by_module: bool = False, fixed: Callable[[Op], bool] = lambda _: False
) -> Grouping:
    """Return the kernels of a block in which values have layouts.

    With ``by_module``, a kernel writes what another module of the program reads. What is ``fixed``
    stands alone.
    """
    grouping = Grouping(operations=block.operations[:-1], fixed=fixed)
    grouping.prepare(block.operations[-1].operands)
    if by_module:
        grouping.end_modules()
    for place in reversed(range(len(grouping.operations))):
        grouping.op(place)
    return grouping


def module_of(op: Op) -> tuple[Phase | None, tuple[str, ...]]:
    """Return an operation's pass and the path of its module.

    What a backward pass computes again is a part of it: kernels of gradients do so on the spot.
    """
    scope = read_scope(op.scope)
    is_again = scope.phase is Phase.RECOMPUTATION
    return Phase.BACKWARD if is_again else scope.phase, scope.path


def _repeats_much(op: Op) -> bool:
    """Return whether an operation repeats few elements many times."""
    repeats = op.traits.category is Category.BROADCAST and bool(op.operands)
    return repeats and size_of(op.results[0]) >= _MANY_PLACES * size_of(op.operands[0])


@dataclass(slots=True, kw_only=True)
class Grouping:
    """The groups of a block, found in one pass backwards.

    ``into`` lists the groups that each operation is a part of, ``users`` the operations that read
    it, ``is_needed`` whether something else than a kernel reads it, and ``written`` whether its
    results are in memory. ``sources`` are what it is
    computed from in memory, with how many bytes of it; ``work`` counts the instructions for one
    element, those of the operations before included. ``products`` maps what a product ends in to
    the product and all else that it takes in. ``often`` are those that kernels would read at too
    many places, ``apart`` those that kernels would sum in few blocks: kernels that do nothing of
    what reads them write these. ``rows`` are the reductions of whose rows a result comes.
    """

    operations: Sequence[Op]
    fixed: Callable[[Op], bool]
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
        for place, op in enumerate(self.operations):
            is_start = not started.isdisjoint(op.results)
            role = Role.FIXED if self.fixed(op) else role_of(op)
            self.roles.append(Role.END if is_start and role in (Role.MADE, Role.LOOP) else role)
            self.users.append([])
            for value in dict.fromkeys(values_read(op)):
                before = self.producer.get(value)
                if before is not None:
                    self.users[before].append(place)
            for result in op.results:
                self.producer[result] = place
            self._add_sources(place, op)
            self.rows.append(self._rows_behind(place, op))
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
            loops=self._with_roles(Role.LOOP, Role.VIEW),
            free=self._with_roles(Role.MADE),
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
        for place, users in enumerate(self.users):
            is_part = self.roles[place] in (Role.LOOP, Role.END)
            if is_part and not _repeats_much(self.operations[place]):
                self.is_needed[place] |= any(modules[user] != modules[place] for user in users)

    def _with_roles(self, *roles: Role) -> set[int]:
        return {place for place, role in enumerate(self.roles) if role in roles}

    def _add_sources(self, place: int, op: Op) -> None:
        role = self.roles[place]
        if role is Role.MADE:
            self.sources.append({})
            self.work.append(weight(op))
            return
        own = {result: bytes_of(result) for result in op.results}
        if role in (Role.FIXED, Role.END):
            self.sources.append(own)
            self.work.append(0)
            return
        loaded: dict[Value, int] = {}
        work, places = weight(op), 0 if _repeats_much(op) else window_of(op)
        for value in dict.fromkeys(op.operands):
            before = self.producer.get(value)
            if before is None:
                loaded[value] = bytes_of(value)
                continue
            work += self.work[before] * places
            for source, size in self.sources[before].items():
                loaded[source] = max(loaded.get(source, 0), size)
        if op.traits.reads_part:
            cut = bytes_of(op.results[0])
            loaded = {value: min(size, cut) for value, size in loaded.items()}
        self.sources.append(loaded if len(loaded) <= _MOST_SOURCES else own)
        self.work.append(min(work, 1_000_000) if len(loaded) <= _MOST_SOURCES else weight(op))

    def op(self, place: int) -> None:
        """Decide where an operation is computed; all that read it are decided."""
        role = self.roles[place]
        if place in self.products:
            self._product_group(place)
        elif role is Role.FIXED:
            if not self.into[place]:
                self.written[place] = True
                self._need(place)
        elif role in (Role.VIEW, Role.MADE):
            self._unwritten(place, self._readers(place))
        elif role is Role.END:
            readers = self._readers(place)
            if not self.is_needed[place] and self._is_normalised(place, readers):
                self._join(place, readers)
            else:
                self._new(place)
        else:
            self._loop(place, self._readers(place))

    def _unwritten(self, place: int, readers: dict[Group, int]) -> None:
        """Have what costs nothing wherever it is read."""
        self._join(place, readers)
        self.written[place] = self.is_needed[place]
        if self.is_needed[place] and self.roles[place] is Role.VIEW:
            self._need(place)
        elif self.is_needed[place]:
            self._new(place)

    def _loop(self, place: int, readers: dict[Group, int]) -> None:
        if self.is_needed[place]:
            self._new(place)
            free = {group: count for group, count in readers.items() if self._is_free(place, count)}
            self._join(place, free)
        elif (
            not self._is_before_copies(place, readers)
            and place not in self.often
            and place not in self.apart
            and not self._reads_what_is_overwritten(place, readers)
            and (self._is_worth(place, readers) or self._is_of_row(place, readers))
        ):
            self._join(place, readers)
        elif readers:
            self._new(place)

    def _reads_what_is_overwritten(self, place: int, readers: Iterable[Group]) -> bool:
        """Return whether an operation reads what its would-be kernel overwrites.

        Source: openxla/xla, ``CanEmitInputFusedScatter`` in gpu_fusible.cc (Apache License 2.0).
        """
        roots = [self.operations[root] for group in readers for root in group.roots]
        overwritten = {value for root in roots for value in scattered_over(root)}
        return not overwritten.isdisjoint(self.operations[place].operands)

    def _is_before_copies(self, place: int, readers: Iterable[Group]) -> bool:
        """Return whether an operation is written before its copies.

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
        op = self.operations[place]
        source = self.producer.get(op.operands[0]) if op.kind == "convert" else None
        if source is not None and len(self.users[source]) > 1:
            return False
        is_of_rows = self._elements_of_rows(self.rows[place]) == size_of(op.results[0])
        return is_of_rows and any(self.roles[root] is Role.END for root in copies)

    def _elements_of_rows(self, reduction: int | None) -> int:
        return 0 if reduction is None else size_of(self.operations[reduction].operands[0])

    def _rows_behind(self, place: int, op: Op) -> int | None:
        """Return the reduction of rows whose sums an operation's result comes of."""
        if op.kind == "reduce":
            return place if is_row(op) else None
        if role_of(op) not in (Role.LOOP, Role.VIEW):
            return None
        before = [self.producer.get(value) for value in op.operands]
        rows = [self.rows[producer] for producer in before if producer is not None]
        return max(rows, key=self._elements_of_rows, default=None)

    def _need(self, place: int) -> None:
        """Have what an operation reads in memory."""
        for value in values_read(self.operations[place]):
            before = self.producer.get(value)
            if before is not None:
                self.is_needed[before] = True

    def _product_group(self, place: int) -> None:
        """Make a kernel of a product and its epilogue."""
        group = Group(roots=[place], members={}, library=True)
        self.groups.append(group)
        self.written[place] = True
        inner = {place, *self.products[place]}
        pending = sorted(inner)
        while pending:
            member = pending.pop()
            group.members[member] = size_of(self.operations[member].results[0])
            if member != place:
                self.into[member].append(group)
            for value in self.operations[member].operands:
                before = self.producer.get(value)
                if before is None or before in inner:
                    continue
                if self.roles[before] is not Role.MADE:
                    self.is_needed[before] = True
                else:
                    inner.add(before)
                    pending.append(before)

    def _readers(self, place: int) -> dict[Group, int]:
        """Return an operation's reading groups, with its evaluations in each."""
        evaluations: dict[Group, int] = {}
        for user in self.users[place]:
            for group in self.into[user]:
                if not group.library:
                    times = self._times(place, user, group)
                    evaluations[group] = max(evaluations.get(group, 0), times)
        return evaluations

    def _times(self, place: int, user: int, group: Group) -> int:
        """Return how often a group evaluates an operand."""
        reading, produced = self.operations[user], self.operations[place]
        times = group.members[user]
        kind = reading.kind
        own = size_of(produced.results[0])
        if reading.traits.category is Category.REDUCTION:
            return own if kind == "reduce" else max(own, times * window_of(reading))
        if kind in ("concatenate", "pad"):
            return max(1, min(times, times * own // max(1, size_of(reading.results[0]))))
        if reading.traits.category is Category.UPDATE:
            return own
        return times

    def _new(self, place: int) -> None:
        op = self.operations[place]
        size = size_of(op.results[0])
        if op.kind == "dynamic_update_slice":
            size = size_of(op.operands[1])
        group = Group(roots=[place], members={place: size})
        self.groups.append(group)
        self.into[place].append(group)
        self.written[place] = True
        self._add_reads(place, group)

    def _join(self, place: int, readers: dict[Group, int]) -> None:
        for group, times in readers.items():
            group.members[place] = max(group.members.get(place, 0), times)
            if group not in self.into[place]:
                self.into[place].append(group)
            for result in self.operations[place].results:
                group.reads.pop(result, None)
            self._add_reads(place, group)

    def _add_reads(self, place: int, group: Group) -> None:
        for value in self.operations[place].operands:
            before = self.producer.get(value)
            loaded = {value: bytes_of(value)} if before is None else self.sources[before]
            for source, size in loaded.items():
                group.reads[source] = max(group.reads.get(source, 0), size)

    def _is_free(self, place: int, times: int) -> bool:
        """Return whether recomputing costs no more than reading."""
        size = size_of(self.operations[place].results[0])
        is_known = self.operations[place].results[0] not in self.sources[place]
        return (
            is_known
            and sum(self.sources[place].values()) <= bytes_of(self.operations[place].results[0])
            and times <= size
            and self.work[place] <= 8
        )

    def _is_worth(self, place: int, readers: dict[Group, int]) -> bool:
        """Return whether to compute in each group instead of writing and reading."""
        op = self.operations[place]
        size, written = size_of(op.results[0]), sum([bytes_of(value) for value in op.results])
        if op.traits.category is Category.BROADCAST or (
            len(readers) == 1 and max(readers.values()) <= size
        ):
            return bool(readers)
        loaded = sum(self.sources[place].values())
        apart = LAUNCH_BYTES + written * (1 + len(readers)) + loaded
        element_bytes = self.work[place] * BYTES_PER_INSTRUCTION
        repeated = sum([max(0, times - size) for times in readers.values()]) * element_bytes
        # Arithmetic hides behind the loads of the same kernel.
        evaluated = sum([min(times, size) for times in readers.values()])
        again = max(0, evaluated / max(1, size) - 1) * max(0, size * element_bytes - loaded)
        if any(self.operations[user].kind == "gather" for user in self.users[place]):
            rounds = sum([max(0, times - size) for times in readers.values()]) / max(1, size)
            again += max(0, loaded - written) * rounds / CACHE_SPEED_UP
        return loaded * len(readers) + repeated + again <= apart

    def _is_of_row(self, place: int, readers: dict[Group, int]) -> bool:
        """Return whether only the row's kernel uses the result of its reduction.

        Such are a mean and the root of a variance: the block that has the row computes them once.
        """
        reduction = self._row_behind(place)
        return reduction is not None and self._is_normalised(reduction, readers)

    def _row_behind(self, place: int) -> int | None:
        """Return the reduction that alone decides an operation's result."""
        while not self.is_needed[place]:
            op = self.operations[place]
            if op.kind == "reduce":
                return place
            if self.roles[place] not in (Role.LOOP, Role.VIEW) or (
                op.traits.category is Category.MOVEMENT and op.kind not in VIEWS
            ):
                return None
            before = {self.producer.get(value) for value in op.operands}
            varying = [it for it in before if it is None or self.roles[it] is not Role.MADE]
            if len(varying) != 1:
                return None
            (source,) = varying
            if source is None or len(self.users[source]) != 1:
                return None
            place = source
        return None

    def _is_normalised(self, place: int, readers: dict[Group, int]) -> bool:
        """Return whether a row is scaled by its own reduction.

        One block of threads has a whole row, so that both are one kernel. A row that is all there
        is has no dimension of rows left, and is no such row to XLA.
        """
        op = self.operations[place]
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
        """Return whether a kernel makes one array of such rows."""
        if len(group.roots) != 1:
            return False
        (root,) = group.roots
        op = self.operations[root]
        if op.kind == "reduce":
            return is_row(op) and size_of(op.operands[0]) == size_of(value)
        return self.roles[root] is not Role.END and size_of(op.results[0]) == size_of(value)
