"""A study's results in one SQLite file.

Every evaluation is a transaction, with the digest of its inputs, the versions of packages and its
time. The rows of a killed process are complete; the next run evaluates the rest. A directory
belongs to one run at a time: the operating system ends its lock with the process.

Outcomes are cached beyond their study, so that another study does not repeat them: in a file under
the key of the evaluation, which is made of everything that decides its outcome, and of the code of
hespas. Only outcomes of zoo models are cached: of functions and files only names are known, and
measured times differ every time.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sqlite3
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from hespas.base.cache import ContentCache, installed_state
from hespas.base.frozen import frozen
from hespas.base.home import cache_home
from hespas.errors import OutputError
from hespas.study.entry import Entry
from hespas.study.executor import Ending, Outcome, Task
from hespas.study.keys import WORKLOAD, canonical
from hespas.study.rows import Row, Status

DATABASE = "study.sqlite"
_LOCK = "study.lock"
_FORMAT = "1"
_HEADER_BYTES = 100
"""The size of a SQLite file's header: https://www.sqlite.org/fileformat.html."""
_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS candidates (
    number INTEGER PRIMARY KEY, candidate TEXT NOT NULL, status TEXT NOT NULL,
    reason TEXT NOT NULL, fidelity TEXT NOT NULL, figures TEXT NOT NULL, evaluation TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS evaluations (
    key TEXT PRIMARY KEY, phase TEXT NOT NULL, outcome TEXT NOT NULL, report BLOB,
    versions TEXT NOT NULL, elapsed_s REAL NOT NULL, cpu_s REAL NOT NULL,
    peak_memory_bytes INTEGER NOT NULL, finished TEXT NOT NULL
) STRICT;
"""
_KEEP = """
INSERT OR REPLACE INTO evaluations
VALUES (?, ?, ?, ?, ?, ?, ?, ?, strftime('%Y-%m-%dT%H:%M:%fZ'))
"""
Kind = TypeVar("Kind")
_Cells = tuple[int, str, Status, str, str, str, str]
"""A row of the candidates, column by column."""


@frozen
class Counts:
    """The number of evaluations, and the time they took."""

    evaluations: int
    cpu_s: float
    elapsed_s: float


class Store:
    """A study's results; see `opened` and `reading`."""

    def __init__(self, connection: sqlite3.Connection, directory: Path) -> None:
        self._connection = connection
        self.directory = directory

    # The study itself.

    def study(self) -> dict[str, object] | None:
        """Return the study of the directory, as `Study.to_dict` wrote it."""
        text = self._cell("SELECT value FROM about WHERE name = 'study'")
        return None if text is None else self._decode(text, dict[str, object])

    def check_study(self, study: dict[str, object]) -> None:
        """Raise `OutputError` if the directory is of another study."""
        if self.study() not in (None, study):
            raise OutputError(
                "holds the results of another study",
                location=str(self.directory),
                hint="choose another directory",
            )

    def keep_study(self, study: dict[str, object], versions: dict[str, str]) -> None:
        """Record the study; refuse the directory of another."""
        self.check_study(study)
        about = {"format": _FORMAT, "study": json.dumps(study), "versions": json.dumps(versions)}
        with self._writing():
            self._connection.executemany(
                "INSERT OR REPLACE INTO about (name, value) VALUES (?, ?)", about.items()
            )

    # Evaluations.

    def outcome(self, key: str) -> Outcome | None:
        """Return the outcome of a completed evaluation, if any."""
        text = self._cell("SELECT outcome FROM evaluations WHERE key = ?", key)
        outcome = None if text is None else self._decode(text, Outcome)
        return None if outcome is None or outcome.ending is Ending.EXHAUSTED else outcome

    def report(self, key: str) -> dict[str, object] | None:
        """Return an evaluation's report, as ``hespas run --json``."""
        text = self._cell("SELECT report FROM evaluations WHERE key = ?", key)
        return self._decode(text, dict[str, object]) if text else None

    def _cell(self, query: str, *values: str) -> str | bytes | None:
        row = self._connection.execute(query, values).fetchone()
        return None if row is None else row[0]

    def _decode(self, text: str | bytes, kind: type[Kind]) -> Kind:
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise _damaged(self.directory) from error

    def keep_outcome(
        self, task: Task, outcome: Outcome, versions: dict[str, str], rows: Iterable[Row]
    ) -> None:
        """Store an evaluation and its rows, all or none."""
        stored = msgspec.structs.replace(
            outcome, report="", elapsed_s=0.0, cpu_s=0.0, peak_memory_bytes=0
        )
        with self._writing():
            self._connection.execute(
                _KEEP,
                (
                    task.key,
                    task.phase.value,
                    msgspec.json.encode(stored).decode(),
                    outcome.report.encode() or None,
                    json.dumps(versions),
                    outcome.elapsed_s,
                    outcome.cpu_s,
                    outcome.peak_memory_bytes,
                ),
            )
            self._write_rows(rows)

    def counts(self) -> Counts:
        """Return the number of evaluations and the time they took."""
        evaluations, cpu_s, elapsed_s = self._connection.execute(
            "SELECT count(*), total(cpu_s), total(elapsed_s) FROM evaluations"
        ).fetchone()
        return Counts(evaluations=evaluations, cpu_s=cpu_s, elapsed_s=elapsed_s)

    # Rows.

    def keep_rows(self, rows: Iterable[Row]) -> None:
        """Store rows, all or none of them."""
        with self._writing():
            self._write_rows(rows)

    def _write_rows(self, rows: Iterable[Row]) -> None:
        self._connection.executemany(
            "INSERT OR REPLACE INTO candidates VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    row.number,
                    json.dumps(row.candidate),
                    row.status.value,
                    row.reason,
                    row.fidelity,
                    json.dumps(dict(row.figures)),
                    row.evaluation,
                )
                for row in rows
            ],
        )

    def rows(self) -> list[Row]:
        """Return all rows, in the order of the candidates."""
        records = self._connection.execute("SELECT * FROM candidates ORDER BY number")
        return [self._row(*cells) for cells in records]

    def _row(self, *cells: object) -> Row:
        try:
            columns = msgspec.convert(cells, type=_Cells)
        except msgspec.MsgspecError as error:
            raise _damaged(self.directory) from error
        number, candidate, status, reason, fidelity, figures, evaluation = columns
        return Row(
            number=number,
            candidate=self._decode(candidate, dict[str, object]),
            status=status,
            reason=reason,
            fidelity=fidelity,
            figures=self._decode(figures, dict[str, float | None]),
            evaluation=evaluation,
        )

    @contextmanager
    def _writing(self) -> Generator[None]:
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
        except sqlite3.Error as error:
            raise _unusable(self.directory, error) from error


