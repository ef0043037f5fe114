"""Join neighbouring compute regions without delaying any collective.

Let A and B be two compute regions, B the next after A in program order. They are joined if

1. B is the next step of a path: B reads A, everything else that B reads is ready before A can
   start, and everything else that reads A and leads to a collective waits for B in any case;
   or neither leads to a collective, and both wait for the same collectives;
2. and no earlier computation may still wait for a collective when A starts.

By (1), B can start as soon as A ends on any machine, with any number of streams, and nothing that
leads to a collective waits for A alone. By (2), a stream that always takes the earliest ready
computation has none before B when A ends. So no collective starts later, whatever the durations,
and whether a device runs regions concurrently, in program order or as they become ready.
"""

from __future__ import annotations

from dataclasses import dataclass

from hespas.program.program import Op
from hespas.split.flatten import FlatProgram
from hespas.split.regions import Compute, RegionGraph, build_graph, operations_of

CollectiveSet = int
"""A set of collectives as the bits of an integer."""

WINDOW = 4096
"""The distance, in regions, up to which ancestors are tracked; farther ones count as unknown."""


def merge_regions(graph: RegionGraph, *, block_limit: int | None) -> RegionGraph:
    """Return the graph with compute regions joined, up to ``block_limit`` operations each."""
    reach = _Reach.of(graph)
    groups: list[list[Op]] = []
    block: list[Op] = []
    members: list[int] = []
    awaited = awaited_earlier = 0
    for region in graph.regions:
        if not isinstance(region, Compute):
            groups.append(list(operations_of(region)))
            continue
        fits = block_limit is None or len(block) + len(region.operations) <= block_limit
        is_next = bool(members) and awaited_earlier & ~reach.before[members[0]] == 0
        if is_next and fits and reach.may_join(members[0], members[-1], region.id):
            block.extend(region.operations)
            members.append(region.id)
        else:
            block, members = list(region.operations), [region.id]
            groups.append(block)
            awaited_earlier = awaited
        awaited |= reach.before[region.id]
    return build_graph(graph.program, _flat(graph), groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reach:
    """Reachability in a graph, by region id.

    Bit ``k`` of ``ancestors[i]`` is set if region ``i - 1 - k`` leads to region ``i``, for
    ``k`` below `WINDOW`.
    """

    graph: RegionGraph
    consumers: tuple[tuple[int, ...], ...]
    ancestors: tuple[int, ...]
    before: tuple[CollectiveSet, ...]
    after: tuple[CollectiveSet, ...]

    @staticmethod
    def of(graph: RegionGraph) -> _Reach:
        consumers: list[list[int]] = [[] for _ in graph.regions]
        for number, producers in enumerate(graph.producers):
            for producer in producers:
                consumers[producer].append(number)
        return _Reach(
            graph=graph,
            consumers=tuple(map(tuple, consumers)),
            ancestors=_ancestors(graph),
            before=tuple(collectives_before(graph)),
            after=tuple(collectives_after(graph)),
        )

    def may_join(self, first: int, last: int, region: int) -> bool:
        """Return whether ``region`` may join the block from ``first`` to ``last``."""
        if self._leads_to_collective(last) or self._leads_to_collective(region):
            return self._continues(last, region)
        return self.before[region] == self.before[first]

    def _continues(self, last: int, region: int) -> bool:
        producers = self.graph.producers[region]
        if last not in producers:
            return False
        if not all(each == last or self._leads(each, last) for each in producers):
            return False
        return all(
            each == region or self._leads(region, each) or not self._leads_to_collective(each)
            for each in self.consumers[last]
        )

    def _leads(self, source: int, target: int) -> bool:
        distance = target - source - 1
        return 0 <= distance < WINDOW and bool(self.ancestors[target] >> distance & 1)

    def _leads_to_collective(self, region: int) -> bool:
        return self.after[region] != 0 or not isinstance(self.graph.regions[region], Compute)


def _ancestors(graph: RegionGraph) -> tuple[int, ...]:
    window = (1 << WINDOW) - 1
    ancestors: list[int] = []
    for number, producers in enumerate(graph.producers):
        reached = 0
        for producer in producers:
            distance = number - producer - 1
            if distance < WINDOW:
                reached |= (ancestors[producer] << distance + 1 | 1 << distance) & window
        ancestors.append(reached)
    return tuple(ancestors)


def collectives_before(graph: RegionGraph) -> list[CollectiveSet]:
    """Return, for each region, the collectives whose results reach it."""
    bits = _bits(graph)
    before: list[CollectiveSet] = []
    for producers in graph.producers:
        reached = 0
        for producer in producers:
            reached |= before[producer] | bits[producer]
        before.append(reached)
    return before


def collectives_after(graph: RegionGraph) -> list[CollectiveSet]:
    """Return, for each region, the collectives that its results reach."""
    bits = _bits(graph)
    after: list[CollectiveSet] = [0] * len(graph.regions)
    for number in reversed(range(len(graph.regions))):
        reached = after[number] | bits[number]
        for producer in graph.producers[number]:
            after[producer] |= reached
    return after


def _bits(graph: RegionGraph) -> list[CollectiveSet]:
    bits = [0] * len(graph.regions)
    alone = (region for region in graph.regions if not isinstance(region, Compute))
    for at, region in enumerate(alone):
        bits[region.id] = 1 << at
    return bits


def _flat(graph: RegionGraph) -> FlatProgram:
    constants: dict[Op, None] = {}
    operations: list[Op] = []
    for region in graph.regions:
        constants.update(dict.fromkeys(region.constants))
        operations.extend(operations_of(region))
    return FlatProgram(
        arguments=graph.arguments,
        operations=(*constants, *operations),
        results=graph.results,
        assumptions=graph.assumptions[len(graph.program.assumptions) :],
    )
