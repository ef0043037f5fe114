"""How long stages took before, to say how long similar ones take.

The file is small, stands beside the cache of compiled programs and is only for people: without it,
or where it can't be written, nothing else changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hespas.base.files import cache_home, write_file
from hespas.base.progress import Report
from hespas.errors import OutputError

FILE_NAME = "durations.json"
LEAST_S = 1.0
"""Shorter ones are not worth a word."""
_SIMILAR = 1.5
_MOST_KINDS = 200
_MOST_OF_A_KIND = 20

_Taken = dict[str, list[tuple[int, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """What stages took, by kind, with their sizes; the newest last."""

    file: Path

    def of_similar(self, report: Report) -> tuple[float, ...]:
        """Return what those of the same kind took whose size differs by less than half."""
        taken = _read(self.file).get(_key(report), [])
        low, high = report.size / _SIMILAR, report.size * _SIMILAR
        return tuple(seconds for size, seconds in taken if low <= size <= high)

    def add(self, report: Report) -> None:
        """Remember how long a stage took, where that says something about others."""
        if report.seconds is None or report.seconds < LEAST_S or not report.size:
            return
        taken = _read(self.file)
        newest = (report.size, round(report.seconds, 1))
        of_kind = [*taken.pop(_key(report), []), newest][-_MOST_OF_A_KIND:]
        kept = {**dict([*taken.items()][1 - _MOST_KINDS :]), _key(report): of_kind}
        with suppress(OSError, OutputError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_file(self.file, _lines(kept))


def default_durations() -> Durations:
    """Return the durations that are kept for the user."""
    return Durations(file=cache_home() / FILE_NAME)


def _lines(taken: _Taken) -> bytes:
    """Return what stages took as JSON, a kind a line."""
    lines = [f" {json.dumps(kind)}: {json.dumps(each)}" for kind, each in taken.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _key(report: Report) -> str:
    return f"{report.stage.value} {report.kind}".rstrip()


def _read(file: Path) -> _Taken:
    """Return what a file says; nothing where there is none, or a damaged one."""
    try:
        found: Any = json.loads(file.read_bytes())
        return {
            str(kind): [(int(size), float(seconds)) for size, seconds in each]
            for kind, each in cast("Mapping[str, Any]", found).items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
