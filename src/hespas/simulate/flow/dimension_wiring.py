"""Links along dimensions: rings, switches, fat trees, and all to all.

The number of a link tells what it is: each dimension has a range of numbers for each part of it
(such as the wires up to the switch), with one link a device, or one a leaf switch, in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, assert_never

from hespas.hardware.interconnect import Dimension, Dimensions, Shape
from hespas.simulate.flow.ways import Ways

if TYPE_CHECKING:
    from hespas.simulate.flow.ways import Integers, Reals

_PARTS = {
    Shape.RING: ("next", "previous"),
    Shape.SWITCH: ("up", "down"),
    Shape.FAT_TREE: ("up", "down", "leaf_up", "leaf_down"),
    Shape.FULLY_CONNECTED: ("to",),
}
_NAME = re.compile(r"dim([0-9]+)\.([a-z_]+)\.([0-9]+)(?:\.([0-9]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A dimension with its place among the others: devices along it are ``stride`` apart.

    ``first`` is the number of its first link.
    """

    index: int
    dimension: Dimension
    stride: int
    devices: int
    first: int

    @property
    def part_size(self) -> int:
        """The links of a part that has one a device."""
        full = self.dimension.shape is Shape.FULLY_CONNECTED
        return self.devices * (self.dimension.size if full else 1)

    def part(self, number: int) -> int:
        """Return the first link of a part: parts are one a device, then one a leaf switch."""
        leaves = max(0, number - 2) if self.dimension.shape is Shape.FAT_TREE else 0
        return self.first + (number - leaves) * self.part_size + leaves * self.leaves

    @property
    def leaves(self) -> int:
        """The number of leaf switches."""
        return self.devices // (self.dimension.leaf_size or self.devices)

    @property
    def links(self) -> int:
        """The number of links."""
        return self.part(len(_PARTS[self.dimension.shape])) - self.first

    @property
    def bytes_per_ns(self) -> float:
        """The bandwidth of a device's link."""
        return self.dimension.parameters.bandwidth_bytes_per_s / 1e9


class DimensionWiring:
    """A `hespas.simulate.flow.ways.Wiring` of dimensions."""

    def __init__(self, fabric: Dimensions) -> None:
        self._fabric = fabric
        self._devices = fabric.device_count
        self._lines: list[_Line] = []
        first = 0
        sizes = [one.size for one in fabric.dimensions]
        for index, (one, stride) in enumerate(
            zip(fabric.dimensions, accumulate(sizes, initial=1, func=lambda a, b: a * b),
                strict=False)
        ):  # fmt: skip
            line = _Line(
                index=index, dimension=one, stride=stride, devices=prod(sizes), first=first
            )
            self._lines.append(line)
            first += line.links

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return self._devices

    @property
    def lines(self) -> Sequence[_Line]:
        """The dimensions in order."""
        return self._lines

    def routes(self, sources: Sequence[int] | Integers, targets: Sequence[int] | Integers) -> Ways:
        """Return the ways of messages, along each dimension in turn."""
        import numpy as np  # noqa: PLC0415 - numpy takes 60 ms to import

        at = np.asarray(sources, dtype=np.int64)
        goal = np.asarray(targets, dtype=np.int64)
        latency_ns = np.zeros(len(at))
        kinds = np.zeros(len(at), dtype=np.int64)
        parts: list[tuple[Integers, Integers]] = []
        for line in self._lines:
            size = line.dimension.size
            here, there = at // line.stride % size, goal // line.stride % size
            (moving,) = np.nonzero(here != there)
            if len(moving):
                crossing = _cross(line, at[moving], here[moving], there[moving])
                parts += [(moving[which], links) for which, links in crossing]
                hops = sum(np.bincount(which, minlength=len(moving)) for which, _ in crossing)
                per_hop_ns = round(line.dimension.parameters.latency_s * 1e9, 6)
                latency_ns[moving] += hops * per_hop_ns
                kinds[moving] |= 1 << line.index
                at = at + (there - here) * line.stride
        empty = np.zeros(0, dtype=np.int64)
        return Ways(
            message=np.concatenate([which for which, _ in parts]) if parts else empty,
            link=np.concatenate([links for _, links in parts]) if parts else empty,
            latency_ns=latency_ns,
            kinds=kinds,
        )

    def bytes_per_ns(self, links: Sequence[int] | Integers) -> Reals:
        """Return the bandwidth of links."""
        import numpy as np  # noqa: PLC0415 - as above

        numbers = np.asarray(links, dtype=np.int64)
        result = np.zeros(len(numbers))
        for line in self._lines:
            inside = (numbers >= line.first) & (numbers < line.first + line.links)
            result[inside] = line.bytes_per_ns
            if line.dimension.leaf_size is not None:
                leaf = inside & (numbers >= line.part(2))
                wider = line.dimension.leaf_size / line.dimension.oversubscription
                result[leaf] = line.bytes_per_ns * wider
        return result

    def name(self, link: int) -> str:
        """Return a link's name, as ``dim0.up.3``: the dimension, the part, the device or leaf."""
        line = next(line for line in self._lines if link < line.first + line.links)
        parts = _PARTS[line.dimension.shape]
        number = max(at for at in range(len(parts)) if line.part(at) <= link)
        place = link - line.part(number)
        head = f"dim{line.index}.{parts[number]}"
        if line.dimension.shape is Shape.FULLY_CONNECTED:
            source, coordinate = divmod(place, line.dimension.size)
            own = source // line.stride % line.dimension.size
            return f"{head}.{source}.{source + (coordinate - own) * line.stride}"
        return f"{head}.{place}"

    def link_named(self, name: str) -> int | None:
        """Return the number of a link; None if none has that name."""
        match = _NAME.fullmatch(name)
        if match is None or int(match[1]) >= len(self._lines):
            return None
        line = self._lines[int(match[1])]
        parts = _PARTS[line.dimension.shape]
        if match[2] not in parts:
            return None
        number = parts.index(match[2])
        place = int(match[3])
        if line.dimension.shape is Shape.FULLY_CONNECTED and match[4] is not None:
            place = place * line.dimension.size + int(match[4]) // line.stride % line.dimension.size
        link = line.part(number) + place
        return link if link < line.first + line.links and self.name(link) == name else None


