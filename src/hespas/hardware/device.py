"""An accelerator's peak rates and calibration."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from msgspec import Struct, structs
from msgspec.structs import force_setattr

from hespas.base.decode import decode, read_json
from hespas.base.fields import parse_pairs
from hespas.base.figures import (
    Count,
    Fraction,
    FractionOrZero,
    NotNegative,
    Positive,
    Text,
    check_rate,
)
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.base.units import parse_rate
from hespas.errors import ConfigError, HardwareError, option
from hespas.hardware.power import BoardPower
from hespas.hardware.scales import check_power
from hespas.program.types import ELEMENT_TYPES, PRECISIONS, PRODUCT_TYPES, ElementType, NumberKind


def parse_rates(text: str) -> dict[str, float]:
    """Read FLOP/s by type: ``bf16=312e12,f16=312TFLOP/s``, or a JSON object.

    >>> parse_rates("bf16=312e12,f16=1 TFLOP/s")
    {'bf16': 312000000000000.0, 'f16': 1000000000000.0}
    """
    name = "per_datatype_flops"
    texts: Iterable[str] = text.split(",")
    if text.lstrip().startswith("{"):
        try:
            pairs = cast("list[tuple[str, Any]]", json.loads(text, object_pairs_hook=list))
        except ValueError as error:
            raise ConfigError(f"{option(name)}: malformed JSON: {error}") from error
        texts = (f"{kind}={r if isinstance(r, str) else json.dumps(r)}" for kind, r in pairs)
    rates = parse_pairs(texts, name=name, form="TYPE=RATE,TYPE=RATE")
    for kind in rates:
        if kind not in PRODUCT_TYPES:
            raise ConfigError(
                f"{option(name)}: unknown element type {kind!r}",
                hint=suggestion(kind, PRODUCT_TYPES),
            )
    return {
        kind: parse_rate(rate, "FLOP/s", location=f"{option(name)} {kind}")
        for kind, rate in rates.items()
    }


class TensorCore(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The TensorCores of a device: ``tensor_core`` of ``node.json``.

    ``cores`` make one device together. A matrix unit takes tiles of ``matrix_unit_size`` on a side.
    A core's vector unit works on registers of 8 x 128 numbers of 32 bits. It does this many
    operations a cycle: ``arithmetic``, ``functions`` (such as exponentials), ``lanes`` (across
    lanes), ``loads`` and ``stores``. With ``packs_bf16`` it computes on two bf16 in the place of
    one f32; with ``exact_functions`` the arithmetic unit need not refine reciprocals, roots and
    error functions. A step of a kernel's grid costs ``step_cycles`` in addition to its work.
    ``schedules_kernels`` says that the schedules of Pallas kernels by the part's compiler are
    known.

    A matrix product of a compiled program takes the roofline's time plus a part,
    ``product_cycles``, of the compiler's cycles beyond it: 1 trusts the compiler, less is
    calibrated to published steps. By these cycles, large products reach ``product_share`` of the
    peak, which also serves products of programs that are not compiled. Other kernels take the time
    of memory or of their instructions, plus ``moving_cycles`` of the cycles beyond that.
    """

    cores: Count
    matrix_unit_size: Count
    arithmetic: Positive
    functions: Positive
    lanes: Positive
    loads: Positive
    stores: Positive
    packs_bf16: bool
    exact_functions: bool = False
    step_cycles: NotNegative
    product_cycles: FractionOrZero = 1.0
    product_share: Fraction = 1.0
    moving_cycles: FractionOrZero = 1.0
    schedules_kernels: bool = False


def faster(core: TensorCore, factor: float) -> TensorCore:
    """Return TensorCores with scaled throughput of vector units."""
    units = ("arithmetic", "functions", "lanes", "loads", "stores")
    return structs.replace(core, **{name: getattr(core, name) * factor for name in units})


