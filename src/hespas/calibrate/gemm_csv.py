"""Timings of matrix products in a CSV of the user's own.

The header names ``m``, ``n``, ``k``, ``dtype``, optionally ``batch``, and the time with its unit:
``latency_us``, ``time (ms)``, ``duration[ns]``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hespas.calibrate.samples import FactorFit, Sample, check_agreement
from hespas.config.files import read_text
from hespas.config.suggest import suggestion
from hespas.errors import MeasurementError
from hespas.estimate.measured.gemm import GemmModel, Product, table_of
from hespas.program.types import ELEMENT_TYPES
from hespas.units import format_time

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_TIME = re.compile(r"(?:latency|time|duration)[ _]*[\[(]?(s|ms|us|µs|ns)[\])]?")
_TYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "half": "f16",
    "fp16": "f16",
    "float32": "f32",
    "fp32": "f32",
    "float64": "f64",
    "fp64": "f64",
    "fp8": "f8E4M3FN",
    "f8": "f8E4M3FN",
    "e4m3": "f8E4M3FN",
    "e5m2": "f8E5M2",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e5m2": "f8E5M2",
    "int8": "i8",
}
SHORTEST_KERNEL_S = 5e-7
"""No GPU starts and ends a kernel in less."""

_FAR = 100.0
"""A product that takes so many times what is expected was written down in another unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """The header: names of the columns, the unit of the time, and the file."""

    names: Sequence[str]
    time: int
    unit_s: float
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    product: Product
    time_s: float
    place: str

    @property
    def name(self) -> str:
        """What was measured."""
        product = self.product
        batch = "" if product.batch == 1 else f"{product.batch} x "
        return f"{batch}{product.m} x {product.n} x {product.k} of {product.type_name}"


def fit_gemms(path: Path, model: GemmModel) -> tuple[FactorFit, ...]:
    """Return a factor for the products of each type that the file has.

    Raises `MeasurementError`, naming ``file:line``, for a header without its columns or unit,
    for what is no number, for times below the physical floor or far from what the part's tables
    say, and for lines that contradict each other.
    """
    rows = _rows(path)
    check_agreement(
        rows,
        key=lambda row: row.product,
        time_s=lambda row: row.time_s,
        place=lambda row: row.place,
        name=lambda row: row.name,
    )
    by_table: dict[str, list[Sample]] = {}
    for row in rows:
        predicted_s = model.price(row.product).time_s
        _check(row, predicted_s, model.floor_s(row.product))
        sample = Sample(
            label=row.name, place=row.place, measured_s=row.time_s, predicted_s=predicted_s
        )
        by_table.setdefault(f"gemm.{table_of(row.product.type_name)}", []).append(sample)
    return tuple(
        FactorFit(name=name, samples=tuple(samples)) for name, samples in sorted(by_table.items())
    )


def _check(row: _Row, predicted_s: float, floor_s: float) -> None:
    least_s = max(floor_s, SHORTEST_KERNEL_S)
    if row.time_s < least_s:
        raise MeasurementError(
            f"{row.name} in {format_time(row.time_s)} is below the physical floor of "
            f"{format_time(least_s)}",
            place=row.place,
            mend="correct the unit in the header",
        )
    if row.time_s > _FAR * predicted_s:
        raise MeasurementError(
            f"{row.name} in {format_time(row.time_s)} is {row.time_s / predicted_s:.0f} times the "
            f"{format_time(predicted_s)} expected",
            place=row.place,
            mend="correct the unit in the header",
        )


def _rows(path: Path) -> list[_Row]:
    lines = list(csv.reader(read_text(path).splitlines()))
    if len(lines) < 2:
        raise MeasurementError("there is no measurement", place=str(path), mend="add lines")
    columns = _columns(lines[0], str(path))
    return [
        _row(line, columns, f"{path}:{number}")
        for number, line in enumerate(lines[1:], start=2)
        if any(cell.strip() for cell in line)
    ]


def _columns(header: Sequence[str], place: str) -> _Columns:
    names = [name.strip().lower() for name in header]
    names = ["dtype" if name in {"type", "data_type"} else name for name in names]
    missing = [name for name in ("m", "n", "k", "dtype") if name not in names]
    if missing:
        mend = "name m, n, k, dtype and latency_us"
        message = f"the header lacks {', '.join(missing)}"
        raise MeasurementError(message, place=f"{place}:1", mend=mend)
    times = [(at, match) for at, name in enumerate(names) if (match := _TIME.fullmatch(name))]
    if len(times) != 1:
        raise MeasurementError(
            "the header doesn't name one time with its unit",
            place=f"{place}:1",
            mend="write latency_us, latency_ms, latency_ns or latency_s",
        )
    at, match = times[0]
    return _Columns(names=names, time=at, unit_s=_UNITS[match[1]], place=place)


def _row(line: Sequence[str], columns: _Columns, place: str) -> _Row:
    if len(line) != len(columns.names):
        message = f"{len(line)} columns where the header has {len(columns.names)}"
        raise MeasurementError(message, place=place)
    cells = dict(zip(columns.names, (cell.strip() for cell in line), strict=True))
    sizes = {name: _size(cells, name, place) for name in ("m", "n", "k")}
    product = Product(
        type_name=_type(cells["dtype"], place),
        m=sizes["m"],
        n=sizes["n"],
        k=sizes["k"],
        batch=_size(cells, "batch", place) if "batch" in cells else 1,
    )
    text = line[columns.time].strip()
    try:
        time_s = float(text) * columns.unit_s
    except ValueError:
        raise MeasurementError(f"{text!r} is no time", place=place) from None
    return _Row(product=product, time_s=time_s, place=place)


def _size(cells: Mapping[str, str], name: str, place: str) -> int:
    text = cells[name]
    if not text.isdecimal() or int(text) < 1:
        raise MeasurementError(f"{name} is {text!r}", place=place, mend="give a whole number")
    return int(text)


def _type(text: str, place: str) -> str:
    name = _TYPES.get(text.lower().removeprefix("torch."), text)
    known = (*ELEMENT_TYPES, "tf32")
    if name not in known:
        message = f"there is no type {text!r}"
        raise MeasurementError(message, place=place, mend=suggestion(text, (*known, *_TYPES)))
    return name
