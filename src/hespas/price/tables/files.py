"""The files of measured tables, ``hespas/configs/measured/<PART>.xz``.

A file is xz-compressed: one line of JSON that says what it holds and where that comes from, then
the cells of its tables, one after the other. A cell is the whole number ``round(log(t / 1 ns) /
step)``, or 0 where nothing was measured; it stands as its zigzag difference from the cell
before it (first the high bytes of all cells of a table, then the low ones).
"""

from __future__ import annotations

import lzma
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import isnan, log, nan, prod
from pathlib import Path
from types import MappingProxyType

import msgspec

from hespas.base.suggest import suggestion
from hespas.errors import MeasurementError
from hespas.price.tables.grid import Axis, Grid

FORMAT = 1
"""Counts up when files of an earlier hespas can't be read any more."""

TABLES_DIRECTORY = Path(__file__).resolve().parent.parent.parent / "configs" / "measured"
_NS = 1e-9
_HINT = "distil it again with validation/distil_tables.py"


class AxisWire(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One side of a table: ``weight`` is its part in filling gaps."""

    name: str
    sizes: tuple[int, ...]
    weight: float = 1.0


class TableWire(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table: a name such as ``gemm.bf16``, its axes, the step of its cells, its source."""

    name: str
    axes: tuple[AxisWire, ...]
    step: float
    source: str


class PartWire(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line of a file.

    ``peak_flops`` by type, ``memory_bandwidth`` (bytes/s) and ``cache_bytes`` are those of the
    part that was measured; ``streaming_*`` describe a kernel that only moves data: its shortest
    time, and the part of the memory bandwidth that large ones reach. ``alone_s`` is what a
    product takes more when it is launched by itself than when one graph replays it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Times as measured, gaps and noise included."""

    name: str
    source: str
    grid: Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """All that was measured on one part, and its datasheet."""

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
    """Return what the bytes of a file hold. Raises as `load_part` does."""
    try:
        head, _, cells = lzma.decompress(content).partition(b"\n")
        loose = msgspec.json.decode(head, type=dict[str, object])
        if loose.get("format") != FORMAT:
            found = loose.get("format")
            message = f"the tables are of format {found}, this hespas reads {FORMAT}"
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
        tables[wire.name] = _table(wire, cells[:size])
        cells = cells[size:]
    return Part(about=about, tables=MappingProxyType(tables))


def _table(wire: TableWire, cells: bytes) -> Table:
    half = len(cells) // 2
    words = bytearray(2 * half)
    words[1::2], words[::2] = cells[:half], cells[half:]
    zigzag = struct.unpack(f"<{half}H", words)
    codes = accumulate([(each >> 1) ^ -(each & 1) for each in zigzag])
    step, unit = wire.step, log(_NS)
    times = tuple([code * step + unit if code else nan for code in codes])
    axes = tuple([Axis(name=a.name, sizes=a.sizes, weight=a.weight) for a in wire.axes])
    return Table(name=wire.name, source=wire.source, grid=Grid(axes=axes, log_times=times))


def encode_part(about: PartWire, grids: Iterable[Grid]) -> bytes:
    """Return the bytes of a file: the inverse of `decode_part`, up to a cell's step."""
    body = b"".join(
        _cells(grid, table.step) for table, grid in zip(about.tables, grids, strict=True)
    )
    return lzma.compress(msgspec.json.encode(about) + b"\n" + body, preset=9 | lzma.PRESET_EXTREME)


def _cells(grid: Grid, step: float) -> bytes:
    codes = [0 if isnan(time) else round((time - log(_NS)) / step) for time in grid.log_times]
    differences = [code - before for code, before in zip(codes, [0, *codes], strict=False)]
    zigzag = [2 * each if each >= 0 else -2 * each - 1 for each in differences]
    return bytes(each >> 8 for each in zigzag) + bytes(each & 255 for each in zigzag)
