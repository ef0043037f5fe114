"""How steps are measured: where, how many, and by how many processes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from hespas.base.fields import Option, declare
from hespas.base.groups import Group
from hespas.base.units import parse_quantity
from hespas.errors import ConfigError, option

AUTO = "auto"
"""The coordinator that JAX finds by itself, where the cluster's environment says it."""


class Platform(Enum):
    """What the step runs on; ``AUTO`` is the best that JAX finds."""

    AUTO = "auto"
    CPU = "cpu"
    GPU = "gpu"
    TPU = "tpu"


def parse_time_limit(text: str) -> float:
    """Read a time above 0, in seconds.

    >>> parse_time_limit("1500ms")
    1.5
    """
    limit_s = parse_quantity(text, "s", location=option("time_limit"))
    if limit_s <= 0:
        raise ConfigError("the time limit is not positive", location=option("time_limit"))
    return limit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """How steps are run and timed.

    ``coordinator``, ``num_processes`` and ``process_id`` are those of ``jax.distributed``, for a
    program on the devices of several hosts, on each of which the same command is started. Raises
    `ConfigError` for numbers that can't be and for processes that are described in part.

    >>> MeasureOptions(steps=20).warm_up
    3
    """

    platform: Platform = declare(
        Option(
            help="What to run on.",
            default_text="auto, the best there is",
        ),
        default=Platform.AUTO,
    )
    steps: int = declare(Option(help="Steps that are timed."), default=10)
    warm_up: int = declare(
        Option(help="Steps before them that are not.", aliases=("warmup",)), default=3
    )
    coordinator: str | None = declare(
        Option(
            help="Run on several hosts: host:port of process 0, the same for all, or auto where "
            "JAX can ask the cluster (Slurm, TPU slices).",
            metavar="ADDRESS",
            group=Group.NETWORK,
        )
    )
    num_processes: int | None = declare(
        Option(
            help="How many processes there are in all.", group=Group.NETWORK, needs="coordinator"
        )
    )
    process_id: int | None = declare(
        Option(help="Which of them this one is, from 0.", group=Group.NETWORK, needs="coordinator")
    )
    time_limit_s: float = declare(
        Option(
            help="How long compiling and running may take.",
            name="time_limit",
            parse=parse_time_limit,
            metavar="TIME",
            group=Group.CACHES,
            default_text="1800s",
        ),
        default=1800.0,
    )

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"{option('steps')} is {self.steps}", hint="give 1 or more")
        if self.warm_up < 0:
            raise ConfigError(f"{option('warm_up')} is {self.warm_up}", hint="give 0 or more")
        if self.coordinator is not None:
            self._check_processes(self.coordinator)

    def _check_processes(self, coordinator: str) -> None:
        count, own = self.num_processes, self.process_id
        if coordinator == AUTO:
            if count is not None or own is not None:
                name = "num_processes" if count is not None else "process_id"
                raise ConfigError(
                    f"{option(name)} has no effect with {option('coordinator')} {AUTO}",
                    hint="drop it",
                )
            return
        host, colon, port = coordinator.rpartition(":")
        if not host or not colon or not port.isdecimal():
            raise ConfigError(
                f"{option('coordinator')} is {coordinator!r}",
                hint=f"give host:port, as in 10.0.0.1:1234, or {AUTO}",
            )
        if count is None or own is None:
            missing = "num_processes" if count is None else "process_id"
            raise ConfigError(
                f"{option('coordinator')} is given, and {option(missing)} is not",
                hint="give both, or drop it",
            )
        if not 0 <= own < count:
            raise ConfigError(
                f"{option('process_id')} is {own}, of {count} processes",
                hint=f"give 0 to {count - 1}" if count > 0 else "give 1 process or more",
            )
