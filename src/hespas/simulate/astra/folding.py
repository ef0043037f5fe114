"""Divide devices into symmetry classes.

One device of each class is simulated. Two devices are in one class only if they follow the same
graph and communicate, in equal roles, with devices of equal classes, in groups of equal timing.
Classes begin as coarse as possible and are refined until they are stable: this is colour refinement
of the bipartite graph of devices and groups.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from hespas.base.frozen import frozen
from hespas.simulate.communicators import NONE, Group, find_groups
from hespas.simulate.devices import DeviceClass
from hespas.tasks.graph import Job, find_roles


@frozen
class GroupClass:
    """Equal groups: one of them, and its members' device classes."""

    group: Group
    members: frozenset[int]


@frozen
class Folded:
    """A job's device and group classes by first device."""

    devices: tuple[DeviceClass, ...]
    groups: tuple[GroupClass, ...]


def fold(
    job: Job,
    timing: Callable[[Group], Hashable],
    *,
    is_unfolded: bool = False,
    in_order: bool = False,
) -> Folded:
    """Divide a job's devices into classes.

    ``timing`` returns a key that decides the duration of communication in a group. With
    ``is_unfolded`` every device is its own class; ``in_order`` distinguishes groups by the order of
    their members, too.
    """
    return _Fold(job, timing, in_order=in_order).run(is_unfolded=is_unfolded)


class _Fold:
    def __init__(self, job: Job, timing: Callable[[Group], Hashable], *, in_order: bool) -> None:
        self._job = job
        self._in_order = in_order
        self._roles = [find_roles(graph) for graph in job.graphs]
        self._groups, group_of = find_groups(job, self._roles)
        by_device = [
            list(zip(*groups_of_roles, strict=True)) or [()] * job.device_count
            for groups_of_roles in group_of
        ]
        self._groups_of: list[tuple[int, ...]] = [
            by_device[graph][device] for device, graph in enumerate(job.graph_of_device)
        ]
        self._timing = _numbered(timing(group) for group in self._groups)
        self._parts = self._find_parts()

    def _find_parts(self) -> list[dict[int, tuple[int, ...]]]:
        """Return each group's devices with their roles."""
        parts: list[dict[int, tuple[int, ...]]] = [{} for _ in self._groups]
        most_roles = max(map(len, self._groups_of), default=0)
        # Most devices have one role in a group, and share one tuple.
        single = [(role,) for role in range(most_roles)]
        for device, groups in enumerate(self._groups_of):
            for role, group in enumerate(groups):
                if group != NONE:
                    roles_of_device = parts[group]
                    roles_of_device[device] = (
                        (*roles_of_device[device], role)
                        if device in roles_of_device
                        else single[role]
                    )
        return parts

    def run(self, *, is_unfolded: bool) -> Folded:
        graphs = self._job.graph_of_device
        if is_unfolded:
            return self._result(list(range(len(graphs))), list(range(len(self._groups))))
        presence = [tuple([group == NONE for group in groups]) for groups in self._groups_of]
        classes = _numbered(zip(graphs, presence, strict=True))
        while True:
            # The last entry is for no group.
            group_classes = [*self._classify_groups(classes), NONE]
            finer = _numbered(
                (number, *[group_classes[group] for group in groups])
                for number, groups in zip(classes, self._groups_of, strict=True)
            )
            if max(finer, default=0) == max(classes, default=0):
                return self._result(finer, self._classify_groups(finer))
            classes = finer

    def _classify_groups(self, classes: Sequence[int]) -> list[int]:
        return _numbered(
            (
                timing,
                frozenset((classes[device], roles) for device, roles in parts.items()),
                tuple([classes[device] for device in group])
                if self._in_order and isinstance(group, tuple)
                else (),
            )
            for timing, parts, group in zip(self._timing, self._parts, self._groups, strict=True)
        )

    def _result(self, classes: list[int], group_classes: list[int]) -> Folded:
        devices_of_class: list[list[int]] = [[] for _ in set(classes)]
        for device, number in enumerate(classes):
            devices_of_class[number].append(device)
        first_group = {number: i for i, number in reversed(list(enumerate(group_classes)))}
        group_classes = [*group_classes, NONE]
        devices = [
            DeviceClass(
                devices=tuple(own),
                graph=self._job.graphs[self._job.graph_of_device[own[0]]],
                roles=self._roles[self._job.graph_of_device[own[0]]],
                groups=tuple([group_classes[group] for group in self._groups_of[own[0]]]),
            )
            for own in devices_of_class
        ]
        groups: list[GroupClass] = []
        for number in range(len(first_group)):
            group = self._groups[first_group[number]]
            members = group if isinstance(group, tuple) else (group.source, group.target)
            member_classes = frozenset(classes[device] for device in members)
            groups.append(GroupClass(group=group, members=member_classes))
        return Folded(devices=tuple(devices), groups=tuple(groups))


def _numbered(values: Iterable[Hashable]) -> list[int]:
    """Return equal numbers for equal values, by first appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]