def _damaged(directory: Path) -> OutputError:
    return OutputError(
        "the study's results are damaged",
        location=str(directory / DATABASE),
        hint="take a copy of the file, or run the study again in another directory",
    )


def _check_size(path: Path) -> None:
    """Refuse a truncated database, which SQLite reads in part.

    The header counts its pages. A log may have missing ones; a run that just began has an empty
    file.
    """
    logs = [path.with_name(f"{path.name}-{kind}") for kind in ("wal", "journal")]
    try:
        if any(log.exists() and log.stat().st_size for log in logs):
            return
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
        size_bytes = path.stat().st_size
    except FileNotFoundError:
        return
    except OSError as error:
        raise OutputError(f"cannot be read: {error.strerror}", location=str(path)) from error
    page_bytes = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    if not size_bytes:
        return
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    if len(header) < _HEADER_BYTES or size_bytes < pages * page_bytes:
        raise _damaged(path.parent)


def _unusable(directory: Path, error: sqlite3.Error) -> OutputError:
    return OutputError(
        f"the study's results cannot be kept: {error}",
        location=str(directory / DATABASE),
        hint="what is done is kept; make room, and run the study again to go on",
    )


@contextmanager
def opened(directory: Path) -> Generator[Store]:
    """Open a study's directory to write, made if missing.

    Raises `OutputError` if it is in use.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / _LOCK).open("a+")
    except OSError as error:
        raise OutputError(
            f"cannot be written: {error.strerror}", location=str(directory), hint="choose another"
        ) from error
    with lock:
        _take_lock(lock, directory)
        _check_size(directory / DATABASE)
        with _connect(f"file:{_quoted(directory / DATABASE)}", directory) as connection:
            connection.executescript(
                f"PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; {_TABLES}"
            )
            yield Store(connection, directory)


def _take_lock(lock: IO[str], directory: Path) -> None:
    """Take the process's lock, and write its owner."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        owner = lock.read().strip()
        raise OutputError(
            "another run of this study is under way" + (f" ({owner})" if owner else ""),
            location=str(directory),
            hint="wait for it, or see hespas study status",
        ) from error
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {os.uname().nodename}\n")
    lock.flush()


