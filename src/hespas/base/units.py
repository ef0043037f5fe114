"""Convert, parse and print quantities with SI and binary prefixes.

``GB`` is 1e9 bytes and ``GiB`` is 2**30 bytes. Inside hespas all values are in SI
units; other units exist only in files and in text.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import isfinite

from hespas.base.figures import LEAST_BARE_RATE, USUAL_UNITS
from hespas.errors import ConfigError

PS_PER_NS = 1000
PS_PER_S = 1_000_000_000_000
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
GIB = 2**30

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SMALL = {"p": 1e-12, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "": 1.0}
_LONG = {"min": 60.0, "h": 3600.0, "d": 86400.0}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*([A-Za-zµ/]*)\s*")
# The documented formats use FLOPS/s; most people write FLOPS.
_SPELLINGS = {"FLOP/s": ("FLOP/s", "FLOPS/s", "FLOPS")}


def _factors(unit: str) -> dict[str, float]:
    if unit == "s":
        return {prefix + unit: factor for prefix, factor in _SMALL.items()} | _LONG
    prefixes = _DECIMAL | _BINARY if unit in ("B", "B/s") else _DECIMAL
    return {
        prefix + spelling: factor
        for spelling in _SPELLINGS.get(unit, (unit,))
        for prefix, factor in prefixes.items()
    }


@lru_cache(maxsize=1024)
def to_ns(duration_s: float) -> float:
    """Convert a duration to ns.

    The result is rounded to 15 significant digits. A file's number in ns of up to 15 digits,
    divided by 1e9 when read, therefore comes back exactly.

    >>> 7.7 / 1e9 * 1e9, to_ns(7.7 / 1e9)
    (7.699999999999999, 7.7)
    """
    return float(f"{duration_s * 1e9:.15g}")


@lru_cache(maxsize=1024)
def to_gb_per_s(bandwidth_bytes_per_s: float) -> float:
    """Convert a bandwidth to GB/s, as exactly as `to_ns`.

    >>> 1.1 * 1e9 / 1e9, to_gb_per_s(1.1 * 1e9)
    (1.1, 1.1)
    """
    return float(f"{bandwidth_bytes_per_s / 1e9:.15g}")


def parse_quantity(text: str, unit: str, *, location: str = "") -> float:
    """Parse a quantity in ``unit``, such as ``s`` or ``B/s``.

    A bare number is in ``unit`` already. Raises `hespas.errors.ConfigError`, naming ``location``,
    on anything else.

    >>> parse_quantity("312 TFLOP/s", "FLOP/s")
    312000000000000.0
    >>> parse_quantity("4 GiB", "B")
    4294967296.0
    >>> parse_quantity("1.2ms", "s")
    0.0012
    """
    match = _QUANTITY.fullmatch(text)
    factors = _factors(unit) | {"": 1.0}
    if match is None or match[2] not in factors:
        example = "ms or us" if unit == "s" else f"G{unit} or T{unit}"
        kind = f"quantity in {unit}" if unit else "number"
        raise ConfigError(
            f"{text!r} is not a {kind}",
            location=location,
            hint=f"give a number, and {unit} or a multiple such as {example}"
            if unit
            else "write it as in 1.5, 20k or 3M",
        )
    value = float(match[1]) * factors[match[2]]
    if not isfinite(value):
        raise ConfigError(f"{text!r} is too large", location=location, hint="give a finite number")
    return value


def parse_rate(text: str, unit: str, *, location: str) -> float:
    """Parse a device's positive rate in FLOP/s or B/s.

    A bare number below the rate of any accelerator is probably in another unit: it raises
    `ConfigError` unless it has its unit.

    >>> parse_rate("3350GB/s", "B/s", location="memory_bandwidth")
    3350000000000.0
    >>> parse_rate("90MFLOPS", "FLOP/s", location="peak_flops")
    90000000.0
    >>> parse_rate("3350", "B/s", location="memory_bandwidth")
    Traceback (most recent call last):
        ...
    hespas.errors.ConfigError: memory_bandwidth: 3350 without a unit is 3350 B/s; \
give 3350GB/s, or 3350B/s if it is meant
    """
    rate = parse_quantity(text, unit, location=location)
    if rate <= 0:
        raise ConfigError(f"{location} is {text!r}", hint=f"give a positive number of {unit}")
    bare = text.strip()
    if rate < LEAST_BARE_RATE and not bare[-1].isalpha():
        raise ConfigError(
            f"{bare} without a unit is {bare} {unit}",
            location=location,
            hint=f"give {bare}{USUAL_UNITS[unit]}, or {bare}{unit} if it is meant",
        )
    return rate


def _scaled(value: float, unit: str, steps: list[tuple[float, str]], form: str = ".4g") -> str:
    # 999.96 would print as 1000: a value that rounds up to the next prefix takes that prefix.
    magnitude = abs(float(f"{value:.4g}"))
    factor, prefix = next((step for step in steps if magnitude >= step[0]), steps[-1])
    return f"{value / factor:{form}} {prefix}{unit}"


def format_quantity(value: float, unit: str, form: str = ".4g") -> str:
    """Format a value with a decimal prefix and four digits.

    >>> format_quantity(1.555e12, "B/s"), format_quantity(0, "FLOP")
    ('1.555 TB/s', '0 FLOP')
    """
    if value == 0:
        return f"0 {unit}"
    steps = [(factor, prefix) for prefix, factor in sorted(_DECIMAL.items(), key=lambda p: -p[1])]
    return _scaled(value, unit, steps, form)


def format_time(seconds: float) -> str:
    """Format a duration in the largest fitting unit.

    >>> format_time(0.0605898), format_time(3.456e-6), format_time(0.0)
    ('60.59 ms', '3.456 us', '0 s')
    """
    if seconds == 0:
        return "0 s"
    steps = [(1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"), (1e-12, "p")]
    return _scaled(seconds, "s", steps)


def format_amount(amount: float) -> str:
    """Format a number before a word, with a decimal prefix.

    >>> format_amount(20130.0), format_amount(7.25)
    ('20.13 k ', '7.25 ')
    """
    text = format_quantity(amount, "")
    return text if text.endswith(" ") else f"{text} "


def format_energy(energy_j: float) -> str:
    """Format an energy.

    >>> format_energy(0.005934), format_energy(80580.0), format_energy(0.0)
    ('5.934 mJ', '80.58 kJ', '0 J')
    """
    if energy_j == 0:
        return "0 J"
    return _scaled(energy_j, "J", [(1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "u")])


def format_bytes_binary(size: float) -> str:
    """Format a size with a binary prefix.

    >>> format_bytes_binary(40 * 2**30)
    '40 GiB'
    """
    steps = [(factor, prefix) for prefix, factor in sorted(_BINARY.items(), key=lambda p: -p[1])]
    return _scaled(size, "B", [*steps, (1.0, "")])
