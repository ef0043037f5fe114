"""Split strategies: single operations or blocks, optionally merged.

Merging joins neighbouring compute regions without delaying any collective. Let A and B be two
compute regions, B the next one after A in program order. They are joined if

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

from collections.abc import Sequence
from itertools import accumulate

from hespas.base.fields import refuse_unused
from hespas.base.suggest import choice
from hespas.errors import ConfigError, option
from hespas.program.program import Op, Program
from hespas.split.flatten import flatten, split_scheduled, stands_alone
from hespas.split.options import (
    COMMUNICATION_SEPARATOR,
    DEFAULT_BLOCK_LIMIT,
    OPERATIONS,
    SeparatorPolicy,
    SplitOptions,
    SplitStrategy,
)
from hespas.split.regions import (
    Compute,
    FlatProgram,
    RegionGraph,
    build_graph,
    is_constant,
    operations_of,
)
from hespas.work.fusion import is_on_host


def split_program(
    program: Program, options: SplitOptions, *, most_rounds: int | None = None
) -> RegionGraph:
    """Split a program into regions, as ``options`` specify.

    Every operation except constants is in exactly one region, in program order. A program that a
    compiler scheduled is split into its kernels, with ``most_rounds`` of each loop if set
    (`hespas.split.flatten.split_scheduled`). Raises `ConfigError` for a separator that does
    not occur in the program, and for options that have no effect on a scheduled program.
    """
    if program.is_scheduled:
        refuse_unused(options, {OPERATIONS: True}, location=program.source)
        return split_scheduled(program, most_rounds=most_rounds)
    flat = flatten(program)
    match options.strategy:
        case SplitStrategy.INDIVIDUAL:
            groups = [(op,) for op in flat.operations if not is_constant(op)]
        case SplitStrategy.LINEAR:
            _check_separator(flat.operations, options.separator)
            groups = _linear_groups(flat.operations, options)
    graph = build_graph(program, flat, groups)
    return merge_regions(graph, block_limit=options.block_limit) if options.merge else graph


def _check_separator(operations: Sequence[Op], separator: str) -> None:
    is_named = separator != COMMUNICATION_SEPARATOR
    if is_named and not any(op.name == separator for op in operations):
        raise ConfigError(
            f"{option('separator')} {separator!r} occurs nowhere in the program",
            hint="use is_communication_op or the full name of an operation in it",
        )


def _linear_groups(operations: Sequence[Op], options: SplitOptions) -> list[tuple[Op, ...]]:
    """Return the blocks between separators; constants count towards the limit."""
    blocks: list[list[Op]] = [[]]
    limit = options.block_limit or DEFAULT_BLOCK_LIMIT
    for op in operations:
        # An operation on the host is separate, so that its wait delays no computation.
        is_alone = stands_alone(op) or is_on_host(op)
        separates = is_alone or op.name == options.separator
        policy = SeparatorPolicy.ISOLATED if is_alone else options.separator_policy
        starts_block = separates and policy is not SeparatorPolicy.END_BLOCK
        if starts_block or len(blocks[-1]) >= limit:
            blocks.append([])
        blocks[-1].append(op)
        if separates and policy is not SeparatorPolicy.START_BLOCK:
            blocks.append([])
    groups = (tuple(op for op in block if not is_constant(op)) for block in blocks)
    return [group for group in groups if group]


def split_options(
    *,
    strategy: str = SplitStrategy.LINEAR.value,
    merge: bool = False,
    block_limit: int | None = None,
    separator: str = COMMUNICATION_SEPARATOR,
    separator_policy: str = SeparatorPolicy.ISOLATED.value,
) -> SplitOptions:
    """Parse options by their documented names; `ConfigError` for others."""
    return SplitOptions(
        strategy=choice(strategy, SplitStrategy, subject="split_strategy"),
        merge=merge,
        block_limit=block_limit,
        separator=separator,
        separator_policy=choice(separator_policy, SeparatorPolicy, subject="separator_policy"),
    )


WINDOW = 4096
"""The largest distance, in regions, of tracked ancestors; farther ones count as unknown."""


def merge_regions(graph: RegionGraph, *, block_limit: int | None) -> RegionGraph:
    """Join compute regions, up to ``block_limit`` operations each."""
    reach = _Reach(graph)
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


class _Reach:
    """Reachability between regions of a graph, by id.

    Bit ``k`` of ``ancestors[i]`` is set if region ``i - 1 - k`` leads to region ``i``, for ``k``
    below `WINDOW`. The bits of ``before`` are the collectives whose results reach a region;
    ``leads`` says that a region is a collective, or that its results reach one.
    """

    def __init__(self, graph: RegionGraph) -> None:
        self.graph = graph
        self.consumers: list[list[int]] = [[] for _ in graph.regions]
        self.ancestors: list[int] = []
        self.before: list[int] = []
        self.leads = [not isinstance(region, Compute) for region in graph.regions]
        numbers = accumulate(self.leads)
        bits = [is_one << number for is_one, number in zip(self.leads, numbers, strict=True)]
        window = (1 << WINDOW) - 1
        for number, producers in enumerate(graph.producers):
            reached = awaited = 0
            for producer in producers:
                self.consumers[producer].append(number)
                awaited |= self.before[producer] | bits[producer]
                distance = number - producer - 1
                if distance < WINDOW:
                    reached |= (self.ancestors[producer] << distance + 1 | 1 << distance) & window
            self.ancestors.append(reached)
            self.before.append(awaited)
        for number in reversed(range(len(graph.regions))):
            self.leads[number] |= any(self.leads[consumer] for consumer in self.consumers[number])

    def may_join(self, first: int, last: int, region: int) -> bool:
        """Return whether ``region`` may join the block from ``first`` to ``last``."""
        if not (self.leads[last] or self.leads[region]):
            return self.before[region] == self.before[first]
        producers = self.graph.producers[region]
        if last not in producers:
            return False
        if not all(neighbour == last or self._reaches(neighbour, last) for neighbour in producers):
            return False
        return all(
            neighbour == region or self._reaches(region, neighbour) or not self.leads[neighbour]
            for neighbour in self.consumers[last]
        )

    def _reaches(self, source: int, target: int) -> bool:
        distance = target - source - 1
        return 0 <= distance < WINDOW and bool(self.ancestors[target] >> distance & 1)


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
