"""Collective algorithms as steps: bytes of each message, and repeats.

The algorithms are those of `hespas.collectives`. A schedule's rounds become steps: in a step all
messages go at once, and the next step begins when all have arrived. Sizes are of one member's input
(see `hespas.tasks.graph.CollectiveTask.size_bytes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_NS, PS_PER_S
from hespas.collectives import algorithms as collective_algorithms
from hespas.collectives.algorithms import ALGORITHMS, binary_tree_all_reduce
from hespas.collectives.patterns import Form, Pattern, messages_per_member, tree_depths
from hespas.collectives.schedule import HIERARCHICAL, Operation, Schedule
from hespas.hardware.interconnect import Interconnect
from hespas.hardware.links import LinkParameters, Protocol
from hespas.program.collectives import CollectiveKind
from hespas.simulate import options
from hespas.simulate.flow.groups import GroupLayout
from hespas.simulate.flow.topology import Topology
from hespas.simulate.flow.transfers import rate_units
from hespas.simulate.kernel import check_memory

ON_AXES = "bidirectional-ring"
"""The algorithm of rings along the axes of a torus."""
_MOST_DIRECT = 64
"""Larger groups don't keep connections between all pairs except for all-to-all."""


def collective_of(kind: str) -> CollectiveKind:
    """Return the collective of a kind such as ``all_reduce``."""
    return CollectiveKind[kind.upper()]


def kinds_of(algorithm: str) -> tuple[str, ...]:
    """Return the kinds of collectives that an algorithm can run.

    >>> kinds_of("double-binary-tree")
    ('all_reduce',)
    """
    match algorithm:
        case options.HIERARCHICAL:
            able = HIERARCHICAL
        case options.MULTI_AXIS | options.HAMILTONIAN:
            able = tuple(ALGORITHMS[ON_AXES].rounds)
        case _:
            able = tuple(ALGORITHMS[algorithm].rounds)
    return tuple([collective.text for collective in able])


def algorithms_for(kind: str, members: int) -> tuple[str, ...]:
    """Return the candidate algorithms for a collective of ``members``.

    >>> algorithms_for("all_to_all", 6)
    ('direct', 'ring')
    """
    able = collective_algorithms.algorithms_for(collective_of(kind), members)
    skips_direct = members > _MOST_DIRECT and kind != "all_to_all"
    return tuple([item.name for item in able if not (skips_direct and item.name == "direct")])


@frozen
class Step:
    """``count`` equal steps, one after the other.

    ``reduced_bytes`` is what a member reduces after each; ``messages`` how many it sends, each of
    which costs it the overhead of a step; ``hops`` how many members a byte passes in a pipeline.
    """

    pattern: Pattern
    size_bytes: int
    count: int = 1
    reduced_bytes: int = 0
    messages: int = 1
    hops: int = 1


def steps_of(
    kind: str,
    algorithm: str,
    *,
    members: int,
    size_bytes: int,
    window: int | None = None,
    pipeline_bytes: int | None = None,
) -> list[Step]:
    """Return the steps of a collective.

    ``window`` limits to how many others a direct algorithm sends at once. ``pipeline_bytes`` is the
    piece in which double binary trees hand data on; None stands for whole buffers.

    >>> steps = steps_of("all_reduce", "ring", members=4, size_bytes=1000)
    >>> [(step.count, step.size_bytes, step.reduced_bytes) for step in steps]
    [(3, 250, 250), (3, 250, 0)]
    """
    schedule = ALGORITHMS[algorithm].schedule(collective_of(kind), members)
    if algorithm == "double-binary-tree":
        if pipeline_bytes is not None:
            return [_pipelined_trees(members, size_bytes, pipeline_bytes)]
        # ASTRA-sim's form of it, where each buffer goes by one of the trees.
        schedule = binary_tree_all_reduce(members)
    return list(_steps(schedule.windowed(window), size_bytes))


