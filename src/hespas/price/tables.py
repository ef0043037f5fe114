"""Measured tables: times over a grid of sizes, their interpolation, their files.

Times and sizes are handled by their logarithms: a time that is a power of a size is a straight
line, and an error in per cent is the same anywhere in the table. Grids are completed and made
monotone before they are read.

A file, ``hespas/configs/measured/<PART>.xz``, is xz-compressed: one line of JSON that describes its
content and its source, then the cells of its tables, one after the other. A cell is the whole
number ``round(log(t / 1 ns) / step)``, or 0 where nothing was measured; it is stored as its zigzag
difference from the cell before it (first the high bytes of all cells of a table, then the low
ones).
"""

from __future__ import annotations

import lzma
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate, pairwise, product
from math import exp, isnan, log, nan, prod
from pathlib import Path
from types import MappingProxyType

import msgspec

from hespas.base.configs import CONFIGS
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.errors import MeasurementError


class Axis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sizes along one side of a grid, ascending; ``weight`` is its part in filling gaps."""

    name: str
    sizes: tuple[int, ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.sizes or self.sizes[0] < 1 or any(a >= b for a, b in pairwise(self.sizes)):
            raise MeasurementError(f"the sizes of {self.name} don't ascend from 1")


@frozen
class Grid:
    """Logarithms of times in seconds over axes."""

    axes: tuple[Axis, ...]
    log_times: tuple[float, ...]

    def __post_init__(self) -> None:
        cells = prod(len(axis.sizes) for axis in self.axes)
        if len(self.log_times) != cells:
            raise MeasurementError(f"a grid of {cells} cells holds {len(self.log_times)} times")

    @property
    def strides(self) -> tuple[int, ...]:
        """The distance between neighbouring cells along each axis."""
        lengths = [len(axis.sizes) for axis in self.axes]
        return tuple(prod(lengths[position + 1 :]) for position in range(len(lengths)))

    def cells(self) -> Iterator[tuple[int, ...]]:
        """Yield the sizes of every cell, in order."""
        return product(*(axis.sizes for axis in self.axes))


@frozen
class Reading:
    """A time read off a grid."""

    time_s: float
    outside: tuple[str, ...] = ()


def without(grid: Grid, cell: int) -> float:
    """Interpolate a cell's log time from its neighbours.

    The result is the mean, weighted by the axes, of the straight lines through the two neighbours
    along each axis; at the rim of a gap, through the two cells before or after it. NaN if no axis
    has them.
    """
    between = _weighted_time(grid, cell, inside=True)
    return _weighted_time(grid, cell, inside=False) if isnan(between) else between


def _weighted_time(grid: Grid, cell: int, *, inside: bool) -> float:
    total = weights = 0.0
    for axis, stride in zip(grid.axes, grid.strides, strict=True):
        position = cell // stride % len(axis.sizes)
        start = cell - position * stride
        line = grid.log_times[start : start + stride * len(axis.sizes) : stride]
        time = _interpolate_line(axis.sizes, line, position, inside=inside)
        if not isnan(time):
            total += axis.weight * time
            weights += axis.weight
    return total / weights if weights else nan


def _interpolate_line(
    sizes: Sequence[int], line: Sequence[float], number: int, *, inside: bool
) -> float:
    """Interpolate a cell's log time between or beyond its neighbours."""
    pairs = (
        ((number - 1, number + 1),)
        if inside
        else ((number - 2, number - 1), (number + 1, number + 2))
    )
    for low, high in pairs:
        if low < 0 or high >= len(line) or isnan(line[low]) or isnan(line[high]):
            continue
        part = log(sizes[number] / sizes[low]) / log(sizes[high] / sizes[low])
        return line[low] + part * (line[high] - line[low])
    return nan


def completed(grid: Grid) -> Grid:
    """Return the grid with every missing time filled from its neighbours.

    Raises `MeasurementError` if times are missing that neighbours can't fill.
    """
    times = list(grid.log_times)
    missing = [cell for cell, time in enumerate(times) if isnan(time)]
    while missing:
        partial = Grid(axes=grid.axes, log_times=tuple(times))
        filled = {cell: without(partial, cell) for cell in missing}
        for cell, time in filled.items():
            times[cell] = time
        unfilled = [cell for cell in missing if isnan(times[cell])]
        if len(unfilled) == len(missing):
            raise MeasurementError(f"{len(unfilled)} cells have no neighbours to fill them from")
        missing = unfilled
    return Grid(axes=grid.axes, log_times=tuple(times))


@lru_cache(maxsize=64)
def monotone(grid: Grid) -> Grid:
    """Return the nearest times that never fall as sizes grow.

    Least squares along each line, by pooling adjacent violators (M. Ayer et al., "An empirical
    distribution function for sampling with incomplete information", Annals of Mathematical
    Statistics 26, 1955). If one line is nowhere above another, pooling keeps it so, and a later
    axis doesn't spoil an earlier one.
    """
    times = list(grid.log_times)
    for axis, stride in reversed(list(zip(grid.axes, grid.strides, strict=True))):
        length = stride * len(axis.sizes)
        for plane in range(0, len(times), length):
            for start in range(plane, plane + stride):
                line = slice(start, start + length, stride)
                times[line] = _pool_violators(times[line])
    return Grid(axes=grid.axes, log_times=tuple(times))


def _pool_violators(line: list[float]) -> list[float]:
    if line == sorted(line):
        return line
    sums: list[float] = []
    counts: list[int] = []
    for value in line:
        total, count = value, 1
        while sums and sums[-1] * count > total * counts[-1]:
            total += sums.pop()
            count += counts.pop()
        sums.append(total)
        counts.append(count)
    pooled: list[float] = []
    for total, count in zip(sums, counts, strict=True):
        pooled += [total / count] * count
    return pooled


