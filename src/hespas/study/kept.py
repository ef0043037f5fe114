"""Outcomes that are kept beyond their study, so that another one does not predict them again.

A file stands under the key of an evaluation, which is made of all that decides its outcome, and of
the code of hespas. Kept is what models of the zoo take: of a function, and of files that
options name, only names are known, and what is timed on this machine is another's every time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec

from hespas.base.cache import ContentCache
from hespas.errors import CacheError
from hespas.study.entry import Entry
from hespas.study.keys import WORKLOAD, canonical
from hespas.study.messages import Ending, Outcome, Task

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