_TABLE_OF_TYPE = {
    "bf16": "bf16",
    "f16": "bf16",
    "tf32": "tf32",
    "f32_high": "tf32",
    "f32_highest": "f32",
    "f4E2M1FN": "f4",
    "f8E4M3FN": "f8",
    "f8E5M2": "f8",
    "f8E4M3": "f8",
    "f8E3M4": "f8",
    "f8E4M3FNUZ": "f8",
    "f8E5M2FNUZ": "f8",
    "f8E4M3B11FNUZ": "f8",
    "i8": "f8",
    "ui8": "f8",
}
"""The type whose measured table serves a type; other types are scaled from bf16."""

_GEMM = "gemm."
_MOST_REACHED = 2.0
"""No part was measured to reach more of its peak than twice what another does of its own."""
_KIND_FACTORS = ("all", "gemm", "attention", "kernels")


def table_of(type_name: str) -> str:
    """Return the type whose measured table serves a type."""
    return _TABLE_OF_TYPE.get(type_name, type_name)


def factor_of(type_name: str) -> str:
    """Return the name of the factor for a type's products.

    Integers have their own, since measurements of floats do not apply to them.

    >>> factor_of("f16"), factor_of("f8E5M2"), factor_of("ui8")
    ('gemm.bf16', 'gemm.f8', 'gemm.i8')
    """
    return "gemm.i8" if type_name in {"i8", "ui8"} else f"gemm.{table_of(type_name)}"


@cache
def factor_names() -> tuple[str, ...]:
    """Return the names of all factors of a calibration."""
    of_types = sorted({factor_of(name) for name in PRODUCT_TYPES})
    return (*_KIND_FACTORS, *of_types)


@frozen
class MeasuredTables:
    """The measured tables that serve a device: those of ``part``.

    ``factors`` multiply the tables' times to calibrate them: for products of a type (``gemm.bf16``)
    or of all other types (``gemm``), for ``attention``, for other ``kernels``, and for ``all``
    together. ``reached`` says of types how much of its peak the device reaches in large products,
    as a share of what ``part`` reaches of its own. ``location`` is the file that gives them.
    """

    part: str
    location: str = field(default="", compare=False)
    factors: Mapping[str, float] = field(default_factory=dict[str, float])
    reached: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        for field_name in ("factors", "reached"):
            given: Mapping[str, float] = getattr(self, field_name)
            object.__setattr__(self, field_name, MappingProxyType(dict(given)))
        known = factor_names()
        self._check("factor", self.factors, known)
        of_products = [name.removeprefix(_GEMM) for name in known if name.startswith(_GEMM)]
        self._check("type of reached products", self.reached, of_products)
        for name, share in self.reached.items():
            if share > _MOST_REACHED:
                raise HardwareError(
                    f"reached.{name} is {share:g}",
                    location=self.location or self.part,
                    hint=f"give a share of at most {_MOST_REACHED:g}, as 0.65 for 65 %",
                )

    def _check(self, what: str, names: Iterable[str], known: Sequence[str]) -> None:
        for name in names:
            if name not in known:
                raise HardwareError(
                    f"there is no {what} {name!r}",
                    location=self.location or self.part,
                    hint=suggestion(name, known),
                )


_SLOWEST_HZ, _FASTEST_HZ = 1e8, 1e11


def check_clock(clock_hz: float | None, *, location: str = "") -> None:
    """Raise `HardwareError` for a clock that can't be in Hz.

    >>> check_clock(1755, location="node.json")
    Traceback (most recent call last):
        ...
    hespas.errors.HardwareError: node.json: clock_hz is 1755; give it in Hz, as in 1.755e9
    """
    if clock_hz is not None and not _SLOWEST_HZ <= clock_hz <= _FASTEST_HZ:
        raise HardwareError(
            f"clock_hz is {clock_hz:g}", location=location, hint="give it in Hz, as in 1.755e9"
        )


_PRECISIONS = {"tf32": ("f32",), "f32_high": ("tf32", "f32"), "f32_highest": ("f32",)}
"""Types that serve products of f32 by precision on GPUs: their compiler uses tf32 up to HIGH."""

