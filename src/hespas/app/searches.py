"""Searches of the page: studies on disk.

A search runs ``hespas study run`` in a process that ends with the server. Its directory has its
rows, from which it goes on.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

from hespas.app.state import check_keys
from hespas.base.process import LOG_NAME, Limits, end_programs_on, last_words, run_program
from hespas.compile.options import SLOP_OPTION
from hespas.errors import ConfigError, HespasError
from hespas.study.goal import FIGURES, Goal, figure_text
from hespas.study.keys import MESH
from hespas.study.rows import (
    Row,
    Status,
    candidate_text,
    counts_text,
    in_order,
    pinned_text,
    pruned_text,
    unlike_text,
    varying_keys,
)
from hespas.study.run import study_in
from hespas.study.search import STUDY_FILE, axes_named, search_directory, search_study
from hespas.study.store import is_running, reading

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,80}")
_LONGEST_S = 7 * 86400.0
_MOST_ROWS = 2000
_OF_SEARCHES = frozenset({"goal", "where"})
"""Keys of a search beside those of a step."""


@dataclass(slots=True, kw_only=True)
class Searches:
    """A directory's searches, and the threads that run them."""

    home: Path
    workers: int
    _stops: dict[str, Event] = field(default_factory=dict[str, Event])
    _threads: dict[str, Thread] = field(default_factory=dict[str, Thread])

    def start(self, keys: Mapping[str, Any]) -> str:
        """Begin or resume a search, and return its name.

        Raises `ConfigError` for keys that the page has not.
        """
        check_keys(keys, more=_OF_SEARCHES)
        axes = keys.get(MESH)
        if isinstance(axes, str):
            keys = {**keys, MESH: axes_named(axes, keys)}
        name = search_directory(self.home, search_study(keys)).name
        self.resume(name)
        return name

    def resume(self, name: str) -> None:
        """Go on with a search from its stored rows."""
        directory = self._directory(name)
        thread = self._threads.get(name)
        if (thread is not None and thread.is_alive()) or is_running(directory):
            return
        stop = Event()
        self._stops[name] = stop
        self._threads[name] = Thread(target=self._run, args=(directory, stop), daemon=True)
        self._threads[name].start()

    def _run(self, directory: Path, stop: Event) -> None:
        end_programs_on(stop)
        command = [sys.executable, "-P", "-m", "hespas", "study", "run"]
        command += [str(directory / STUDY_FILE), "-o", str(directory)]
        command += ["--workers", str(self.workers)]
        try:
            limits = Limits(time_s=_LONGEST_S)
            run_program(command, name="the search", directory=directory, limits=limits)
        except (HespasError, KeyboardInterrupt):
            # The log and the rows have the outcome.
            return

    def stop(self, name: str) -> None:
        """End a search's process; its rows stay."""
        self._directory(name)
        stop = self._stops.get(name)
        if stop is not None:
            stop.set()
            self._threads[name].join(timeout=5.0)

    def close(self) -> None:
        """End all processes."""
        for name in list(self._stops):
            self.stop(name)

    def listed(self) -> list[dict[str, Any]]:
        """Return all searches, the last one first."""
        files = sorted(self.home.glob("*/" + STUDY_FILE), key=lambda file: -file.stat().st_mtime)
        return [{"name": file.parent.name, **self._state(file.parent)} for file in files]

    def _state(self, directory: Path) -> dict[str, Any]:
        thread = self._threads.get(directory.name)
        runs = (thread is not None and thread.is_alive()) or is_running(directory)
        return {"is_running": runs, "directory": str(directory)}

    def show(self, name: str) -> dict[str, Any]:
        """Return a search's progress and its candidates, best first."""
        directory = self._directory(name)
        state = self._state(directory)
        try:
            study = study_in(directory)
            with reading(directory) as store:
                rows = store.rows()
        except HespasError as error:
            is_new = state["is_running"]
            log = directory / LOG_NAME
            reason = last_words(log) if log.exists() else error.text(str)
            return {**state, "name": name, "rows": [], "text": "starting" if is_new else reason}
        waiting = sum(row.status is Status.WAITING for row in rows)
        decided = [row for row in rows if row.status is not Status.WAITING]
        shown = in_order(decided, study.goal)[:_MOST_ROWS]
        varying = varying_keys(rows)
        return {
            **state,
            "name": name,
            "title": _OF_COMMANDS.sub("", study.title),
            "goal": _in_words(study.goal.text),
            "where": study.where.text,
            "text": ". ".join(filter(None, _notes(rows, study.goal))),
            "total": len(rows),
            "waiting": waiting,
            "pinned": _in_words(pinned_text([_as_shown(row) for row in rows])),
            "capacity_bytes": max(map(_capacity_bytes, rows), default=0.0) or None,
            "rows": [_row(number, row, varying) for number, row in enumerate(shown, start=1)],
            "copies": _copies(directory),
        }

    def _directory(self, name: str) -> Path:
        directory = self.home / name
        if not _NAME.fullmatch(name) or not (directory / STUDY_FILE).is_file():
            raise ConfigError(f"there is no search {name!r}", hint="choose one of the list")
        return directory


def _copies(directory: Path) -> dict[str, str]:
    """Return a search as command line, Python and study."""
    file = directory / STUDY_FILE
    python = f"study = hespas.run_study({str(file)!r}, {str(directory)!r})\nprint(study)"
    return {
        "command": shlex.join(["hespas", "study", "resume", str(directory)]),
        "python": f"import hespas\n\n{python}\n",
        "study": file.read_text(),
    }


def _as_shown(row: Row) -> Row:
    """Return a row without what a search decides by itself."""
    kept = {key: value for key, value in row.candidate.items() if key != SLOP_OPTION}
    return replace(row, candidate=kept)


def _capacity_bytes(row: Row) -> float:
    return row.figures.get("memory_capacity_bytes") or 0.0


_OF_COMMANDS = re.compile(r" \(--[^)]*\)")
"""What a title says about options of the command line."""
_SHOWN = ("step_time_s", "tokens_per_s_per_device", "samples_per_s", "mfu", "peak_memory_bytes")


_NAME_OF_OPTION = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")


def _notes(rows: Sequence[Row], goal: Goal) -> list[str]:
    return [counts_text(rows), pruned_text(rows), _in_words(unlike_text(rows, goal))]


def _in_words(text: str) -> str:
    """Return a text with the names of options as the page has them."""
    return _NAME_OF_OPTION.sub(lambda match: match[0].replace("_per_", "/").replace("_", " "), text)


def _row(number: int, row: Row, varying: Sequence[str]) -> dict[str, Any]:
    figures = {name: row.figures.get(name) for name in _SHOWN}
    candidate = {key: value for key, value in row.candidate.items() if key != SLOP_OPTION}
    # Few candidates need a raised limit; the page of one that does has it.
    raised = row.figures.get(SLOP_OPTION)
    if raised is not None:
        candidate[SLOP_OPTION] = int(raised)
    return {
        "number": number,
        "candidate": candidate,
        "text": _in_words(candidate_text(row.candidate, varying)),
        "status": row.status.value,
        "reason": _in_words(row.reason),
        "fits": row.fits,
        "figures": figures,
        "texts": {
            name: figure_text(name, value)
            for name, value in figures.items()
            if value is not None and name in FIGURES
        },
    }
