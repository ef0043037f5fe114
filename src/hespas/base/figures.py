"""Types and limits of numbers in decoded files."""

from __future__ import annotations

from math import inf
from typing import Annotated, TypeAlias

from msgspec import Meta

from hespas.errors import ConfigError

MOST_DEVICES = 1 << 22
"""The most devices of a system, a program or a set in a cluster file."""
MOST_CHUNKS = 1 << 16
"""The most chunks of a collective: ``preferred-dataset-splits``."""
MOST_ALGORITHM_CHUNKS = 1 << 24
"""The most chunks in a collective algorithm's buffers, and the most that its steps move."""
MOST_DIGITS = 18
"""The most decimal digits of a number in a text: a device, a group, a window of peers."""
MOST_WINDOW_POSITIONS = 1 << 22
"""The most positions of a convolution's kernel or output, whichever has fewer, in a dimension."""
MOST_SLICES = 300_000
"""The most slices of a timeline, which viewers load in seconds; further ones are summarised."""
MOST_KERNEL_STEPS = 1 << 22
"""The most steps of a Mosaic kernel's grid, times the iterations of the loops in a step."""


def whole_number(text: str) -> int | None:
    """Parse a whole number from 0 of few digits.

    It has at most `MOST_DIGITS` digits. Returns None for any other text: Python parses no number of
    thousands of digits, and digits of other scripts don't belong in a table.

    >>> whole_number("4096"), whole_number("-1"), whole_number("9" * 5000)
    (4096, None, None)
    """
    is_number = text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS
    return int(text) if is_number else None


def amount(text: str) -> float | None:
    """Parse a finite number from 0, else None.

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
"""In FLOP/s or B/s: no accelerator is slower, so a smaller number is in another unit."""
USUAL_UNITS = {"FLOP/s": "TFLOP/s", "B/s": "GB/s"}
"""The units in which data sheets give a device's rates."""
_FACTORS = {"TFLOP/s": "e12", "GB/s": "e9"}


def check_rate(rate: float | None, unit: str, *, path: str) -> None:
    """Raise `ConfigError` for a rate probably in another unit.

    ``unit`` is the rate's unit in the file, ``path`` its JSON path. None, a missing rate, is valid.

    >>> check_rate(1555e9, "B/s", path="$.memory_bandwidth")
    >>> check_rate(1555, "B/s", path="$.memory_bandwidth")
    Traceback (most recent call last):
        ...
    hespas.errors.ConfigError: $.memory_bandwidth is 1555 B/s; give 1555e9 for 1555 GB/s
    """
    if rate is None or rate >= LEAST_BARE_RATE:
        return
    text, usual = f"{rate:g}", USUAL_UNITS[unit]
    # A number such as 2e+06 can't take a second exponent.
    example = "312" if "e" in text else text
    raise ConfigError(
        f"{path} is {text} {unit}", hint=f"give {example}{_FACTORS[usual]} for {example} {usual}"
    )