_PRODUCT_PASSES = {"f32_high": 3, "f32_highest": 6}
"""Products of bf16 that a TPU takes for one of f32.

Source: the cycles that libtpu 0.0.42 writes for products of 4096 x 4096 and 8192 x 8192 on v3 to
v7x, 3.0 to 3.5 and 6.0 to 7.2 times the bound of one pass of bf16.
"""


_WIDER = ("bf16", "f16", "f32")
_FLOAT_CONVERSIONS = {4: ("f8E4M3FN", "f8E4M3FNUZ", *_WIDER), 8: _WIDER, 16: ("f32",)}
_FLOAT_CONVERSIONS[6] = _FLOAT_CONVERSIONS[4]
"""What GPUs' compilers convert floats to, by their bits."""


def _conversions(type_name: str, *, is_tpu: bool) -> tuple[str, ...]:
    """Return the conversions of an unsupported type, best first.

    Sources: the products that XLA writes for GPUs that lack bf16 or floats of 8 bits; the cycles of
    libtpu 0.0.42, which are those of bf16 for f16, i4, i8 and floats of 4 and 8 bits on v3, and but
    for floats of 8 bits on v7x.
    """
    if type_name in PRECISIONS:
        return ("bf16",) if is_tpu else _PRECISIONS[type_name]
    match ELEMENT_TYPES.get(type_name):
        case ElementType(kind=NumberKind.INTEGER, bits=2 | 4 | 8):
            return ("i8", "bf16") if is_tpu else ("i8",)
        case ElementType(kind=NumberKind.FLOAT, bits=bits) if bits in _FLOAT_CONVERSIONS:
            return ("bf16",) if is_tpu else _FLOAT_CONVERSIONS[bits]
        case _:
            return ()