def _cross(
    line: _Line, at: Integers, here: Integers, there: Integers
) -> Sequence[tuple[Integers, Integers]]:
    """Return (messages, links) of messages from devices ``at`` along one dimension."""
    import numpy as np  # noqa: PLC0415 - as above

    every = np.arange(len(at))
    goal = at + (there - here) * line.stride
    match line.dimension.shape:
        case Shape.FULLY_CONNECTED:
            return [(every, line.part(0) + at * line.dimension.size + there)]
        case Shape.SWITCH:
            return [(every, line.part(0) + at), (every, line.part(1) + goal)]
        case Shape.FAT_TREE:
            return list(_cross_tree(line, at, goal))
        case Shape.RING:
            return [_cross_ring(line, at, here, there)]
        case _:
            assert_never(line.dimension.shape)


def _cross_tree(line: _Line, at: Integers, goal: Integers) -> Iterator[tuple[Integers, Integers]]:
    import numpy as np  # noqa: PLC0415 - as above

    every = np.arange(len(at))
    yield every, line.part(0) + at
    yield every, line.part(1) + goal
    leaf, other = _leaf(line, at), _leaf(line, goal)
    (climbing,) = np.nonzero(leaf != other)
    yield climbing, line.part(2) + leaf[climbing]
    yield climbing, line.part(3) + other[climbing]


def _leaf(line: _Line, devices: Integers) -> Integers:
    size, leaf_size = line.dimension.size, line.dimension.leaf_size or 1
    block = devices // (line.stride * size) * line.stride + devices % line.stride
    return block * (size // leaf_size) + devices // line.stride % size // leaf_size


def _cross_ring(
    line: _Line, at: Integers, here: Integers, there: Integers
) -> tuple[Integers, Integers]:
    """Go the shorter way, upwards if both are equal."""
    import numpy as np  # noqa: PLC0415 - as above

    size = line.dimension.size
    up = (there - here) % size
    hops = np.minimum(up, size - up)
    step = np.where(up <= size - up, 1, -1)
    which = np.repeat(np.arange(len(at)), hops)
    taken = np.arange(len(which)) - np.repeat(np.cumsum(hops) - hops, hops)
    coordinate = (here[which] + step[which] * taken) % size
    device = at[which] + (coordinate - here[which]) * line.stride
    part = np.where(step[which] > 0, line.part(0), line.part(1))
    return which, part + device