@contextmanager
def reading(directory: Path) -> Generator[Store]:
    """Open a study's directory to read, also while it runs.

    Raises `OutputError` if there is none.
    """
    path = directory / DATABASE
    if not path.is_file():
        raise OutputError(
            "holds no study", location=str(directory), hint="make one: hespas study run FILE -o DIR"
        )
    if not is_running(directory):
        _check_size(path)
    with _connect(f"file:{_quoted(path)}?mode=rw", directory) as connection:
        yield Store(connection, directory)


def is_running(directory: Path) -> bool:
    """Return whether a run holds a study's directory."""
    try:
        with (directory / _LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


@contextmanager
def _connect(uri: str, directory: Path) -> Generator[sqlite3.Connection]:
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None)
    except sqlite3.Error as error:
        raise _unusable(directory, error) from error
    try:
        yield connection
    except UnicodeDecodeError as error:
        raise _damaged(directory) from error
    except sqlite3.Error as error:
        raise _unusable(directory, error) from error
    finally:
        connection.close()


MOST_CARRIED_BYTES = 64 * 2**20
_CACHE_FILE = re.compile(
    r"(?P<folder>compiled|exported|prices)/"
    r"(?P<key>[0-9a-f]{64})(?P<suffix>\.(?:compiled|exported|partitioned|prices))"
)


def names_of(files: Iterable[Path]) -> list[str]:
    """Return the sorted names of files in the caches.

    >>> names_of([cache_home() / "compiled" / f"{'0' * 64}.compiled", Path("/other")])[0][:10]
    'compiled/0'
    """
    home = cache_home()
    names = (str(file.relative_to(home)) for file in files if file.is_relative_to(home))
    return sorted(name for name in names if _CACHE_FILE.fullmatch(name))


def contents_of(names: Iterable[str], *, most_bytes: int = MOST_CARRIED_BYTES) -> dict[str, bytes]:
    """Return the contents of cached files.

    Missing files, and those beyond ``most_bytes`` in all, are left out.
    """
    contents: dict[str, bytes] = {}
    free_bytes = most_bytes
    for name in names:
        with suppress(OSError):
            content = (cache_home() / name).read_bytes()
            if len(content) <= free_bytes:
                contents[name] = content
                free_bytes -= len(content)
    return contents


def keep_files(contents: Mapping[str, bytes]) -> None:
    """Put valid new files into the caches of their names.

    The names decide where they go.
    """
    for name, content in contents.items():
        match = _CACHE_FILE.fullmatch(name)
        if match is None:
            continue
        mark, line_end, _ = content.partition(b"\n")
        cache = ContentCache(
            directory=cache_home() / match["folder"],
            suffix=match["suffix"],
            mark=mark + line_end,
            content_name="programs of studies",
            optional=True,
        )
        cache.adopt(match["key"], content)


_MOST_BYTES = 2**28


@frozen
class OutcomeCache:
    """A cache of outcomes of any study in a directory."""

    directory: Path

    def read(self, entry: Entry, task: Task) -> Outcome | None:
        """Return the outcome of an evaluation, if it is cached."""
        if not _is_decided(entry):
            return None
        return self._cache.value(_key(task), Outcome)

    def write(self, entry: Entry, task: Task, outcome: Outcome) -> None:
        """Store an outcome that is done."""
        if outcome.ending is not Ending.DONE or not _is_decided(entry):
            return
        stored = msgspec.structs.replace(outcome, elapsed_s=0.0, cpu_s=0.0, peak_memory_bytes=0)
        self._cache.keep(_key(task), stored)

    @property
    def _cache(self) -> ContentCache:
        return ContentCache(
            directory=self.directory,
            suffix=".outcome",
            mark=b"hespas outcomes 1\n",
            content_name="predictions of studies",
            limit_bytes=_MOST_BYTES,
            optional=True,
        )


def _is_decided(entry: Entry) -> bool:
    """Return whether an evaluation's key has all its inputs."""
    return entry.is_model and not entry.runs_operations and not _names_files(entry.candidate.values)


def _names_files(values: Mapping[str, object]) -> bool:
    other_values = (value for key, value in values.items() if key != WORKLOAD)
    try:
        return any(isinstance(value, str) and Path(value).exists() for value in other_values)
    except OSError:  # a text that is too long for a name
        return False


def _key(task: Task) -> str:
    return sha256(canonical((task.key, task.with_report, installed_state()))).hexdigest()
