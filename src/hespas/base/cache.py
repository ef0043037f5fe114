"""A directory of files under keys of their content's causes."""

from __future__ import annotations

import logging
import os
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import msgspec

from hespas.base.files import write_file
from hespas.base.frozen import frozen
from hespas.errors import CacheError, OutputError, option

T = TypeVar("T")
log = logging.getLogger("hespas")
_DIGEST_BYTES = 32
_UNSEEN = 1 / 64
"""The mean share of the limit that is written between two scans of all files."""
_USED: ContextVar[set[Path] | None] = ContextVar("used", default=None)


@contextmanager
def used_files() -> Generator[set[Path]]:
    """Yield the cache files that this thread then uses."""
    used = set[Path]()
    token = _USED.set(used)
    try:
        yield used
    finally:
        _USED.reset(token)


def use_again(paths: Iterable[Path]) -> None:
    """Count cache files as used whose content is kept in memory."""
    for path in paths:
        _note_use(path)


def _note_use(path: Path) -> None:
    used = _USED.get()
    if used is not None:
        used.add(path)


@cache
def code_digest(*folders: str) -> str:
    """Return a digest of code and tables in hespas' folders.

    It is a part of a key where these decide the content. Raises `FileNotFoundError` for a folder
    that hespas lacks.
    """
    digest = sha256()
    home = Path(__file__).resolve().parents[1]
    for folder in folders:
        for path in sorted(path for path, *_ in _files_in(str(home / folder))):
            digest.update(Path(path).read_bytes())
    return digest.hexdigest()


@cache
def installed_state() -> str:
    """Return a digest of hespas' files and installed packages.

    Of files it has sizes and times of modification, of packages the versions: contents would take
    longer to read than an answer to look up.
    """
    home = str(Path(__file__).resolve().parents[1])
    states = [f"{path[len(home) :]} {size} {time_ns}" for path, size, time_ns in _files_in(home)]
    for directory in sys.path:
        with suppress(OSError), os.scandir(directory) as entries:
            states += [entry.name for entry in entries if entry.name.endswith(".dist-info")]
    return sha256("\n".join(sorted(states)).encode()).hexdigest()


def _files_in(directory: str) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and modification time of a directory's files."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    yield from _files_in(entry.path)
            else:
                stat = entry.stat()
                yield entry.path, stat.st_size, stat.st_mtime_ns


@frozen
class ContentCache:
    """A directory with a compressed file for each key.

    ``suffix`` ends the files' names, ``mark`` begins their contents, and ``content_name`` names
    them in messages. Files are written atomically; a damaged one counts as missing, with a warning.
    If all files with this suffix, and with those of ``also``, together exceed ``limit_bytes`` when
    a write looks at them, the least recently used ones are removed. Of an ``optional`` cache that
    cannot be used all contents are missing, and nothing is stored; another one raises `CacheError`.
    """

    directory: Path
    suffix: str
    mark: bytes
    content_name: str
    also: tuple[str, ...] = ()
    limit_bytes: int = 2 * 2**30
    optional: bool = False

    def read(self, key: str) -> bytes | None:
        """Return a stored content, None if missing or damaged."""
        path = self.path_of(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            if self.optional:
                return None
            raise self._unusable_error(error) from error
        result = self._unpacked(content)
        if result is None:
            self._warn_of_damage(key)
            return None
        with suppress(OSError):
            path.touch()
        _note_use(path)
        return result

    def value(self, key: str, kind: type[T]) -> T | None:
        """Return a stored value, None if missing or damaged."""
        content = self.read(key)
        try:
            return None if content is None else msgspec.msgpack.decode(content, type=kind)
        except msgspec.DecodeError:
            self._warn_of_damage(key)
            return None

    def keep(self, key: str, value: object) -> None:
        """Store a value as `value` returns it; `CacheError` as `write`."""
        self.write(key, msgspec.msgpack.encode(value))

    def _warn_of_damage(self, key: str) -> None:
        log.warning("%s: the cached program is damaged; it is made again", self.path_of(key))

    def write(self, key: str, content: bytes) -> None:
        """Store a content; `CacheError` if the directory cannot be written."""
        packed = zlib.compress(content, level=3)
        self._write(key, self.mark + sha256(packed).digest() + packed)
        _note_use(self.path_of(key))

    def adopt(self, key: str, file: bytes) -> None:
        """Store another machine's cache file, unless damaged or here already.

        Raises `CacheError` if the directory cannot be written.
        """
        if self._unpacked(file) is not None and not self.path_of(key).exists():
            self._write(key, file)

    def _write(self, key: str, file: bytes) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_file(self.path_of(key), file)
            if self._is_crowded(key, len(file)):
                self._evict()
        except (OSError, OutputError) as error:
            if not self.optional:
                raise self._unusable_error(error) from error

    def check(self) -> None:
        """Raise `CacheError` if the directory cannot be made or written."""
        above = next(path for path in (self.directory, *self.directory.parents) if path.exists())
        if not above.is_dir():
            raise self._unusable_error(NotADirectoryError(20, "there is a file in its place"))
        if not os.access(above, os.W_OK | os.X_OK):
            raise self._unusable_error(PermissionError(13, "Permission denied"))

    def path_of(self, key: str) -> Path:
        """Return the file of a key."""
        return self.directory / f"{key}{self.suffix}"

    def _unpacked(self, content: bytes) -> bytes | None:
        start = len(self.mark) + _DIGEST_BYTES
        digest, packed = content[len(self.mark) : start], content[start:]
        if not content.startswith(self.mark) or sha256(packed).digest() != digest:
            return None
        try:
            return zlib.decompress(packed)
        except zlib.error:
            return None

    def _is_crowded(self, key: str, size_bytes: int) -> bool:
        """Return whether a write scans all files, by its size.

        The odds are proportional to it. A directory of thousands of files takes longer to list than
        an answer to write.
        """
        return zlib.crc32(key.encode()) < 2**32 * size_bytes / (self.limit_bytes * _UNSEEN)

    def _evict(self) -> None:
        files = {
            path: path.stat()
            for path in self.directory.iterdir()
            if path.suffix in {self.suffix, *self.also}
        }
        size = sum(stat.st_size for stat in files.values())
        for path in sorted(files, key=lambda path: files[path].st_mtime_ns):
            if size <= self.limit_bytes:
                return
            size -= files[path].st_size
            path.unlink(missing_ok=True)

    def _unusable_error(self, error: Exception) -> CacheError:
        why = error.strerror if isinstance(error, OSError) else error
        return CacheError(
            f"the cache of {self.content_name} cannot be used: {why}",
            location=str(self.directory),
            hint=f"give a writable {option('cache_dir')}, or {option('disable_cache')}",
        )


def made_once(cache: ContentCache | None, key: str, kind: type[T], make: Callable[[], T]) -> T:
    """Return a stored value, or make and store it; without a cache make it."""
    if cache is None:
        return make()
    value = cache.value(key, kind)
    if value is None:
        value = make()
        cache.keep(key, value)
    return value
