"""Read timings of matrix products from the user's CSV.

The header names ``m``, ``n``, ``k``, ``dtype``, optionally ``batch``, and the time with its unit:
``latency_us``, ``time (ms)``, ``duration[ns]``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from hespas.base.frozen import frozen
from hespas.base.suggest import other_names, own_name, suggestion
from hespas.base.table import Line
from hespas.base.units import format_time
from hespas.errors import HardwareError, MeasurementError
from hespas.evidence.calibrate.factors import Group
from hespas.evidence.calibrate.samples import Case, check_agreement, check_limits, timed_lines
from hespas.hardware.device import Device, factor_of
from hespas.price.gemm import GemmModel, Product, gemm_model
from hespas.program.types import ELEMENT_TYPES

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_TIME = re.compile(r"(?:latency|time|duration)[ _]*[\[(]?(s|ms|us|µs|ns)[\])]?")
SHORTEST_KERNEL_S = 5e-7
"""The shortest time in which a GPU starts and ends a kernel."""

_HEADER = "m,n,k,dtype,latency_us"
_COLUMNS = {"type": "dtype", "data_type": "dtype"}
_HINT = "correct the unit in the header"
_TF32 = ", or write tf32 where tensor cores multiplied"


@frozen
class _Row:
    product: Product
    time_s: float
    location: str

    @property
    def name(self) -> str:
        """The measured product, as text."""
        product = self.product
        batch = "" if product.batch == 1 else f"{product.batch} x "
        return f"{batch}{product.m} x {product.n} x {product.k} of {product.type_name}"

    @property
    def case(self) -> Case:
        """The measured product with its location and time."""
        return Case(label=self.name, location=self.location, measured_s=self.time_s)

    @property
    def key(self) -> Product:
        """The product with sorted sides: exchanged ones take equal time."""
        low, high = sorted((self.product.m, self.product.n))
        return replace(self.product, m=low, n=high)


def gemm_groups(path: Path, device: Device) -> tuple[Group, ...]:
    """Return a file's products by type, as groups.

    Raises `MeasurementError`, naming ``file:line``, for a header without its columns or unit, for
    cells that are no numbers, for times below the physical floor or far from the part's tables, and
    for lines that contradict each other; `HardwareError` for a device without tables.
    """
    rows = _rows(path)
    if device.measured is None:
        raise HardwareError(
            "no tables of measured kernels are named, whose times factors could multiply",
            location=device.name,
            hint='name those of the nearest part in its node.json ("tables": "H100_SXM")',
        )
    model = gemm_model(device)
    for row in rows:
        _check(row, model)
    by_factor: dict[str, list[_Row]] = {}
    for row in rows:
        by_factor.setdefault(factor_of(row.product.type_name), []).append(row)
    return tuple(_group(name, by_factor[name]) for name in sorted(by_factor))


def _check(row: _Row, model: GemmModel) -> None:
    device, type_name = model.device, row.product.type_name
    floor_s = model.floor_s(row.product)
    if not device.names(type_name) and row.time_s < floor_s:
        served = device.served_by(type_name) or "peak_flops"
        raise MeasurementError(
            f"{row.name} in {format_time(row.time_s)} is below the {format_time(floor_s)} of "
            f"{served}, for {device.name} names no rate of {type_name}",
            location=row.location,
            hint="name it in per_datatype_flops (roofline/config.json of a node of your own), or "
            "correct the type or the unit",
        )
    check_limits(
        row.case,
        floor_s=max(floor_s, SHORTEST_KERNEL_S),
        expected_s=model.price(row.product).time_s,
        hint=_HINT + (_TF32 if type_name == "f32" else ""),
    )


def _group(name: str, rows: Sequence[_Row]) -> Group:
    notes = check_agreement([(row.key, row.case) for row in rows])

    def predict(device: Device) -> list[float]:
        model = gemm_model(device)
        return [model.price(row.product).time_s for row in rows]

    return Group(name=name, cases=tuple(row.case for row in rows), predict=predict, notes=notes)


def _rows(path: Path) -> list[_Row]:
    lines = timed_lines(
        path,
        needed=("m", "n", "k", "dtype"),
        header=_HEADER,
        form=_TIME,
        units=_UNITS,
        renamed=lambda name: _COLUMNS.get(name.lower(), name.lower()),
        hint="write latency_us, latency_ms, latency_ns or latency_s",
    )
    return [_row(line, time_s) for line, time_s in lines]


def _row(line: Line, time_s: float) -> _Row:
    m, n, k = map(line.whole, ("m", "n", "k"))
    batch = line.whole("batch") if "batch" in line.cells else 1
    type_name = _type(line.text("dtype"), line.location)
    product = Product(type_name=type_name, m=m, n=n, k=k, batch=batch)
    return _Row(product=product, time_s=time_s, location=line.location)


def _type(text: str, location: str) -> str:
    name = own_name("element_types", text.lower().removeprefix("torch.")) or text
    if name not in ELEMENT_TYPES:
        others = chain.from_iterable(other_names()["element_types"].values())
        hint = suggestion(text, (*ELEMENT_TYPES, *others))
        raise MeasurementError(f"there is no type {text!r}", location=location, hint=hint)
    return name
