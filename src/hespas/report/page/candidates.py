"""The candidates of a study as charts need them: what differs between them, and their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from hespas.study.keys import scalar_text
from hespas.study.rows import Row, Status, flat

_PREFIX = "candidate."


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Rows that have figures, best first, with the keys that differ among all rows.

    Keys of meshes and settings are as in ``mesh.fsdp``. ``pinned`` has the others.
    """

    predicted: tuple[Row, ...]
    keys: tuple[str, ...]
    pinned: Mapping[str, str]
    values: Mapping[int, Mapping[str, object]]

    def value(self, row: Row, key: str) -> object:
        """Return the value of a key, None where a candidate has none."""
        return self.values[row.number].get(key)

    def name(self, row: Row) -> str:
        """Return what distinguishes a candidate from the others; axes of size 1 divide nothing."""
        texts = [
            f"{key.rsplit('.', maxsplit=1)[-1]}={_text(value)}" if "." in key else _text(value)
            for key in self.keys
            if (value := self.value(row, key)) is not None and not _divides_nothing(key, value)
        ]
        return ", ".join(texts) or f"candidate {row.number}"

    def anchor(self, row: Row) -> str:
        """Return the name of the place of a candidate in the page."""
        return f"candidate-{row.number}"

    def places(self, rows: Sequence[Row], key: str) -> dict[str, float]:
        """Return where the values of a key stand on an axis from 0 to 1, numbers in order.

        A key with one value stands in the middle.
        """
        found = {self.value(row, key) for row in rows}
        ordered = sorted(found, key=_order)
        if len(ordered) == 1:
            return {f"{ordered[0]}": 0.5}
        return {f"{value}": at / (len(ordered) - 1) for at, value in enumerate(ordered)}


def candidates_of(rows: Sequence[Row]) -> Candidates:
    """Return the candidates of a study's table."""
    values = {row.number: _values(row) for row in rows}
    keys = dict.fromkeys(key for named in values.values() for key in named)
    differs = {key: len({f"{named.get(key)}" for named in values.values()}) > 1 for key in keys}
    first = values[rows[0].number] if rows else dict[str, object]()
    return Candidates(
        predicted=tuple(row for row in rows if row.status in (Status.DONE, Status.SCREENED)),
        keys=tuple(key for key in keys if differs[key]),
        pinned={key: _text(first.get(key)) for key in keys if not differs[key]},
        values=values,
    )


def _values(row: Row) -> Mapping[str, object]:
    return {
        name.removeprefix(_PREFIX): value
        for name, value in flat(row).items()
        if name.startswith(_PREFIX)
    }


def _text(value: object) -> str:
    return scalar_text(value) if isinstance(value, bool) else f"{value}"


def _divides_nothing(key: str, value: object) -> bool:
    return key.startswith("mesh.") and value == 1


def _order(value: object) -> tuple[float, str]:
    """Return what values are sorted by: the number that they are or begin with.

    >>> sorted(["16xH100", "8xH100", "none", 4], key=_order)
    [4, '8xH100', '16xH100', 'none']
    """
    text = f"{value}"
    digits = text[: len(text) - len(text.lstrip("0123456789."))].strip(".")
    return float(digits) if digits else inf, text
