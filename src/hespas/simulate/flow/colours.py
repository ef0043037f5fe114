"""Colour refinement: devices, places and links that cannot be told apart get the same colour.

Devices of one colour follow the same graph and meet at places of the same colours; places of one
colour have members of the same colours and load links of the same colours alike; links of one
colour have the same bandwidth and are loaded by places of the same colours alike. Max-min fair
rates, and with them all times, are then equal within a colour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hespas.simulate.flow.ways import Integers

    Hashes: TypeAlias = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joins:
    """Entries that join a thing of one sort to a thing of another, with a weight."""

    one: Integers
    other: Integers
    weight: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Colours:
    """Numbers of colours, from 0 by first appearance."""

    devices: Integers
    places: Integers
    links: Integers


def refine(
    devices: Integers, places: Integers, links: Integers, roles: Joins, loads: Joins
) -> Colours:
    """Return the coarsest colours that are no coarser than those given.

    ``roles`` joins devices to places, ``loads`` places to links.
    """
    device, place, link = _mixed(devices), _mixed(places), _mixed(links)
    role, load = _mixed(roles.weight), _mixed(loads.weight)
    count = 0
    while True:
        found = sum(_count(one) for one in (device, place, link))
        if found == count:
            return Colours(devices=numbered(device), places=numbered(place), links=numbered(link))
        count = found
        place = _mix(
            place
            + _gathered(device[roles.one], role, roles.other, len(place))
            + _gathered(link[loads.other], load, loads.one, len(place))
        )
        link = _mix(link + _gathered(place[loads.one], load, loads.other, len(link)))
        device = _mix(device + _gathered(place[roles.other], role, roles.one, len(device)))


def alike(kinds: Integers, joins: Joins) -> Integers:
    """Return a number for each thing, equal for those of one kind with equal entries.

    ``joins`` has the entries, ``one`` being what they are joined to.
    """
    own = _mixed(kinds)
    return numbered(own + _gathered(_mixed(joins.one), _mixed(joins.weight), joins.other, len(own)))


def numbered(values: Integers | Hashes) -> Integers:
    """Return a number for each value, equal for equal ones, from 0 by first appearance."""
    import numpy as np  # noqa: PLC0415 - numpy takes 60 ms to import

    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return order[inverse.reshape(-1)]


def _gathered(values: Hashes, weights: Hashes, to: Integers, count: int) -> Hashes:
    import numpy as np  # noqa: PLC0415 - as above

    sums = np.zeros(count, dtype=np.uint64)
    np.add.at(sums, to, _mix(values ^ weights))
    return sums


def _count(values: Hashes) -> int:
    import numpy as np  # noqa: PLC0415 - as above

    return len(np.unique(values))


def _mixed(values: Integers) -> Hashes:
    import numpy as np  # noqa: PLC0415 - as above

    return _mix(values.astype(np.uint64))


def _mix(values: Hashes) -> Hashes:
    """Spread 64 bits, one to one. Source: S. Vigna, splitmix64."""
    import numpy as np  # noqa: PLC0415 - as above

    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
