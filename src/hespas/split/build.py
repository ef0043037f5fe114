"""From groups of operations to a region graph: inputs, outputs, constants and edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hespas.program.program import Op, Program, Value, is_communication_op, values_read
from hespas.split.flatten import FlatProgram
from hespas.split.regions import Collective, Compute, Region, RegionGraph


def is_constant(op: Op) -> bool:
    """Tell whether a region may hold its own copy of an operation."""
    return op.kind == "constant"


def build_graph(program: Program, flat: FlatProgram, groups: Sequence[Sequence[Op]]) -> RegionGraph:
    """Make one region of each group, in order; constants may be left out of the groups.

    A group is one collective, or operations without communication. Time and memory grow
    linearly with the operations.
    """
    constants = {op.results[0]: op for op in flat.operations if is_constant(op)}
    region_of = {
        result: number
        for number, group in enumerate(groups)
        for op in group
        for result in op.results
    }
    reads = [_outside_values(group) for group in groups]
    used_elsewhere = set(flat.results).union(*reads)
    regions = tuple(
        [
            _region(number, group, values, constants, used_elsewhere)
            for number, (group, values) in enumerate(zip(groups, reads, strict=True))
        ]
    )
    producers = tuple(
        [
            tuple(sorted({region_of[value] for value in region.inputs if value in region_of}))
            for region in regions
        ]
    )
    return RegionGraph(
        program=program,
        regions=regions,
        producers=producers,
        arguments=flat.arguments,
        results=flat.results,
        assumptions=(*program.assumptions, *flat.assumptions),
    )


def _outside_values(group: Sequence[Op]) -> dict[Value, None]:
    """Return what a group takes from outside, in order of use."""
    if len(group) == 1:
        return dict.fromkeys(_values_read(group[0]))
    inside: set[Value] = set()
    outside: dict[Value, None] = {}
    for op in group:
        for value in _values_read(op):
            if value not in inside:
                outside[value] = None
        inside.update(op.results)
    return outside


def _values_read(op: Op) -> Iterable[Value]:
    return values_read(op) if op.regions else op.operands


def _region(
    number: int,
    group: Sequence[Op],
    values: Iterable[Value],
    constants: Mapping[Value, Op],
    used_elsewhere: set[Value],
) -> Region:
    copied = tuple([constants[value] for value in values if value in constants])
    inputs = tuple([value for value in values if value not in constants])
    outputs = tuple([value for op in group for value in op.results if value in used_elsewhere])
    if is_communication_op(group[0]):
        return Collective(
            id=number, operation=group[0], constants=copied, inputs=inputs, outputs=outputs
        )
    return Compute(
        id=number, operations=tuple(group), constants=copied, inputs=inputs, outputs=outputs
    )
