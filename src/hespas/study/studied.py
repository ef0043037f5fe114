"""A study from outside: run it, read what a directory holds, the rows in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hespas.base.files import cache_home
from hespas.base.limits import whole_number
from hespas.errors import ConfigError, OutputError
from hespas.study.executor import ExecutorOptions, executor_of
from hespas.study.exports import flat
from hespas.study.kept import KeptOutcomes
from hespas.study.rows import Row, Status, in_order
from hespas.study.run import Listener, run_study
from hespas.study.store import opened, reading
from hespas.study.study import Study, study_of


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Studied:
    """A study with its rows, in the order of its goal.

    ``table`` has them as flat dictionaries, which `pandas.DataFrame` and `polars.DataFrame` take.
    """

    study: Study
    rows: tuple[Row, ...]

    @property
    def best(self) -> Row | None:
        """The best candidate that was predicted to the end; None where there is none."""
        return next((row for row in self.rows if row.status is Status.DONE), None)

    def table(self) -> list[dict[str, object]]:
        """Return a dictionary for each row."""
        return [flat(row) for row in self.rows]

    def __repr__(self) -> str:
        from hespas.study.text import counts_text, table_text  # noqa: PLC0415 - for people alone

        return f"{counts_text(self.rows)}\n{table_text(self.rows, self.study.goal)}"


def no_listener(rows: Sequence[Row]) -> None:
    """Listen to nothing."""


def studied(
    study: Study,
    directory: Path,
    *,
    executor: ExecutorOptions | None = None,
    listener: Listener = no_listener,
) -> Studied:
    """Run a study in a directory, or go on with it, and return its table.

    Raises `ConfigError` for a study without candidates, `OutputError` for a directory that is of
    another study, in use, or can't be written.
    """
    with opened(directory) as store:
        present = store.study()
        if present is not None and present != study.to_dict():
            raise OutputError(
                "holds the results of another study",
                location=str(directory),
                hint="choose another directory",
            )
        with executor_of(executor or ExecutorOptions()) as chosen:
            kept = KeptOutcomes(directory=cache_home() / "studied")
            rows = run_study(study, store, chosen, listener, kept=kept)
    return Studied(study=study, rows=tuple(in_order(rows, study.goal)))


def study_in(directory: Path) -> Study:
    """Return the study that a directory is of."""
    with reading(directory) as store:
        given = store.study()
    if given is None:
        raise OutputError("holds no study yet", location=str(directory), hint="run one")
    return study_of(given, location=str(directory))


def table_of(directory: Path) -> Studied:
    """Return the table that a directory holds by now, also while the study runs."""
    study = study_in(directory)
    with reading(directory) as store:
        rows = store.rows()
    decided = [row for row in rows if row.status is not Status.WAITING]
    return Studied(study=study, rows=tuple(in_order(decided, study.goal)))


def row_named(studied: Studied, name: str) -> Row:
    """Return a row by its place in the table, from 1; `ConfigError` where there is none."""
    number = whole_number(name)
    if number is None or not 1 <= number <= len(studied.rows):
        raise ConfigError(
            f"there is no row {name!r}", hint=f"give 1 to {len(studied.rows)}, as the table counts"
        )
    return studied.rows[number - 1]
