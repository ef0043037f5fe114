"""One accelerator, by its peaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from types import MappingProxyType

from hespas.config.suggest import suggestion
from hespas.errors import HardwareError
from hespas.hardware.factors import factor_names


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTables:
    """Which measured tables serve a device: those of ``part``.

    ``factors`` multiply times, as the device was measured to differ: those of products of a type
    (``gemm.bf16``) or of all others (``gemm``), of ``attention``, of ``kernels`` that are no
    products, and of ``all`` together. ``place`` is the file that says so. Raises `HardwareError`
    for a name that is none of `hespas.hardware.factors.factor_names`.
    """

    part: str
    location: str = field(default="", compare=False)
    factors: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", MappingProxyType(dict(self.factors)))
        for name in self.factors:
            if name not in factor_names():
                raise HardwareError(
                    f"nothing is multiplied by the factor {name!r}",
                    location=self.location or self.part,
                    hint=suggestion(name, factor_names()),
                )


_SLOWEST_HZ, _FASTEST_HZ = 1e8, 1e11


def check_clock(clock_hz: float, *, location: str) -> None:
    """Raise `HardwareError` for a clock that no accelerator has: it is in another unit.

    >>> check_clock(1755, location="node.json")
    Traceback (most recent call last):
        ...
    hespas.errors.HardwareError: node.json: clock_hz is 1755; give it in Hz, as in 1.755e9
    """
    if not _SLOWEST_HZ <= clock_hz <= _FASTEST_HZ:
        raise HardwareError(
            f"clock_hz is {clock_hz:g}", location=location, hint="give it in Hz, as in 1.755e9"
        )


_FALLBACK_TYPES = {"tf32": "f32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Peak rates of one accelerator, dense, as its vendor's datasheet gives them.

    ``peak_flops`` (FLOP/s) serves every element type that ``per_datatype_flops`` (keys as MLIR
    spells types, and ``tf32``) doesn't name. Memory bandwidth is in bytes/s.
    ``launch_overhead_s`` is what a kernel takes beside its work when launched behind another;
    None is unknown, and 0 is for devices that launch nothing. ``clock_hz`` is that of the cycles
    that a TPU's compiler writes. ``measured`` names the tables of measured kernels that serve it,
    ``microarchitecture`` the file that describes its inside. Raises `HardwareError` on a figure
    that is not a positive, finite number.
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
    measured: MeasuredTables | None = None
    microarchitecture: Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "per_datatype_flops", MappingProxyType(dict(self.per_datatype_flops))
        )
        figures = {
            "peak_flops": self.peak_flops,
            "memory_bandwidth": self.memory_bandwidth_bytes_per_s,
        }
        figures |= {f"per_datatype_flops.{k}": v for k, v in self.per_datatype_flops.items()}
        optional = {
            "memory_capacity": self.memory_capacity_bytes,
            "tdp_W": self.tdp_w,
        }
        figures |= {key: value for key, value in optional.items() if value is not None}
        for key, value in figures.items():
            if not (isfinite(value) and value > 0):
                raise HardwareError(
                    f"{key} is {value}", location=self.name, hint="give a positive number"
                )
        if self.clock_hz is not None:
            check_clock(self.clock_hz, location=self.name)
        overhead_s = self.launch_overhead_s
        if overhead_s is not None and not (isfinite(overhead_s) and overhead_s >= 0):
            raise HardwareError(
                f"launch_overhead_s is {overhead_s}", location=self.name, hint="give 0 or more"
            )
        ratio = self.hbm_power_ratio
        if ratio is not None and not 0 <= ratio <= 1:
            raise HardwareError(
                f"hbm_power_ratio is {ratio}", location=self.name, hint="give a number from 0 to 1"
            )
        if ratio is not None and self.tdp_w is None:
            raise HardwareError(
                "hbm_power_ratio has no effect without tdp_W", location=self.name, hint="add tdp_W"
            )

    def named_rate(self, type_name: str) -> float | None:
        """Return the peak rate of a type, in FLOP/s, where ``per_datatype_flops`` names it.

        ``tf32`` is served by the rate of ``f32`` where it has none.
        """
        rates = self.per_datatype_flops
        return rates.get(type_name) or rates.get(_FALLBACK_TYPES.get(type_name, ""))

    def factor(self, *names: str) -> float:
        """Return by how much the device's calibration multiplies times.

        That is the first of the ``names`` of factors which it has, and the factor of ``all``.

        >>> tables = MeasuredTables(part="A100_SXM", factors={"gemm": 2.0, "all": 1.5})
        >>> a100 = Device(name="a100", peak_flops=9.7e12, memory_bandwidth_bytes_per_s=1555e9,
        ...               measured=tables)
        >>> a100.factor("gemm.bf16", "gemm"), a100.factor("kernels")
        (3.0, 1.5)
        """
        if self.measured is None:
            return 1.0
        factors = self.measured.factors
        named = next((factors[name] for name in names if name in factors), 1.0)
        return named * factors.get("all", 1.0)

    def rate(self, type_name: str) -> float:
        """Return the peak rate of a type in FLOP/s: ``peak_flops`` where none is named.

        >>> a100 = Device(name="a100", peak_flops=9.7e12, memory_bandwidth_bytes_per_s=1555e9,
        ...               per_datatype_flops={"f32": 19.5e12})
        >>> a100.rate("f32"), a100.rate("tf32"), a100.rate("f64")
        (19500000000000.0, 19500000000000.0, 9700000000000.0)
        """
        return self.named_rate(type_name) or self.peak_flops


def at_fastest(device: Device) -> Device:
    """Return the device with types that it names no rate of as fast as any: for lower bounds.

    >>> a100 = Device(name="a100", peak_flops=9.7e12, memory_bandwidth_bytes_per_s=1555e9,
    ...               per_datatype_flops={"bf16": 312e12})
    >>> at_fastest(a100).rate("i4")
    312000000000000.0
    """
    rates = (device.peak_flops, *device.per_datatype_flops.values())
    return replace(device, peak_flops=max(rates))
