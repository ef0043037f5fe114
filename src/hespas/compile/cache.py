"""A cache of compiled programs, keyed by everything that decides a result."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import msgspec

from hespas.compile.compiled import CompiledProgram
from hespas.compile.job import Job
from hespas.errors import CacheError, OutputError, option
from hespas.files import cache_home, write_file

log = logging.getLogger("hespas")
_MARK = b"hespas compiled 3\n"
_DIGEST_BYTES = 32
_SUFFIX = ".compiled"
_KERNEL_SUFFIX = ".kernel"


def default_directory() -> Path:
    """Return the directory for compiled programs in the user's cache directory."""
    return cache_home() / "compiled"


class _Key(msgspec.Struct, frozen=True, kw_only=True):
    """What decides a result: not the names of the program and of the target."""

    mark: bytes
    source: bytes
    request: bytes
    flags: list[tuple[str, str]]
    versions: list[tuple[str, str]]


def job_key(job: Job) -> str:
    """Return the key of a job: equal only if everything that decides the result is equal."""
    key = _Key(
        mark=_MARK,
        source=sha256(job.source).digest(),
        request=msgspec.msgpack.encode(msgspec.structs.replace(job.request, name="")),
        flags=_pairs(job.flags),
        versions=_pairs(job.versions),
    )
    return sha256(msgspec.msgpack.encode(key)).hexdigest()


def _pairs(mapping: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(mapping.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCache:
    """A directory with a compressed file for each result, and for the analysis of its kernels.

    Files are written atomically. A damaged one is compiled again, with a warning. If all files
    together exceed ``limit_bytes``, the least recently used ones are removed.
    """

    directory: Path
    limit_bytes: int = 2 * 2**30

    def read(self, job: Job) -> CompiledProgram | None:
        """Return the result of a job, None if it is missing or damaged."""
        path = self.path_of(job)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(self.directory, error) from error
        result = _decoded(content)
        if result is None:
            log.warning("%s: the cached program is damaged; it is compiled again", path)
            return None
        with suppress(OSError):
            path.touch()
        return replace(result, name=job.name, target=job.target.name)

    def write(self, job: Job, result: CompiledProgram) -> None:
        """Store a result; `CacheError` if the directory cannot be written."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_file(self.path_of(job), _encoded(result))
            self._evict()
        except (OSError, OutputError) as error:
            raise _unusable(self.directory, error) from error

    def _evict(self) -> None:
        files = {
            path: path.stat()
            for path in self.directory.iterdir()
            if path.suffix in {_SUFFIX, _KERNEL_SUFFIX}
        }
        size = sum(stat.st_size for stat in files.values())
        for path in sorted(files, key=lambda path: files[path].st_mtime_ns):
            if size <= self.limit_bytes:
                return
            size -= files[path].st_size
            path.unlink(missing_ok=True)

    def path_of(self, job: Job) -> Path:
        """Return the file of a job's result."""
        return self.directory / f"{job_key(job)}{_SUFFIX}"


def _encoded(result: CompiledProgram) -> bytes:
    packed = zlib.compress(msgspec.msgpack.encode(result), level=6)
    return _MARK + sha256(packed).digest() + packed


def _decoded(content: bytes) -> CompiledProgram | None:
    start = len(_MARK) + _DIGEST_BYTES
    digest, packed = content[len(_MARK) : start], content[start:]
    if not content.startswith(_MARK) or sha256(packed).digest() != digest:
        return None
    try:
        return msgspec.msgpack.decode(zlib.decompress(packed), type=CompiledProgram)
    except (zlib.error, msgspec.DecodeError):
        return None


def _unusable(directory: Path, error: Exception) -> CacheError:
    why = error.strerror if isinstance(error, OSError) else error
    return CacheError(
        f"the cache of compiled programs cannot be used: {why}",
        location=str(directory),
        hint=f"give a writable {option('cache_dir')}, or {option('disable_cache')}",
    )
