"""Extend a program for two TPU slices to more slices.

If devices at the same position of each slice do the same on their share of a batch, the number of
slices changes only the groups of the collectives between slices.
"""

from __future__ import annotations

from msgspec.structs import replace

from hespas.errors import UnsupportedError
from hespas.program.attrs import CollectiveAttrs, PermuteAttrs
from hespas.program.groups import FoldedGroups, ListedGroups, ReplicaGroups
from hespas.program.program import GlobalFacts, Op, Program
from hespas.program.rewrite import each_op, with_bodies

COMPILED_SLICES = 2
"""The number of slices of the program that `with_slices` takes."""


def with_slices(program: Program, slices: int) -> Program:
    """Return a program for ``slices`` slices from that for two.

    Raises `UnsupportedError` for a collective that is neither inside each slice nor among devices
    at the same position of both. `Program.global_facts` is dropped.
    """
    devices = (program.replicas or 1) * (program.partitions or 1) // COMPILED_SLICES

    def extend(op: Op) -> Op:
        match op.attrs:
            case CollectiveAttrs(groups=groups):
                changed = replace(op.attrs, groups=_extended_groups(groups, devices, slices, op))
            case PermuteAttrs(pairs=pairs):
                changed = replace(op.attrs, pairs=_extended_pairs(pairs, devices, slices, op))
            case _:
                return op
        return replace(op, attrs=changed)

    extended = with_bodies(program, lambda body: each_op(body, extend))
    return replace(extended, replicas=1, partitions=devices * slices, global_facts=GlobalFacts())


def _extended_groups(groups: ReplicaGroups, devices: int, slices: int, op: Op) -> ReplicaGroups:
    match groups:
        case FoldedGroups(dimensions=(count, inside), permutation=(1, 0), group_size=size) if (
            count == size == COMPILED_SLICES and inside == devices
        ):
            return FoldedGroups(dimensions=(slices, devices), permutation=(1, 0), group_size=slices)
        case FoldedGroups(dimensions=(count, *inside), permutation=(0, *_), group_size=size) if (
            count == COMPILED_SLICES and devices % size == 0
        ):
            return replace(groups, dimensions=(slices, *inside))
        case _:
            return _extended_listed(groups.listed(), devices, slices, op)


def _extended_listed(
    listed: tuple[tuple[int, ...], ...], devices: int, slices: int, op: Op
) -> ReplicaGroups:
    if listed in {(), ((),)}:
        return ListedGroups(groups=())
    bases = [tuple(device for device in group if device < devices) for group in listed]
    bases = [base for base in bases if base]
    inside = {*bases, *(tuple(device + devices for device in base) for base in bases)}
    across = [{*base, *(device + devices for device in base)} for base in bases]
    if set(listed) == inside:
        groups = [
            tuple(number * devices + device for device in base)
            for number in range(slices)
            for base in bases
        ]
    elif len(bases) == len(listed) and [set(group) for group in listed] == across:
        groups = [
            tuple(number * devices + device for number in range(slices) for device in base)
            for base in bases
        ]
    else:
        raise _unsupported(op)
    return ListedGroups(groups=tuple(groups))


def _extended_pairs(
    pairs: tuple[tuple[int, int], ...], devices: int, slices: int, op: Op
) -> tuple[tuple[int, int], ...]:
    first = [pair for pair in pairs if max(pair) < devices]
    second = {(source + devices, target + devices) for source, target in first}
    if set(pairs) != {*first, *second}:
        raise _unsupported(op)
    return tuple(
        (number * devices + source, number * devices + target)
        for number in range(slices)
        for source, target in first
    )


def _unsupported(op: Op) -> UnsupportedError:
    return UnsupportedError(
        f"{op.kind} is neither inside each of two slices nor among all places of both",
        location=op.location,
        hint="compile the program for all slices",
    )
