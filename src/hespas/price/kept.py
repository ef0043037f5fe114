"""Prices that are kept between runs without being asked for: those of one program together.

A price is looked up as in `hespas.price.cache`; what stands under the keys of all regions of a
program is one file, since nothing reads a part of it. The code that makes prices is a part of its
name, so that another version makes them anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec

from hespas.base.cache import ContentCache, code_digest
from hespas.errors import CacheError
from hespas.price.tables.files import TABLES_DIRECTORY

_MARK = b"hespas prices 1\n"
_SUFFIX = ".prices"
_MOST_BYTES = 2**28
_MAKERS = (
    "work",
    "work/mosaic",
    "program/operations",
    "price",
    "price/ptx",
    "price/systolic",
    "price/tables",
    "hardware",
    "program",
)
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
