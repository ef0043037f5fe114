"""Join neighbouring compute regions without delaying any collective.

Take two compute regions A and B, B next after A in program order. They may become one if

* the same collectives depend on A as on B, and
* every collective that B depends on, A depends on too.

Then no collective waits for more work than before (first condition), A does not wait for
communication that it could have overlapped (second), and on a compute stream in program order
B followed A at once anyway: the merged region starts and ends exactly when A and B did.
"""

from __future__ import annotations

from hespas.program.program import Op
from hespas.split.build import build_graph
from hespas.split.flatten import FlatProgram
from hespas.split.regions import Compute, RegionGraph, operations_of

CollectiveSet = int
"""A set of collectives as the bits of an integer."""


def merge_regions(graph: RegionGraph, *, block_limit: int | None) -> RegionGraph:
    """Return the graph with compute regions joined, up to ``block_limit`` operations each."""
    before = collectives_before(graph)
    after = collectives_after(graph)
    groups: list[list[Op]] = []
    order: list[tuple[int, list[Op]]] = []
    block: list[Op] = []
    first = -1
    for region in graph.regions:
        number = region.id
        if not isinstance(region, Compute):
            order.append((number, list(operations_of(region))))
            continue
        fits = block_limit is None or len(block) + len(region.operations) <= block_limit
        same = first >= 0 and after[number] == after[first]
        if same and fits and before[number] & ~before[first] == 0:
            block.extend(region.operations)
            continue
        block, first = list(region.operations), number
        order.append((number, block))
    groups = [group for _, group in order]
    return build_graph(graph.program, _flat(graph), groups)


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
    for at, region in enumerate(graph.collective_regions):
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