def _steps(schedule: Schedule, size_bytes: int) -> Iterator[Step]:
    for rounds in schedule.rounds:
        pattern = rounds.pattern
        is_reduction = rounds.operation is Operation.REDUCE
        if pattern.form is Form.PATH:
            # A pipeline of so small pieces that the latency counts for the first alone.
            yield Step(
                pattern=pattern,
                size_bytes=size_bytes,
                reduced_bytes=size_bytes if is_reduction else 0,
                hops=rounds.depth,
            )
            continue
        reduced_bytes = 0
        # In ASTRA-sim inner members of a binary tree wait on the way down as in a reduction.
        is_inner_descent = (
            pattern.form is Form.DESCEND and pattern.first < tree_depths(schedule.members).max()
        )
        # ASTRA-sim reduces what is sent next; nothing follows the first exchange's share.
        is_first_exchange = pattern == Pattern(Form.EXCHANGE, 1)
        if (is_reduction or is_inner_descent) and not is_first_exchange:
            parts = rounds.size_parts * schedule.channels
            reduced_bytes = size_bytes * parts // schedule.input_parts
        yield Step(
            pattern=pattern,
            size_bytes=schedule.message_bytes(rounds, size_bytes),
            count=rounds.count,
            reduced_bytes=reduced_bytes,
            messages=messages_per_member(pattern, schedule.members),
        )


def _pipelined_trees(members: int, size_bytes: int, pipeline_bytes: int) -> Step:
    """Return two binary trees with half the data each, pipelined."""
    half_bytes = ceil(size_bytes / 2)
    piece_bytes = max(1, min(pipeline_bytes, half_bytes))
    depth = int(tree_depths(members).max())
    return Step(
        pattern=Pattern(Form.BOTH_TREES),
        size_bytes=piece_bytes,
        count=2 * depth + ceil(half_bytes / piece_bytes) - 1,
        reduced_bytes=piece_bytes,
    )


@dataclass(frozen=True, slots=True)
class Price:
    """The time of a message on an idle network.

    It waits ``delay_ps`` without using links, then moves for ``work_ps`` at ``rate``, in units
    of `hespas.simulate.flow.transfers`.
    """

    delay_ps: int
    work_ps: int
    rate: int


@dataclass(frozen=True, slots=True)
class _Row:
    """The latency, bandwidth and link parameters of equal messages."""

    latency_ns: float
    bytes_per_ns: float
    parameters: tuple[LinkParameters, ...]

    def protocols(self, size_bytes: int) -> list[Protocol]:
        protocols = [link.protocol(size_bytes) for link in self.parameters]
        return [protocol for protocol in protocols if protocol is not None]

    def bandwidth(self, size_bytes: int) -> float:
        fractions = [protocol.bandwidth_fraction for protocol in self.protocols(size_bytes)]
        return self.bytes_per_ns * min(fractions, default=1.0)

    def time_ns(self, size_bytes: int, hops: int) -> float:
        overheads = [protocol.overhead_s * 1e9 for protocol in self.protocols(size_bytes)]
        latency_ns = hops * (self.latency_ns + max(overheads, default=0.0))
        return latency_ns + size_bytes / self.bandwidth(size_bytes)


