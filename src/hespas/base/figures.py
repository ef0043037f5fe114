"""Types of the figures in files: what msgspec checks when a file is decoded."""

from __future__ import annotations

from math import inf
from typing import Annotated, TypeAlias

from msgspec import Meta

from hespas.errors import ConfigError

MOST_DEVICES = 1 << 22
"""Devices of a system, a program or a set in a cluster file."""
MOST_CHUNKS = 1 << 16
"""Chunks that a collective is cut into: ``preferred-dataset-splits``."""
MOST_ALGORITHM_CHUNKS = 1 << 24
"""Chunks in the buffers of all ranks of a collective algorithm, and chunks that its steps move."""
MOST_DIGITS = 18
"""Decimal digits of a number that stands in a text: a device, a group, a window of peers."""
MOST_DILATION_CASES = 1 << 22
"""Cases to count a convolution with a dilated input: about its dilation along a dimension, unless
the kernel's dilation has common factors with it."""
MOST_SLICES = 300_000
"""Slices of a timeline: viewers load about as many in seconds. What is more is summarised."""
MOST_KERNEL_STEPS = 1 << 22
"""Steps of a Mosaic kernel's grid, times the rounds of the loops in a step."""


def whole_number(text: str) -> int | None:
    """Return the whole number from 0 on that a text is, with at most `MOST_DIGITS` digits.

    None for any other text: Python reads no number of thousands of digits, and digits of other
    scripts are no figures in a table.

    >>> whole_number("4096"), whole_number("-1"), whole_number("9" * 5000)
    (4096, None, None)
    """
    is_number = text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS
    return int(text) if is_number else None


def amount(text: str) -> float | None:
    """Return the finite number from 0 on that a text is; None for any other text.

    >>> amount("1e3"), amount("-1"), amount("nan")
    (1000.0, None, None)
    """
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < inf else None


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
