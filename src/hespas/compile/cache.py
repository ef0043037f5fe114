"""Cache compiled programs, keyed by everything that decides a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import msgspec

from hespas.base.cache import ContentCache
from hespas.base.frozen import frozen
from hespas.compile.job import CompiledProgram, Job

_MARK = b"hespas compiled 4\n"
_SUFFIX = ".compiled"
_KERNEL_SUFFIX = ".kernel"


class _Key(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs that decide a result."""

    mark: bytes
    source: bytes
    request: bytes
    flags: list[tuple[str, str]]
    versions: list[tuple[str, str]]


def job_key(job: Job) -> str:
    """Return the key of a job, from everything that decides its result."""
    key = _Key(
        mark=_MARK,
        source=sha256(job.source).digest(),
        request=msgspec.msgpack.encode(msgspec.structs.replace(job.request, name="")),
        flags=[*_pairs(job.flags), *_recipe(job)],
        versions=_pairs(job.versions),
    )
    return sha256(msgspec.msgpack.encode(key)).hexdigest()


def _recipe(job: Job) -> list[tuple[str, str]]:
    """Return the recipe's entries: file, flags, and options that go before it.

    The notes of a result name them.
    """
    if job.recipe is None:
        return []
    flags = [(f"recipe {name}", value) for name, value in _pairs(job.recipe.flags)]
    overrides = [(f"given {name}", value) for name, value in _pairs(job.set_flags)]
    return [("recipe", job.recipe.file), *flags, *overrides]


def _pairs(mapping: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(mapping.items())


@frozen
class CompiledCache:
    """A directory of compiled programs and analyses of their kernels.

    Each is a compressed file, written atomically. A damaged one is compiled again, with a warning.
    If all files together exceed ``limit_bytes``, the least recently used ones are removed.
    """

    directory: Path
    limit_bytes: int = 2 * 2**30

    @property
    def files(self) -> ContentCache:
        """The files of the directory."""
        return ContentCache(
            directory=self.directory,
            suffix=_SUFFIX,
            mark=_MARK,
            content_name="compiled programs",
            also=(_KERNEL_SUFFIX,),
            limit_bytes=self.limit_bytes,
        )

    def read(self, job: Job) -> CompiledProgram | None:
        """Return a job's result; None if missing or damaged."""
        result = self.files.value(job_key(job), CompiledProgram)
        return result and replace(result, name=job.name, target=job.target.name)

    def write(self, job: Job, result: CompiledProgram) -> None:
        """Store a result; raise `CacheError` if the directory cannot be written."""
        self.files.keep(job_key(job), result)

    def path_of(self, job: Job) -> Path:
        """Return the file of a job's result."""
        return self.files.path_of(job_key(job))
