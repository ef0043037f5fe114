"""Where estimates are kept between runs, keyed by content, and the text they are kept as."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import msgspec

from hespas.base.cache import ContentCache, code_digest
from hespas.errors import CacheError, option
from hespas.price.estimate import Bound, Estimate, OpEstimate, TypeTotals
from hespas.price.tables import TABLES_DIRECTORY

_MARK = b"hespas prices 1\n"
_SUFFIX = ".prices"
_MOST_BYTES = 2**28
_MAKERS = ("hardware", "price", "program", "work")
"""The folders whose code decides what a region costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptStore:
    """Keeps the texts of a program's regions as one file of ``directory``.

    A file that is damaged counts as missing. Raises `hespas.errors.CacheError` for one that is no
    file, or may not be read.
    """

    directory: Path

    @property
    def location(self) -> str:
        """Where it is, for messages."""
        return str(self.directory)

    def read(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the texts of all keys, or none."""
        name = _name(keys)
        content = self._cache.read(name)
        return {} if content is None else msgspec.msgpack.decode(content, type=dict[str, str])

    def write(self, entries: Mapping[str, str]) -> None:
        """Store entries, which are found where all of them are asked for, and no other.

        Where none can be written, prices are made every time.
        """
        if entries:
            with suppress(CacheError):
                self._cache.write(_name(entries), msgspec.msgpack.encode(dict(entries)))

    @property
    def _cache(self) -> ContentCache:
        return ContentCache(
            directory=self.directory,
            suffix=_SUFFIX,
            mark=_MARK,
            what="prices",
            limit_bytes=_MOST_BYTES,
        )


def _name(keys: Iterable[str]) -> str:
    listed = "\n".join((code_digest(*_MAKERS), _tables_digest(), *sorted(set(keys))))
    return sha256(listed.encode()).hexdigest()


@cache
def _tables_digest() -> str:
    digest = sha256()
    for file in sorted(TABLES_DIRECTORY.iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()


_LOCK_TIMEOUT_S = 60.0
_FILE_NAME = "estimates.sqlite"
_SCHEMA = "CREATE TABLE IF NOT EXISTS estimates (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
_MOST_VARIABLES = 500
_SEAL_DIGITS = 8

ENTRY_VERSION = 5
"""The version of the text of an estimate, a part of every key: texts of another are not read."""


class Store(Protocol):
    """A place for texts under keys. Equal keys mean equal texts: a second write changes nothing."""

    @property
    def location(self) -> str:
        """Where it is, for messages."""
        ...

    def read(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the texts of those keys that are there."""
        ...

    def write(self, entries: Mapping[str, str]) -> None:
        """Store all entries or, where that fails, none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStore:
    """Keeps texts as long as the process runs."""

    entries: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def location(self) -> str:
        """Where it is, for messages."""
        return "memory"

    def read(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the texts of those keys that are there."""
        return {key: self.entries[key] for key in keys if key in self.entries}

    def write(self, entries: Mapping[str, str]) -> None:
        """Store the entries."""
        self.entries.update(entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskStore:
    """Keeps texts in one SQLite file of ``directory``, made on the first write.

    SQLite's transactions make it safe with several processes, and with one that is
    interrupted. Raises `CacheError` for a file that is damaged or can't be used.
    """

    directory: Path

    @property
    def path(self) -> Path:
        """The file."""
        return self.directory / _FILE_NAME

    @property
    def location(self) -> str:
        """Where it is, for messages."""
        return str(self.path)

    def read(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the texts of those keys that are there."""
        if not self.path.exists():
            return {}
        distinct = list(dict.fromkeys(keys))
        found: dict[str, str] = {}
        try:
            with closing(self._connect()) as connection:
                connection.execute(_SCHEMA)
                for at in range(0, len(distinct), _MOST_VARIABLES):
                    some = distinct[at : at + _MOST_VARIABLES]
                    marks = ",".join("?" * len(some))
                    query = f"SELECT key, value FROM estimates WHERE key IN ({marks})"  # noqa: S608 - only question marks are put in
                    found.update(connection.execute(query, some).fetchall())
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._error(error) from error
        return {key: self._unsealed(key, sealed) for key, sealed in found.items()}

    def write(self, entries: Mapping[str, str]) -> None:
        """Store all entries in one transaction."""
        if not entries:
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with closing(self._connect()) as connection, connection:
                connection.execute(_SCHEMA)
                connection.executemany(
                    "INSERT OR IGNORE INTO estimates VALUES (?, ?)",
                    [(key, _seal(key, text) + text) for key, text in sorted(entries.items())],
                )
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._error(error) from error
        except OSError as error:
            raise CacheError(
                f"the estimator cache cannot be written: {error.strerror}",
                location=str(self.directory),
                hint=f"give a writable {option('cache_dir')}, or {option('disable_cache')}",
            ) from error

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=_LOCK_TIMEOUT_S)

    def _unsealed(self, key: str, sealed: object) -> str:
        """Return a text without its checksum, which a flipped bit in the file breaks."""
        text = sealed[_SEAL_DIGITS:] if isinstance(sealed, str) else ""
        if sealed != _seal(key, text) + text:
            raise _no_estimate(self.location)
        return text

    def _error(self, error: sqlite3.Error | UnicodeDecodeError) -> CacheError:
        return CacheError(
            f"the estimator cache is damaged or unusable: {error}",
            location=str(self.path),
            hint=f"delete the file, or run with {option('disable_cache')}",
        )


def _seal(key: str, text: str) -> str:
    return f"{crc32(f'{key} {text}'.encode()):0{_SEAL_DIGITS}x}"


def encode_estimate(estimate: Estimate) -> str:
    """Return an estimate as JSON text; floats keep every bit."""
    per_op = {kind: _encode_op(op) for kind, op in estimate.per_op.items()}
    listed = {"notes": estimate.notes, "warnings": estimate.warnings}
    return json.dumps({"per_op": per_op, **listed, "noted_s": dict(estimate.noted_s)})


def decode_estimate(text: str, *, location: str = "") -> Estimate:
    """Return the estimate that `encode_estimate` wrote; `CacheError` for anything else.

    >>> estimate = Estimate(per_op={"stablehlo.add": OpEstimate(count=1, time_s=0.1)})
    >>> decode_estimate(encode_estimate(estimate)) == estimate
    True
    """
    try:
        data = json.loads(text)
        return Estimate(
            per_op={_text(kind): _decode_op(op) for kind, op in data["per_op"].items()},
            notes=tuple(map(_text, data["notes"])),
            warnings=tuple(map(_text, data["warnings"])),
            noted_s={_text(note): _amount(time_s) for note, time_s in data["noted_s"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_estimate(location) from error


def _no_estimate(location: str) -> CacheError:
    return CacheError(
        "the estimator cache holds an entry that is no estimate",
        location=location,
        hint=f"delete the cache, or run with {option('disable_cache')}",
    )


def _encode_op(op: OpEstimate) -> dict[str, object]:
    return {
        "count": op.count,
        "time_s": op.time_s,
        "bytes_moved": op.bytes_moved,
        "memory_time_at_peak_s": op.memory_time_at_peak_s,
        "energy_j": op.energy_j,
        "duration_ps": op.duration_ps,
        "per_type": {
            key: [totals.flops, totals.time_at_peak_s] for key, totals in op.per_type.items()
        },
        "bound": [op.bound.compute_s, op.bound.memory_s, op.bound.launch_s],
    }


# Any: JSON just read; a wrong shape raises and is reported as a damaged cache.
def _decode_op(data: Any) -> OpEstimate:
    energy_j = data["energy_j"]
    compute_s, memory_s, launch_s = map(_amount, data["bound"])
    return OpEstimate(
        count=_amount(data["count"]),
        time_s=_amount(data["time_s"]),
        bytes_moved=_amount(data["bytes_moved"]),
        memory_time_at_peak_s=_amount(data["memory_time_at_peak_s"]),
        energy_j=None if energy_j is None else _amount(energy_j),
        duration_ps=_whole(data["duration_ps"]),
        per_type={
            _text(key): TypeTotals(flops=_amount(flops), time_at_peak_s=_amount(time_s))
            for key, (flops, time_s) in data["per_type"].items()
        },
        bound=Bound(compute_s=compute_s, memory_s=memory_s, launch_s=launch_s),
    )


def _amount(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    if not (isfinite(value) and value >= 0):
        raise ValueError(f"{value} is no amount")
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    if value < 0:
        raise ValueError(f"{value} is no amount")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
