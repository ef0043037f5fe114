"""From groups of operations to a region graph: inputs, outputs, constants and edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    region_of: dict[Value, int] = {
        result: number
        for number, group in enumerate(groups)
        for op in group
        for result in op.results
        if result not in constants
    }
    reads = [_Reads.of(group, constants) for group in groups]
    used_elsewhere = _used_elsewhere(reads, flat.results)
    regions = tuple(
        _region(number, group, read, used_elsewhere)
        for number, (group, read) in enumerate(zip(groups, reads, strict=True))
    )
    producers = tuple(
        tuple(sorted({region_of[value] for value in read.inputs if value in region_of}))
        for read in reads
    )
    return RegionGraph(
        program=program,
        regions=regions,
        producers=producers,
        arguments=flat.arguments,
        results=flat.results,
        assumptions=(*program.assumptions, *flat.assumptions),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reads:
    """What a group takes from outside: constants, and values of others, in order of use."""

    inputs: tuple[Value, ...]
    constants: tuple[Op, ...]

    @staticmethod
    def of(group: Sequence[Op], constants: dict[Value, Op]) -> _Reads:
        inside: set[Value] = set()
        inputs: dict[Value, None] = {}
        copied: dict[Value, Op] = {}
        for op in group:
            for value in values_read(op):
                if value in constants:
                    copied[value] = constants[value]
                elif value not in inside:
                    inputs[value] = None
            inside.update(op.results)
        return _Reads(inputs=tuple(inputs), constants=tuple(copied.values()))


def _used_elsewhere(reads: Sequence[_Reads], results: Sequence[Value]) -> set[Value]:
    used = set(results)
    for read in reads:
        used.update(read.inputs)
    return used


def _region(number: int, group: Sequence[Op], read: _Reads, used_elsewhere: set[Value]) -> Region:
    outputs = tuple(result for op in group for result in op.results if result in used_elsewhere)
    if is_communication_op(group[0]):
        return Collective(
            id=number,
            operation=group[0],
            constants=read.constants,
            inputs=read.inputs,
            outputs=outputs,
        )
    return Compute(
        id=number,
        operations=tuple(group),
        constants=read.constants,
        inputs=read.inputs,
        outputs=outputs,
    )
