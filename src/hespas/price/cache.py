"""Store estimates between runs, as texts keyed by content."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

import msgspec

from hespas.base.cache import ContentCache, code_digest
from hespas.base.frozen import frozen
from hespas.errors import CacheError, option
from hespas.price.estimate import Estimate

if TYPE_CHECKING:
    import sqlite3

ENTRY_VERSION = 6
"""The version of the text of an estimate, a part of every key: texts of another are not read."""


class Store(Protocol):
    """Stores texts by key.

    Equal keys mean equal texts: a second write changes nothing.
    """

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


@frozen
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


_LOCK_TIMEOUT_S = 60.0
_FILE_NAME = "estimates.sqlite"
_SCHEMA = "CREATE TABLE IF NOT EXISTS estimates (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
_MOST_VARIABLES = 500
_SEAL_DIGITS = 8


@frozen
class DiskStore:
    """Keeps texts in one SQLite file of ``directory``.

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
        import sqlite3  # noqa: PLC0415 - few runs name a place for estimates

        rows: dict[str, str] = {}
        try:
            with closing(self._connect()) as connection:
                connection.execute(_SCHEMA)
                distinct = list(dict.fromkeys(keys))
                for start in range(0, len(distinct), _MOST_VARIABLES):
                    some = distinct[start : start + _MOST_VARIABLES]
                    marks = ",".join("?" * len(some))
                    query = f"SELECT key, value FROM estimates WHERE key IN ({marks})"  # noqa: S608 - only question marks are put in
                    rows.update(connection.execute(query, some).fetchall())
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._error(error) from error
        return {key: self._unsealed(key, sealed) for key, sealed in rows.items()}

    def write(self, entries: Mapping[str, str]) -> None:
        """Store all entries in one transaction."""
        if not entries:
            return
        import sqlite3  # noqa: PLC0415 - as above

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
        import sqlite3  # noqa: PLC0415 - as above

        return sqlite3.connect(self.path, timeout=_LOCK_TIMEOUT_S)

    def _unsealed(self, key: str, sealed: object) -> str:
        """Check a text's checksum, and return the text."""
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


@frozen
class KeptStore:
    """Stores the texts of a program's regions in one file.

    What stands under the keys of all regions is one file, since nothing reads a part of it. The
    code that makes prices is a part of its name, so that another version makes them anew. A file
    that is damaged counts as missing. Raises `CacheError` for one that is no file, or may not be
    read.
    """

    directory: Path

    @property
    def location(self) -> str:
        """Where it is, for messages."""
        return str(self.directory)

    def read(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the texts of all keys, or none."""
        return self._cache.value(_name(keys), dict[str, str]) or {}

    def write(self, entries: Mapping[str, str]) -> None:
        """Store entries, found only if exactly these are requested together.

        Where none can be written, prices are made every time.
        """
        if entries:
            with suppress(CacheError):
                self._cache.keep(_name(entries), dict(entries))

    @property
    def _cache(self) -> ContentCache:
        return ContentCache(
            directory=self.directory,
            suffix=".prices",
            mark=b"hespas prices 1\n",
            content_name="prices",
            limit_bytes=2**28,
        )


_MAKERS = ("configs/measured", "hardware", "lower", "price", "program", "work")
"""The folders whose tables and code decide what a region costs."""


def _name(keys: Iterable[str]) -> str:
    listed = "\n".join((code_digest(*_MAKERS), *sorted(set(keys))))
    return sha256(listed.encode()).hexdigest()


def encode_estimate(estimate: Estimate) -> str:
    """Return an estimate as JSON text; floats keep every bit."""
    return msgspec.json.encode(estimate).decode()


def decode_estimate(text: str, *, location: str = "") -> Estimate:
    """Return the estimate that `encode_estimate` wrote; `CacheError` for another type.

    >>> from hespas.price.estimate import OpEstimate
    >>> estimate = Estimate(per_op={"stablehlo.add": OpEstimate(count=1, time_s=0.1)})
    >>> decode_estimate(encode_estimate(estimate)) == estimate
    True
    """
    try:
        return msgspec.json.decode(text, type=Estimate)
    except msgspec.MsgspecError as error:
        raise _no_estimate(location) from error


def _no_estimate(location: str) -> CacheError:
    return CacheError(
        "the estimator cache holds an entry that is no estimate",
        location=location,
        hint=f"delete the cache, or run with {option('disable_cache')}",
    )
