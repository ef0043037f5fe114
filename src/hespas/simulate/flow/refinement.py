"""Symmetry classes: devices, groups and links that behave alike get the same number.

Devices of one class follow the same graph and take part in groups of the same classes; groups of
one class have members of the same classes and load links of the same classes alike; links of one
class have the same bandwidth and are loaded by groups of the same classes alike. Max-min fair
rates, and with them all times, are then equal within a class. The method is colour refinement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hespas.simulate.flow.topology import Integers

Hashes: TypeAlias = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Edges from things of one sort to things of another, with weights."""

    source: Integers
    target: Integers
    weight: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassNumbers:
    """The class of each device, group and link; classes are numbered by first appearance."""

    devices: Integers
    groups: Integers
    links: Integers


def refine(
    devices: Integers, groups: Integers, links: Integers, roles: Edges, loads: Edges
) -> ClassNumbers:
    """Return the coarsest classes that are no coarser than those given.

    ``roles`` goes from devices to groups, ``loads`` from groups to links.
    """
    device, group, link = _mixed(devices), _mixed(groups), _mixed(links)
    role, load = _mixed(roles.weight), _mixed(loads.weight)
    count = 0
    while True:
        previous, count = count, sum(count_distinct(each) for each in (device, group, link))
        if count == previous:
            return ClassNumbers(
                devices=numbered(device), groups=numbered(group), links=numbered(link)
            )
        group = _mix(
            group
            + _sums(device[roles.source], role, roles.target, len(group))
            + _sums(link[loads.target], load, loads.source, len(group))
        )
        link = _mix(link + _sums(group[loads.source], load, loads.target, len(link)))
        device = _mix(device + _sums(group[roles.target], role, roles.source, len(device)))


def alike(kinds: Integers, edges: Edges) -> Integers:
    """Return a number for each target, equal for those of one kind with equal edges."""
    own = _mixed(kinds)
    return numbered(own + _sums(_mixed(edges.source), _mixed(edges.weight), edges.target, len(own)))


def count_distinct(values: Integers | Hashes) -> int:
    """Return how many values differ."""
    # Without counts, numpy imports what it needs for masked arrays, which takes 10 ms.
    return len(np.unique(values, return_counts=True)[0])


def numbered(values: Integers | Hashes) -> Integers:
    """Return a number for each value, equal for equal ones, from 0 by first appearance."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return order[inverse.reshape(-1)]


def split(numbers: Integers) -> list[Integers]:
    """Return the positions of each number, ascending, in the order of the numbers."""
    if not len(numbers):
        return []
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    return np.split(order, starts[1:])


def _sums(values: Hashes, weights: Hashes, to: Integers, count: int) -> Hashes:
    """Return the sums of weighted values by what they go ``to``: their order doesn't matter."""
    sums = np.zeros(count, dtype=np.uint64)
    np.add.at(sums, to, _mix(values ^ weights))
    return sums


def _mixed(values: Integers) -> Hashes:
    return _mix(values.astype(np.uint64))


def _mix(values: Hashes) -> Hashes:
    """Spread 64 bits, one to one. Source: S. Vigna, splitmix64."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
