"""Draw a network of devices and switches as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod

from hespas.base.units import format_quantity, format_time
from hespas.hardware.interconnect import Dimension, Dimensions, Dragonfly, Graph, Shape
from hespas.hardware.system import System, interconnect_of

_MOST_ROWS, _MOST_COLUMNS = 4, 4
_MOST_SWITCHES = 8
_JOINS = {Shape.RING: "=", Shape.LINE: "-"}
SHAPE_NAMES = {
    Shape.RING: "ring",
    Shape.LINE: "line",
    Shape.SWITCH: "switch",
    Shape.FULLY_CONNECTED: "all to all",
    Shape.FAT_TREE: "fat tree",
}


def drawing(system: System) -> list[str]:
    """Draw a system's network."""
    match interconnect_of(system).fabric:
        case Dimensions() as fabric:
            return _grid(fabric.dimensions)
        case Dragonfly() as fabric:
            global_rate, local_rate, device_rate = (
                _rate(link.bandwidth_bytes_per_s)
                for link in (fabric.global_link, fabric.local_link, fabric.device_link)
            )
            routers = f"{fabric.routers_per_group} routers"
            return [
                f"  {fabric.groups} groups, each wired to every other by a link of {global_rate}",
                f"  group: {routers}, all wired to each other, {local_rate}",
                f"  router: {fabric.devices_per_router} devices, {device_rate} each",
                f"  routing: {fabric.routing.value}",
            ]
        case Graph() as fabric:
            return list(_switches(fabric))


def _rate(bytes_per_s: float) -> str:
    return format_quantity(bytes_per_s, "B/s")


def _grid(dimensions: Sequence[Dimension]) -> list[str]:
    """Draw a block of the two nearest dimensions."""
    present = [dimension for dimension in dimensions if dimension.size > 1] or list(dimensions[:1])
    columns, rows = present[0].size, present[1].size if len(present) > 1 else 1
    join = _JOINS.get(present[0].shape, " ")
    lines: list[str] = []
    for row in _shown_numbers(rows, _MOST_ROWS):
        if row is None:
            lines.append("    :")
            continue
        names = [
            ".." if column is None else f"d{row * columns + column}"
            for column in _shown_numbers(columns, _MOST_COLUMNS)
        ]
        width = len(f"d{rows * columns - 1}")
        lines.append(f"  [ {f' {join} '.join(name.ljust(width) for name in names)} ]")
    for number, dimension in enumerate(present):
        direction = ("in a row", "between rows", "between blocks")[min(number, 2)]
        blocks = prod(outer.size for outer in present[2:])
        count = f", {blocks} blocks" if number == 2 else ""
        lines.append(f"  {direction}: {_link_text(dimension)}{count}")
    return lines


def _shown_numbers(count: int, most: int) -> list[int | None]:
    """Return the numbers to draw; None marks a gap."""
    if count <= most:
        return list(range(count))
    return [*range(most - 2), None, count - 1]


def _link_text(dimension: Dimension) -> str:
    text = (
        f"{SHAPE_NAMES[dimension.shape]} of {dimension.size}, "
        f"{_rate(dimension.bandwidth_bytes_per_s)} a link, {format_time(dimension.latency_s)}"
    )
    if (leaf_size := dimension.leaf_size) is not None:
        text += f", leaves of {leaf_size}, oversubscribed {dimension.oversubscription:g} : 1"
    if dimension.is_hashed:
        text += f", {dimension.spines} spines chosen by a hash"
    return text


def _switches(graph: Graph) -> Iterator[str]:
    """Yield the wires of each switch, skipping most of many."""
    devices = set(graph.devices)
    for number in _shown_numbers(len(graph.switches), _MOST_SWITCHES):
        if number is None:
            yield "  :"
            continue
        name = graph.switches[number]
        outgoing = [edge for edge in graph.edges if edge.source == name]
        wires = Counter(
            ("devices" if edge.target in devices else "switches", edge.bandwidth_bytes_per_s)
            for edge in outgoing
        )
        wire_text = ", ".join(
            f"{count} {wire_kind} at {_rate(rate)}"
            for (wire_kind, rate), count in sorted(wires.items())
        )
        yield f"  {name}: {wire_text}"
