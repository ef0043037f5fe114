"""Refine devices, groups and links into classes, by sums of hashed neighbours."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hespas.base.frozen import frozen
from hespas.simulate.flow.graph_links import Integers

Hashes: TypeAlias = NDArray[np.uint64]
Flags: TypeAlias = NDArray[np.bool_]


@frozen
class Edges:
    """Weighted edges between two sorts of nodes."""

    source: Integers
    target: Integers
    weight: Integers

    @property
    def reversed(self) -> Edges:
        """The edges from targets to sources."""
        return Edges(source=self.target, target=self.source, weight=self.weight)

    def selected(self, entries: Integers | Flags) -> Edges:
        """Return some of the edges."""
        return Edges(
            source=self.source[entries], target=self.target[entries], weight=self.weight[entries]
        )


@frozen
class ClassNumbers:
    """The class numbers of devices, groups and links."""

    devices: Integers
    groups: Integers
    links: Integers


def refine(
    devices: Integers, groups: Integers, links: Integers, roles: Edges, loads: Edges
) -> ClassNumbers:
    """Return the coarsest stable refinement of initial classes.

    ``roles`` goes from devices to groups, ``loads`` from groups to links.
    """
    device, group, link = _mixed(devices), _mixed(groups), _mixed(links)
    count = 0
    while True:
        previous, count = count, sum(map(count_distinct, (device, group, link)))
        if count == previous:
            return ClassNumbers(
                devices=numbered(device), groups=numbered(group), links=numbered(link)
            )
        group = _mix(
            group + _sums(device, roles, len(group)) + _sums(link, loads.reversed, len(group))
        )
        link = _mix(link + _sums(group, loads, len(link)))
        device = _mix(device + _sums(group, roles.reversed, len(device)))


def equal_targets(kinds: Integers, edges: Edges) -> Integers:
    """Return target numbers, equal for equal kinds and edges."""
    sources = _mixed(np.arange(1 + int(edges.source.max(initial=-1))))
    return numbered(_mixed(kinds) + _sums(sources, edges, len(kinds)))


def numbered(values: Integers | Hashes) -> Integers:
    """Return value numbers, from 0 by first appearance."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return order[inverse.reshape(-1)]


def row_numbers(table: Integers) -> Integers:
    """Return row numbers, equal for equal rows."""
    columns = _mixed(np.arange(table.shape[1], dtype=np.int64))
    rows: Hashes = _mix(_mixed(table) ^ columns).sum(axis=1, dtype=np.uint64)
    return numbered(rows)


def split(numbers: Integers) -> list[Integers]:
    """Return the ascending positions of each number, by number."""
    if not len(numbers):
        return []
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    return np.split(order, starts[1:])


def first_positions(numbers: Integers) -> Integers:
    """Return where each of numbers by first appearance stands first."""
    return np.flatnonzero(np.diff(np.maximum.accumulate(numbers), prepend=-1))


_EDGES_AT_ONCE = 1 << 16
"""The edges that one pass adds up, which stay in the processor's cache."""


def _sums(sources: Hashes, edges: Edges, count: int) -> Hashes:
    """Return the sums of weighted sources, in any order, by target."""
    sums = np.zeros(count, dtype=np.uint64)
    for first in range(0, len(edges.weight), _EDGES_AT_ONCE):
        own = slice(first, first + _EDGES_AT_ONCE)
        weighted = sources[edges.source[own]] ^ _mixed(edges.weight[own])
        np.add.at(sums, edges.target[own], _mix(weighted))
    return sums


def _mixed(values: Integers) -> Hashes:
    return _mix(values.astype(np.uint64))


def _mix(values: Hashes) -> Hashes:
    """Spread 64 bits, one to one. Source: S. Vigna, splitmix64."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    shifted = mixed >> np.uint64(30)
    mixed ^= shifted
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= np.right_shift(mixed, np.uint64(27), out=shifted)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= np.right_shift(mixed, np.uint64(31), out=shifted)
    return mixed


def count_distinct(values: NDArray[np.int64] | NDArray[np.uint64]) -> int:
    """Return how many values differ."""
    # Without counts, numpy imports masked arrays, which takes 10 ms.
    return len(np.unique(values, return_counts=True)[0])
