"""What runs evaluations: one small protocol, and its implementations by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Protocol

from hespas.base.fields import Option, declare
from hespas.base.groups import Group
from hespas.errors import ConfigError, option
from hespas.study.messages import Outcome, Task


class Executor(Protocol):
    """Runs evaluations, in any order and place. Tasks carry all that they need.

    A task that crashes, hangs or takes too much memory has an outcome that says so, and no other
    task is lost with it.
    """

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Run the tasks and yield each with its outcome, as they end."""
        ...


class Place(Enum):
    """Where evaluations run: in processes of this machine, or on a Dask cluster."""

    LOCAL = "local"
    DASK = "dask"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """Where evaluations run, and how long one of them may take."""

    GROUP: ClassVar[Group] = Group.MAIN

    executor: Place = declare(
        Option(help="Where predictions run: processes of this machine, or a Dask cluster."),
        default=Place.LOCAL,
    )
    scheduler: str | None = declare(
        Option(
            help="The address of Dask's scheduler, as in tcp://host:8786.",
            metavar="ADDRESS",
            default_text="one on this machine",
        )
    )
    workers: int | None = declare(
        Option(help="How many run at a time.", metavar="N", default_text="one a core")
    )
    time_limit_s: float = declare(
        Option(
            help="Seconds that one prediction may take; it fails alone if it takes longer.",
            name="time_limit",
            parse=float,
            metavar="SECONDS",
        ),
        default=1800.0,
    )

    def __post_init__(self) -> None:
        if self.scheduler is not None and self.executor is not Place.DASK:
            raise ConfigError(
                f"{option('scheduler')} has no effect without {option('executor')} dask",
                hint="add it",
            )
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"{option('workers')} is {self.workers}", hint="give 1 or more")
        if not self.time_limit_s > 0:
            raise ConfigError(
                f"{option('time_limit')} is {self.time_limit_s:g}", hint="give seconds above 0"
            )


def executor_of(options: ExecutorOptions) -> AbstractContextManager[Executor]:
    """Return the executor that options name, to be entered; its workers end with it."""
    match options.executor:
        case Place.LOCAL:
            from hespas.study.local import LocalExecutor  # noqa: PLC0415 - few need both

            return LocalExecutor(workers=options.workers, time_limit_s=options.time_limit_s)
        case Place.DASK:
            from hespas.study.dask_cluster import DaskExecutor  # noqa: PLC0415 - as above

            return DaskExecutor(
                scheduler=options.scheduler,
                workers=options.workers,
                time_limit_s=options.time_limit_s,
            )