@frozen
class Device:
    """Dense peak rates of one accelerator, from its datasheet.

    ``per_datatype_flops`` has keys as MLIR spells types; products of f32 may have one for each
    precision, ``tf32``, ``f32_high`` and ``f32_highest``. ``peak_flops`` (FLOP/s) serves every
    element type that is neither named there nor converted to one that is (`served_by`).
    ``launch_overhead_s`` is the time that a kernel launched behind another takes in addition to its
    work; None is unknown, and 0 is for devices that launch nothing. A TPU's compiler counts cycles
    of ``clock_hz``. ``host_bandwidth_bytes_per_s`` is one direction. ``microarchitecture`` is the
    file that describes a GPU's inside. ``power_limit_w`` is what its board may draw; None is its
    thermal design power. Raises `HardwareError` on a figure that is not a positive, finite number.
    """

    name: str
    peak_flops: float
    memory_bandwidth_bytes_per_s: float
    per_datatype_flops: Mapping[str, float] = field(default_factory=dict[str, float])
    memory_capacity_bytes: int | None = None
    tdp_w: float | None = None
    hbm_power_ratio: float | None = None
    launch_overhead_s: float | None = None
    clock_hz: float | None = None
    tensor_core: TensorCore | None = None
    measured: MeasuredTables | None = None
    microarchitecture: Path | None = None
    host_bandwidth_bytes_per_s: float | None = None
    power: BoardPower | None = None
    power_limit_w: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "per_datatype_flops", MappingProxyType(dict(self.per_datatype_flops))
        )
        figures = {
            "peak_flops": self.peak_flops,
            "memory_bandwidth": self.memory_bandwidth_bytes_per_s,
            **{f"per_datatype_flops.{k}": v for k, v in self.per_datatype_flops.items()},
            "memory_capacity": self.memory_capacity_bytes,
            "tdp_W": self.tdp_w,
            "host_bandwidth": self.host_bandwidth_bytes_per_s,
            "power_limit_w": self.power_limit_w,
        }
        for key, value in figures.items():
            self._check(key, value, is_right=value is None or value > 0, hint="a positive number")
        check_clock(self.clock_hz, location=self.name)
        overhead_s, ratio = self.launch_overhead_s, self.hbm_power_ratio
        is_right = overhead_s is None or overhead_s >= 0
        self._check("launch_overhead_s", overhead_s, is_right=is_right, hint="0 or more")
        is_right = ratio is None or 0 <= ratio <= 1
        self._check("hbm_power_ratio", ratio, is_right=is_right, hint="a number from 0 to 1")
        if ratio is not None and self.tdp_w is None:
            raise HardwareError(
                "hbm_power_ratio has no effect without tdp_W", location=self.name, hint="add tdp_W"
            )

    def _check(self, key: str, value: float | None, *, is_right: bool, hint: str) -> None:
        if not is_right or not isfinite(value or 0.0):
            raise HardwareError(f"{key} is {value}", location=self.name, hint=f"give {hint}")

    @property
    def limit_w(self) -> float | None:
        """The mean power limit of its board; None if unknown."""
        return self.tdp_w if self.power_limit_w is None else self.power_limit_w

    def named_rate(self, type_name: str) -> float | None:
        """Return a type's FLOP/s, if ``per_datatype_flops`` names it.

        By default it is the rate of the serving type; a TPU takes several passes for f32.

        >>> v5e = Device(name="v5e", peak_flops=6e12, memory_bandwidth_bytes_per_s=819e9,
        ...              per_datatype_flops={"bf16": 197e12})
        >>> v5e.named_rate("f8E4M3FN"), v5e.named_rate("i8")
        (197000000000000.0, None)
        """
        served = self.served_by(type_name)
        return None if served is None else self.per_datatype_flops[served] / self._passes(type_name)

    def _passes(self, type_name: str) -> int:
        """Return the products of the serving type per product."""
        return _PRODUCT_PASSES.get(type_name, 1) if self.served_by(type_name) == "bf16" else 1

    def names(self, type_name: str) -> bool:
        """Return whether ``per_datatype_flops`` names a type or its precision."""
        names = (type_name, *_PRECISIONS.get(type_name, ()))
        is_passed = self._passes(type_name) > 1
        return is_passed or any(name in self.per_datatype_flops for name in names)

    def served_by(self, type_name: str) -> str | None:
        """Return the type whose rate serves a type, if any.

        None for a type that nothing multiplies, which is priced at ``peak_flops``.

        >>> h100 = Device(name="h100", peak_flops=34e12, memory_bandwidth_bytes_per_s=3350e9,
        ...               per_datatype_flops={"bf16": 990e12, "f8E4M3FN": 1979e12, "f32": 67e12})
        >>> [h100.served_by(name) for name in ("bf16", "f4E2M1FN", "f8E5M2", "f16", "i8")]
        ['bf16', 'f8E4M3FN', 'bf16', 'f32', None]
        """
        rates = self.per_datatype_flops
        names = _conversions(type_name, is_tpu=self.tensor_core is not None)
        return next((name for name in (type_name, *names) if name in rates), None)

    def multiplied_as(self, type_name: str) -> str:
        """Return the type that a type is multiplied as.

        A product of f32 that takes several passes keeps its name, for it has a rate of its own.
        """
        served = self.served_by(type_name)
        return type_name if served is None or self._passes(type_name) > 1 else served

    def factor(self, *names: str) -> float:
        """Return the calibration's factor on times.

        That is the factor of the first of ``names`` that it has, times the factor of ``all``.

        >>> tables = MeasuredTables(part="A100_SXM", factors={"gemm": 2.0, "all": 1.5})
        >>> a100 = Device(name="a100", peak_flops=9.7e12, memory_bandwidth_bytes_per_s=1555e9,
        ...               measured=tables)
        >>> a100.factor("gemm.bf16", "gemm"), a100.factor("kernels")
        (3.0, 1.5)
        """
        if self.measured is None:
            return 1.0
        factors = self.measured.factors
        first = next((factors[name] for name in names if name in factors), 1.0)
        return first * factors.get("all", 1.0)

    def scaled_rate(self, type_name: str) -> float:
        """Return the rate in FLOP/s to which tables of another part are scaled."""
        if self.measured is None:
            return self.rate(type_name)
        name = factor_of(type_name).removeprefix(_GEMM)
        return self.rate(type_name) * self.measured.reached.get(name, 1.0)

    def rate(self, type_name: str) -> float:
        """Return a type's peak in FLOP/s; ``peak_flops`` by default.

        >>> a100 = Device(name="a100", peak_flops=9.7e12, memory_bandwidth_bytes_per_s=1555e9,
        ...               per_datatype_flops={"f32": 19.5e12})
        >>> a100.rate("f32"), a100.rate("tf32"), a100.rate("f64")
        (19500000000000.0, 19500000000000.0, 9700000000000.0)
        """
        return self.named_rate(type_name) or self.peak_flops


