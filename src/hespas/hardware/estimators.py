"""``perf_estimator`` of a configuration file: a method, and the hardware that it estimates for.

The types are what the file holds, key by key; a field that the file leaves out is None. Methods
that need other keys declare a type of their own beside their estimator.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import force_setattr

from hespas.base.config_files import read_json
from hespas.base.decode import decode
from hespas.base.figures import Count, FractionOrZero, Positive, Text, check_rate
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError
from hespas.program.types import PRODUCT_TYPES

HARDWARE = "$.perf_estimator.hardware"
"""The JSON path of the hardware."""


class Hardware(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``hardware`` may hold whatever the method is; ``power_limit_w`` is of its board."""

    num_npus: Count | None = None
    power_limit_w: Positive | None = None
    in_memory_only_cache: bool | None = None


class RooflineHardware(
    Hardware, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"tdp_w": "tdp_W"}
):
    """``hardware`` of the method ``roofline``.

    Rates are in FLOP/s, ``memory_bandwidth`` in bytes/s, ``tdp_w`` (the key ``tdp_W``) in W.
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
        for name, rate in self.per_datatype_flops.items():
            check_rate(rate, "FLOP/s", path=f"{HARDWARE}.per_datatype_flops.{name}")


class NodeHardware(Hardware, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hardware`` of methods that know a device by its name: a preset's, or one's own by path."""

    node: Text


class EstimatorKeys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``perf_estimator`` as the file holds it: the method decides what ``hardware`` may hold."""

    method: str
    hardware: dict[str, object] = {}


class _NodeFile(Struct, frozen=True, kw_only=True):
    """A configuration of which only the estimator is read: the others are keys of a run."""

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
    return decode(estimator.hardware, RooflineHardware, location=location, at=HARDWARE)
