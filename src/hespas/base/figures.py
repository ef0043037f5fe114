"""Types of the figures in files: what msgspec checks when a file is decoded."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from hespas.base.limits import MOST_DEVICES
from hespas.errors import ConfigError

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
DeviceCount: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_DEVICES)]
CountOrZero: TypeAlias = Annotated[int, Meta(ge=0)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0)]
Fraction: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
FractionOrZero: TypeAlias = Annotated[float, Meta(ge=0, le=1)]

LEAST_BARE_RATE = 1e8
"""In FLOP/s or B/s: no accelerator is so slow, so a smaller number was meant in another unit."""
USUAL_UNITS = {"FLOP/s": "TFLOP/s", "B/s": "GB/s"}
"""The units in which data sheets give a device's rates."""
_FACTORS = {"TFLOP/s": "e12", "GB/s": "e9"}


def check_rate(rate: float | None, unit: str, *, path: str) -> None:
    """Raise `ConfigError` for a rate in a file, in ``unit``, that was meant in another unit.

    ``path`` is the JSON path of the rate. None, a rate that is not given, is right.

    >>> check_rate(1555e9, "B/s", path="$.memory_bandwidth")
    >>> check_rate(1555, "B/s", path="$.memory_bandwidth")
    Traceback (most recent call last):
        ...
    hespas.errors.ConfigError: $.memory_bandwidth is 1555 B/s; give 1555e9 for 1555 GB/s
    """
    if rate is None or rate >= LEAST_BARE_RATE:
        return
    text, usual = f"{rate:g}", USUAL_UNITS[unit]
    # A number such as 2e+06 takes no further exponent.
    example = "312" if "e" in text else text
    raise ConfigError(
        f"{path} is {text} {unit}", hint=f"give {example}{_FACTORS[usual]} for {example} {usual}"
    )