def read(grid: Grid, sizes: Sequence[int]) -> Reading:
    """Return the time for ``sizes``, one per axis, log-linear between cells.

    Below the smallest size of an axis the time is that of the smallest; beyond the largest it grows
    in proportion. A completed, monotone grid gives times that are monotone in every size.
    """
    places = [_location(axis, size) for axis, size in zip(grid.axes, sizes, strict=True)]
    outside = tuple(location.axis for location in places if location.is_outside)
    log_time, strides = 0.0, grid.strides
    for corner in product((0, 1), repeat=len(places)):
        share, cell = 1.0, 0
        for upper, location, stride in zip(corner, places, strides, strict=True):
            share *= location.part if upper else 1 - location.part
            cell += (location.cell + upper) * stride
        if share:
            log_time += share * grid.log_times[cell]
    return Reading(
        time_s=exp(log_time) * prod(location.beyond for location in places), outside=outside
    )


@frozen
class _Location:
    """A size between cells: ``part`` of the way after ``cell``."""

    axis: str
    cell: int
    part: float = 0.0
    beyond: float = 1.0
    is_outside: bool = False


def _location(axis: Axis, size: int) -> _Location:
    sizes = axis.sizes
    if size < sizes[0]:
        return _Location(axis=axis.name, cell=0, is_outside=True)
    if size >= sizes[-1]:
        beyond = size / sizes[-1]
        return _Location(axis=axis.name, cell=len(sizes) - 1, beyond=beyond, is_outside=beyond > 1)
    cell = bisect_right(sizes, size) - 1
    part = log(size / sizes[cell]) / log(sizes[cell + 1] / sizes[cell])
    return _Location(axis=axis.name, cell=cell, part=part)


FORMAT = 1
"""Increased when files of an earlier hespas can no longer be read."""

TABLES_DIRECTORY = CONFIGS / "measured"
_NS = 1e-9
_HINT = "distil it again with validation/distil_tables.py"


class TableWire(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table: a name such as ``gemm.bf16``, axes, cell step and source."""

    name: str
    axes: tuple[Axis, ...]
    step: float
    source: str


class PartWire(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line of a file.

    ``peak_flops`` by type, ``memory_bandwidth`` (bytes/s) and ``cache_bytes`` are those of the part
    that was measured; ``streaming_*`` describe a kernel that only moves data: its shortest time,
    and the part of the memory bandwidth that large ones reach. ``alone_s`` is the extra time of a
    product that is launched on its own instead of replayed in a graph.
    """

    format: int
    part: str
    measured_on: str
    source: str
    licence: str
    version: str
    peak_flops: dict[str, float]
    memory_bandwidth: float
    cache_bytes: int
    streaming_latency_s: float
    streaming_efficiency: float
    streaming_source: str
    alone_s: float
    alone_source: str
    tables: tuple[TableWire, ...]


@frozen
class Table:
    """Times as measured, gaps and noise included."""

    name: str
    source: str
    grid: Grid


@frozen
class Part:
    """All measurements of one part, and its datasheet."""

    about: PartWire
    tables: Mapping[str, Table]


def part_names() -> tuple[str, ...]:
    """Return the names of the parts with measured tables, sorted.

    >>> "H100_SXM" in part_names()
    True
    """
    return tuple(sorted(path.stem for path in TABLES_DIRECTORY.glob("*.xz")))


def load_part(name: str) -> Part:
    """Return the tables of a part.

    Raises `MeasurementError` for a part without tables, and for a file that is damaged or of
    another version.

    >>> part = load_part("H100_SXM")
    >>> part.about.measured_on, part.about.licence
    ('NVIDIA H100 80GB HBM3', 'Apache-2.0')
    """
    if name not in part_names():
        raise MeasurementError(
            f"there are no measured tables of {name!r}", hint=suggestion(name, part_names())
        )
    return _read_part(TABLES_DIRECTORY / f"{name}.xz")


@cache
def _read_part(path: Path) -> Part:
    return decode_part(path.read_bytes(), location=str(path))


def decode_part(content: bytes, *, location: str) -> Part:
    """Decode the tables of a file. Raises as `load_part` does."""
    try:
        head, _, cells = lzma.decompress(content).partition(b"\n")
        loose = msgspec.json.decode(head, type=dict[str, object])
        if loose.get("format") != FORMAT:
            version = loose.get("format")
            message = f"the tables are of format {version}, this hespas reads {FORMAT}"
            raise MeasurementError(message, location=location, hint=_HINT)
        about = msgspec.convert(loose, PartWire)
    except (lzma.LZMAError, msgspec.MsgspecError) as error:
        message = f"the tables are damaged: {error}"
        raise MeasurementError(message, location=location, hint=_HINT) from None
    tables: dict[str, Table] = {}
    for wire in about.tables:
        size = 2 * prod(len(axis.sizes) for axis in wire.axes)
        if len(cells) < size:
            raise MeasurementError("the tables end too soon", location=location, hint=_HINT)
        tables[wire.name] = _decode_table(wire, cells[:size])
        cells = cells[size:]
    return Part(about=about, tables=MappingProxyType(tables))


def _decode_table(wire: TableWire, cells: bytes) -> Table:
    half = len(cells) // 2
    words = bytearray(2 * half)
    words[1::2], words[::2] = cells[:half], cells[half:]
    zigzag = struct.unpack(f"<{half}H", words)
    codes = accumulate([(difference >> 1) ^ -(difference & 1) for difference in zigzag])
    step, unit = wire.step, log(_NS)
    times = tuple([code * step + unit if code else nan for code in codes])
    return Table(name=wire.name, source=wire.source, grid=Grid(axes=wire.axes, log_times=times))
