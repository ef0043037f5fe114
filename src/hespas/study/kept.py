"""Outcomes that are kept beyond their study, so that another one does not predict them again.

A file stands under the key of an evaluation, which is made of all that decides its outcome, and of
the code of hespas. Kept is what models of the zoo take: of a function, and of files that
options name, only names are known, and what is timed on this machine is another's every time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec

from hespas.base.cache import ContentCache
from hespas.base.files import cache_home
from hespas.errors import CacheError
from hespas.study.entry import Entry
from hespas.study.executor import Ending, Outcome, Task
from hespas.study.keys import WORKLOAD, canonical

MOST_CARRIED_BYTES = 64 * 2**20
_CACHE_FILE = re.compile(
    r"(?P<folder>compiled|exported|prices)/"
    r"(?P<key>[0-9a-f]{64})(?P<suffix>\.(?:compiled|exported|partitioned|prices))"
)


def names_of(files: Iterable[Path]) -> list[str]:
    """Return the names of files of the user's caches, in order; others have none.

    >>> names_of([cache_home() / "compiled" / f"{'0' * 64}.compiled", Path("/other")])[0][:10]
    'compiled/0'
    """
    home = cache_home()
    found = (str(each.relative_to(home)) for each in files if each.is_relative_to(home))
    return sorted(name for name in found if _CACHE_FILE.fullmatch(name))


def contents_of(names: Iterable[str], *, most_bytes: int = MOST_CARRIED_BYTES) -> dict[str, bytes]:
    """Return what cached files hold, up to ``most_bytes``; those that are gone are left out."""
    found: dict[str, bytes] = {}
    left_bytes = most_bytes
    for name in names:
        with suppress(OSError):
            content = (cache_home() / name).read_bytes()
            if len(content) <= left_bytes:
                found[name] = content
                left_bytes -= len(content)
    return found


def keep_files(contents: Mapping[str, bytes]) -> None:
    """Put files into the user's caches, unless they are damaged or there; names decide where."""
    for name, content in contents.items():
        named = _CACHE_FILE.fullmatch(name)
        if named is None:
            continue
        mark, line_end, _ = content.partition(b"\n")
        cache = ContentCache(
            directory=cache_home() / named["folder"],
            suffix=named["suffix"],
            mark=mark + line_end,
            what="programs of studies",
        )
        with suppress(CacheError):
            cache.adopt(named["key"], content)


_MOST_BYTES = 2**28
_HOME = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptOutcomes:
    """Keeps outcomes as files of a directory; where that can't be used, none is kept."""

    directory: Path

    def read(self, entry: Entry, task: Task) -> Outcome | None:
        """Return what came of an evaluation in any study; None where that is not known."""
        if not _is_decided(entry):
            return None
        try:
            content = self._cache.read(_key(task))
            return None if content is None else msgspec.msgpack.decode(content, type=Outcome)
        except (CacheError, msgspec.DecodeError):
            return None

    def write(self, entry: Entry, task: Task, outcome: Outcome) -> None:
        """Keep an outcome, unless it failed: that may be this machine's doing."""
        if outcome.ending is not Ending.DONE or not _is_decided(entry):
            return
        kept = msgspec.structs.replace(outcome, elapsed_s=0.0, cpu_s=0.0, peak_memory_bytes=0)
        try:
            self._cache.write(_key(task), msgspec.msgpack.encode(kept))
        except CacheError:
            return

    @property
    def _cache(self) -> ContentCache:
        return ContentCache(
            directory=self.directory,
            suffix=".outcome",
            mark=b"hespas outcomes 1\n",
            what="predictions of studies",
            limit_bytes=_MOST_BYTES,
        )


def _is_decided(entry: Entry) -> bool:
    """Return whether the key of an evaluation has all that decides its outcome."""
    if not entry.is_model or entry.runs_operations:
        return False
    return not _names_files(entry.candidate.values)


def _names_files(values: Mapping[str, object]) -> bool:
    others = (value for key, value in values.items() if key != WORKLOAD)
    try:
        return any(isinstance(value, str) and Path(value).exists() for value in others)
    except OSError:  # a text that is too long for a name
        return False


def _key(task: Task) -> str:
    return sha256(canonical((task.key, task.with_report, _state()))).hexdigest()


@cache
def _state() -> str:
    """Return what tells versions of hespas' files apart: a version may be changed in place."""
    files = (path for path in sorted(_HOME.rglob("*")) if "__pycache__" not in path.parts)
    found = [
        (str(path.relative_to(_HOME)), stat.st_size, stat.st_mtime_ns)
        for path in files
        if path.is_file() and (stat := path.stat())
    ]
    return sha256(canonical(found)).hexdigest()