@dataclass(slots=True)
class Pricer:
    """Prices messages on one network; caches their routes.

    ``plain`` prices the network without a cluster's overrides of links; None without overrides.
    """

    interconnect: Interconnect
    topology: Topology
    plain: Pricer | None = None
    _rows: dict[tuple[int, Pattern], list[_Row]] = field(
        default_factory=dict[tuple[int, Pattern], list[_Row]]
    )

    @property
    def endpoint_ps(self) -> int:
        """What a device waits before each step."""
        return round(self.interconnect.endpoint_delay_s * PS_PER_S)

    def reduce_ps(self, size_bytes: int) -> int:
        """Return how long a reduction takes: three passes over memory."""
        rate = self.interconnect.memory_bytes_per_s
        if rate is None:
            return 0
        rounding = self.interconnect.rounding_ps
        return 3 * int(size_bytes / rate * (PS_PER_S / rounding)) * rounding

    def message(
        self, group: GroupLayout, pattern: Pattern, size_bytes: int, *, hops: int = 1
    ) -> Price:
        """Return the price of a pattern's slowest message, pipelined over ``hops`` members."""
        rows = self._rows_of(group, pattern)
        rounding_ps = self.interconnect.rounding_ps
        time_ns = max(row.time_ns(size_bytes, hops) for row in rows)
        total_ps = int(time_ns * (PS_PER_NS / rounding_ps)) * rounding_ps
        narrowest = min(row.bandwidth(size_bytes) for row in rows)
        work_ps = min(total_ps, int(size_bytes / narrowest * PS_PER_NS))
        return Price(total_ps - work_ps, work_ps, rate_units(narrowest))

    def hop(self, group: GroupLayout, pattern: Pattern) -> tuple[float, float]:
        """Return a message's latency (s) and rate (bytes/s), without protocols."""
        rows = self._rows_of(group, pattern)
        latency_s = max(row.latency_ns for row in rows) / 1e9
        overhead_s = max(link.step_overhead_s for row in rows for link in row.parameters)
        return latency_s + overhead_s, min(row.bytes_per_ns for row in rows) * 1e9

    def slowdown(self, group: GroupLayout, pattern: Pattern) -> float:
        """Return a pattern's slowdown by links that differ."""
        if self.plain is None:
            return 1.0
        return self.plain.message(group, pattern, 1).rate / self.message(group, pattern, 1).rate

    def step_overhead_ps(self, group: GroupLayout, pattern: Pattern) -> int:
        """Return a member's overhead for each message that it sends."""
        rows = self._rows_of(group, pattern)
        overheads = [link.step_overhead_s for row in rows for link in row.parameters]
        return round(max(overheads, default=0.0) * PS_PER_S)

    def waits_for_receiver(self, group: GroupLayout, pattern: Pattern, size_bytes: int) -> bool:
        """Return whether a message leaves only once its receiver waits."""
        rows = self._rows_of(group, pattern)
        return any(item.waits_for_receiver for row in rows for item in row.protocols(size_bytes))

    def _parameters(self, dimensions: int) -> tuple[LinkParameters, ...]:
        """Return the parameters of a bit set of dimensions."""
        numbered = enumerate(self.interconnect.dimensions)
        return tuple([item.parameters for index, item in numbered if dimensions >> index & 1])

    def _rows_of(self, group: GroupLayout, pattern: Pattern) -> list[_Row]:
        key = (group.number, pattern)
        if key not in self._rows:
            self._rows[key] = self._new_rows(group, pattern)
        return self._rows[key]

    def _new_rows(self, group: GroupLayout, pattern: Pattern) -> list[_Row]:
        """Return a pattern's distinct messages on evenly shared links."""
        # Devices whose links differ don't send alike.
        is_alike = self.plain is None
        simple, times = group.sample(pattern) if is_alike else group.simplest(pattern)
        check_memory(group.message_count(simple))
        sources, targets = group.positions(simple, most_lines=1 if is_alike else None)
        routes = self.topology.routes(group.members[sources], group.members[targets])
        links, which, count = np.unique(routes.link, return_inverse=True, return_counts=True)
        share = (self.topology.bytes_per_ns(links) / (count * times))[which]
        narrowest = np.full(len(sources), np.inf)
        np.minimum.at(narrowest, routes.message, share)
        columns = (routes.latency_ns, narrowest, routes.dimensions.astype(np.float64))
        rows = np.stack(columns, axis=1)
        if len(rows) > 1 and (rows == rows[0]).all():
            rows = rows[:1]
        # With counts, as in `count_distinct`.
        different, _ = np.unique(rows, axis=0, return_counts=True)
        return [
            _Row(float(latency), float(rate), self._parameters(int(dimensions)))
            for latency, rate, dimensions in different.tolist()
        ]
