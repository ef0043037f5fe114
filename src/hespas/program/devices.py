"""Settle a program's number of devices; check its groups."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from msgspec.structs import replace

from hespas.base.figures import MOST_DEVICES
from hespas.errors import DeviceCountError, ProgramError, option
from hespas.program.attrs import CollectiveAttrs, PermuteAttrs
from hespas.program.groups import GroupMode, device_groups, on_devices
from hespas.program.program import Op, Program, all_ops, is_communication_op


def communication_ops(program: Program) -> Iterator[Op]:
    """Yield the operations that move data between devices."""
    yield from filter(is_communication_op, all_ops(program))


def with_device_count(program: Program, *, requested: int | None, system: int | None) -> Program:
    """Return the program with its replicas and partitions set.

    The program's own count is used if it is above one. Otherwise it is the number of devices in
    its replica groups, else ``requested``, else that of the ``system``, else that in the pairs of
    its permutations, else one. Raises `DeviceCountError` if two of these disagree, or for more than
    ``MOST_DEVICES``, and `ProgramError` for groups that overlap or name absent devices.
    """
    if requested is not None and requested < 1:
        raise DeviceCountError(f"{requested} devices are asked for", hint="give 1 or more")
    settled = _with_settled_counts(program, requested, system)
    count = settled.declared_devices or 1
    if count > MOST_DEVICES:
        message = f"the program runs on {count} devices"
        hint = f"give at most {MOST_DEVICES}"
        raise DeviceCountError(message, location=program.source, hint=hint)
    if system is not None and count != system:
        raise DeviceCountError(
            f"the program runs on {count} devices, but the system has {system}",
            location=program.source,
            hint=f"choose a system of {count} devices",
        )
    _check_order(settled, count)
    for op in communication_ops(settled):
        if isinstance(op.attrs, PermuteAttrs):
            device_pairs(op, settled)
        elif isinstance(op.attrs, CollectiveAttrs):
            device_group_table(op, settled)
    return settled


def _check_order(program: Program, count: int) -> None:
    order = program.global_facts.device_order
    if order is not None and order.count != count:
        raise ProgramError(
            f"the order of its devices, {order}, is of {order.count}, and it runs on {count}",
            location=program.source,
        )


def _with_settled_counts(program: Program, requested: int | None, system: int | None) -> Program:
    declared = program.declared_devices
    if declared is not None and declared > 1:
        if requested is not None and requested != declared:
            raise DeviceCountError(
                f"{requested} devices are asked for, but the program is made for {declared}",
                location=program.source,
                hint=f"drop {option('devices')}, or give {declared}",
            )
        return replace(program, replicas=program.replicas or 1, partitions=program.partitions or 1)
    in_groups = _devices_named(program, CollectiveAttrs)
    in_pairs = _devices_named(program, PermuteAttrs)
    if requested is not None and (requested < in_pairs or in_groups not in (0, requested)):
        needed = in_groups or in_pairs
        subject = "replica groups" if in_groups else "source-target pairs"
        raise DeviceCountError(
            f"{requested} devices are asked for, but the {subject} name {needed}",
            location=program.source,
            hint=f"drop {option('devices')}, or give {needed}",
        )
    count = in_groups or requested or max(system or 1, in_pairs)
    if any(attrs.mode is GroupMode.CROSS_PARTITION for attrs in _group_attrs(program)):
        return replace(program, replicas=1, partitions=count)
    return replace(program, replicas=count, partitions=1)


def _group_attrs(program: Program) -> Iterator[CollectiveAttrs | PermuteAttrs]:
    for op in communication_ops(program):
        if isinstance(op.attrs, CollectiveAttrs | PermuteAttrs):
            yield op.attrs


def _devices_named(program: Program, kind: type[CollectiveAttrs | PermuteAttrs]) -> int:
    """Return the highest named device plus one, or 0.

    Groups list every device (StableHLO requires it), pairs only those that send or receive.
    """
    highest = -1
    for attrs in {attrs for attrs in _group_attrs(program) if isinstance(attrs, kind)}:
        rows = attrs.pairs if isinstance(attrs, PermuteAttrs) else attrs.groups.listed()
        highest = max([highest, *chain.from_iterable(rows)])
    return highest + 1


def device_group_table(op: Op, program: Program) -> tuple[tuple[int, ...], ...]:
    """Return the groups of a collective as device numbers.

    They follow the program's order of devices. Raises `ProgramError`, naming the operation, for
    groups that are wrong.
    """
    if not isinstance(op.attrs, CollectiveAttrs):
        raise ProgramError("it has no replica groups", location=op.location)
    try:
        groups = device_groups(
            op.attrs.groups,
            op.attrs.mode,
            replicas=program.replicas or 1,
            partitions=program.partitions or 1,
        )
        order = program.global_facts.device_order
        if order is None:
            return groups
        # A library finds the shortest way around a group, whatever the order of its ranks.
        return tuple([tuple(sorted(group)) for group in on_devices(groups, order)])
    except ProgramError as error:
        error.location = op.location
        raise


def device_pairs(op: Op, program: Program) -> tuple[tuple[int, int], ...]:
    """Return a ``collective_permute``'s pairs of device numbers.

    Raises `ProgramError`, naming the operation, where a pair names an absent device or two
    pairs share a source or a target.
    """
    if not isinstance(op.attrs, PermuteAttrs):
        raise ProgramError("it has no source-target pairs", location=op.location)
    replicas, partitions = program.replicas or 1, program.partitions or 1
    if op.attrs.mode is GroupMode.CROSS_REPLICA:
        pairs = tuple(
            (source * partitions + partition, target * partitions + partition)
            for partition in range(partitions)
            for source, target in op.attrs.pairs
        )
    else:
        pairs = tuple(
            (replica * partitions + source, replica * partitions + target)
            for replica in range(replicas)
            for source, target in op.attrs.pairs
        )
    _check_pairs(op, pairs, replicas * partitions)
    ordered = on_devices(pairs, program.global_facts.device_order)
    return tuple([(source, target) for source, target in ordered])


def _check_pairs(op: Op, pairs: tuple[tuple[int, int], ...], count: int) -> None:
    for ends, role in ((0, "source"), (1, "target")):
        devices = [pair[ends] for pair in pairs]
        absent = next((device for device in devices if not 0 <= device < count), None)
        if absent is not None:
            raise ProgramError(
                f"{role} {absent} is named, but the program has {count} devices",
                location=op.location,
            )
        if len(set(devices)) < len(devices):
            raise ProgramError(f"a device is {role} of two pairs", location=op.location)