def at_fastest(device: Device) -> Device:
    """Return the device with its fastest rate for unlisted types."""
    rates = (device.peak_flops, *device.per_datatype_flops.values())
    return replace(device, peak_flops=max(rates))


HARDWARE = "$.perf_estimator.hardware"
"""The JSON path of the hardware."""


class Hardware(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of ``hardware`` that all methods have."""

    num_npus: Count | None = None
    power_limit_w: Positive | None = None
    in_memory_only_cache: bool | None = None


class RooflineHardware(
    Hardware, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"tdp_w": "tdp_W"}
):
    """``hardware`` of the method ``roofline``: FLOP/s, bytes/s and W.

    Raises `ConfigError` for a rate of an element type that there isn't, and for a rate that was
    meant in another unit.
    """

    peak_flops: Positive
    memory_bandwidth: Positive
    per_datatype_flops: Mapping[str, Positive] = {}
    tdp_w: Positive | None = None
    hbm_power_ratio: FractionOrZero | None = None
    error_on_unknown_type: bool | None = None
    warn_on_unknown_type: bool | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "per_datatype_flops", MappingProxyType(dict(self.per_datatype_flops)))
        for name in self.per_datatype_flops:
            if name not in PRODUCT_TYPES:
                raise ConfigError(
                    f"unknown element type {name!r} in per_datatype_flops",
                    hint=suggestion(name, PRODUCT_TYPES),
                )
        check_rate(self.peak_flops, "FLOP/s", path=f"{HARDWARE}.peak_flops")
        check_rate(self.memory_bandwidth, "B/s", path=f"{HARDWARE}.memory_bandwidth")
        check_power(self.tdp_w, path=f"{HARDWARE}.tdp_W")
        check_power(self.power_limit_w, path=f"{HARDWARE}.power_limit_w")
        for name, rate in self.per_datatype_flops.items():
            check_rate(rate, "FLOP/s", path=f"{HARDWARE}.per_datatype_flops.{name}")


class NodeHardware(Hardware, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hardware`` of methods that take a device's name or path."""

    node: Text


class EstimatorKeys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``perf_estimator``; its method decides what ``hardware`` may hold."""

    method: str
    hardware: dict[str, object] = {}


class _NodeFile(Struct, frozen=True, kw_only=True):
    """The estimator of a configuration."""

    perf_estimator: EstimatorKeys | None = None


def read_roofline(path: Path) -> RooflineHardware:
    """Return the rates that a configuration file gives a device.

    Raises `ConfigError` for a file without a ``perf_estimator``, or with one of another method.
    """
    location = str(path)
    estimator = decode(read_json(path), _NodeFile, location=location).perf_estimator
    if estimator is None:
        raise ConfigError(
            "no perf_estimator is given",
            location=location,
            hint="add one, or use a preset's, configs/nodes/NODE/roofline/config.json",
        )
    if estimator.method != "roofline":
        raise ConfigError(
            f"method {estimator.method!r} describes no device by its rates",
            location=location,
            hint="use a configuration of the method roofline; on the command line this one is a "
            "workload: hespas estimate CONFIG.json --mlir_file PROGRAM",
        )
    return decode(estimator.hardware, RooflineHardware, location=location, json_path=HARDWARE)
