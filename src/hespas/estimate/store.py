"""Where estimates are kept between runs, keyed by content."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hespas.errors import CacheError

_LOCK_TIMEOUT_S = 60.0
_FILE_NAME = "estimates.sqlite"
_SCHEMA = "CREATE TABLE IF NOT EXISTS estimates (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
_MOST_VARIABLES = 500


class Store(Protocol):
    """A place for texts under keys. Equal keys mean equal texts: a second write changes nothing."""

    @property
    def location(self) -> str:
        """Where it is, for messages."""
        ...

    def read(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the texts of those keys that are known."""
        ...

    def write(self, entries: Mapping[str, str]) -> None:
        """Keep all entries or, where that fails, none."""
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
        """Return the texts of those keys that are known."""
        return {key: self.entries[key] for key in keys if key in self.entries}

    def write(self, entries: Mapping[str, str]) -> None:
        """Keep the entries."""
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
        """Return the texts of those keys that are known."""
        if not self.path.exists():
            return {}
        wanted = list(dict.fromkeys(keys))
        found: dict[str, str] = {}
        try:
            with closing(self._connect()) as connection:
                connection.execute(_SCHEMA)
                for at in range(0, len(wanted), _MOST_VARIABLES):
                    some = wanted[at : at + _MOST_VARIABLES]
                    marks = ",".join("?" * len(some))
                    query = f"SELECT key, value FROM estimates WHERE key IN ({marks})"  # noqa: S608 - only question marks are put in
                    found.update(connection.execute(query, some).fetchall())
        except sqlite3.Error as error:
            raise self._error(error) from error
        return found

    def write(self, entries: Mapping[str, str]) -> None:
        """Keep all entries in one transaction."""
        if not entries:
            return
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with closing(self._connect()) as connection, connection:
                connection.execute(_SCHEMA)
                connection.executemany(
                    "INSERT OR IGNORE INTO estimates VALUES (?, ?)", sorted(entries.items())
                )
        except sqlite3.Error as error:
            raise self._error(error) from error
        except OSError as error:
            raise CacheError(
                f"the estimator cache cannot be written: {error.strerror}",
                location=str(self.directory),
                hint="give a writable --cache-dir, or --disable-cache",
            ) from error

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=_LOCK_TIMEOUT_S)

    def _error(self, error: sqlite3.Error) -> CacheError:
        return CacheError(
            f"the estimator cache is damaged or unusable: {error}",
            location=str(self.path),
            hint="delete the file, or run with --disable-cache",
        )
