"""What devices cost by the hour: user data, each price with its source.

hespas has no prices of its own. A file is YAML, a list of ``part``, ``usd_per_device_hour`` and
``source``, or CSV with these columns.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from hespas.base.config_files import read_text, read_yaml
from hespas.base.decode import decode
from hespas.base.figures import Positive, Text
from hespas.errors import ConfigError
from hespas.hardware.presets import node_name

_COLUMNS = ("part", "usd_per_device_hour", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one device of a part costs for an hour, and who says so."""

    part: Text
    usd_per_device_hour: Positive
    source: Text

    def to_dict(self) -> dict[str, object]:
        """Return it as a file writes it."""
        return {name: getattr(self, name) for name in _COLUMNS}


def read_prices(
    given: object, *, location: str = "", home: Path | None = None
) -> tuple[Price, ...]:
    """Read a list of prices, or the file that a text names; `ConfigError` for what is none.

    >>> read_prices([{"part": "H100_80GB", "usd_per_device_hour": 2.0, "source": "our contract"}])
    (Price(part='H100_80GB', usd_per_device_hour=2.0, source='our contract'),)
    """
    if isinstance(given, str):
        path = (home or Path()) / given
        location = str(path)
        given = _read_csv(path) if path.suffix == ".csv" else read_yaml(path)
    prices = decode(given, list[Price], location=location, at="$.prices")
    parts = [node_name(price.part) for price in prices]
    twice = next((part for part in parts if parts.count(part) > 1), None)
    if twice is not None:
        raise ConfigError(f"there are two prices of {twice}", location=location, hint="keep one")
    return tuple(
        Price(part=part, usd_per_device_hour=each.usd_per_device_hour, source=each.source)
        for part, each in zip(parts, prices, strict=True)
    )


def _read_csv(path: Path) -> list[dict[str, object]]:
    try:
        rows = list(csv.DictReader(StringIO(read_text(path))))
    except csv.Error as error:
        raise ConfigError(f"is no CSV: {error}", location=str(path)) from None
    found: list[dict[str, object]] = []
    for number, row in enumerate(rows, start=2):
        price = row.get("usd_per_device_hour") or ""
        try:
            value = float(price)
        except ValueError:
            raise ConfigError(
                f"usd_per_device_hour is {price!r}",
                location=f"{path}:{number}",
                hint="give dollars",
            ) from None
        known = {name: row[name] for name in row if name is not None}
        found.append({**known, "usd_per_device_hour": value})
    return found


def price_of(part: str | None, prices: Iterable[Price]) -> float | None:
    """Return the dollars of a device and hour; None where no price is given."""
    return next((each.usd_per_device_hour for each in prices if each.part == part), None)
