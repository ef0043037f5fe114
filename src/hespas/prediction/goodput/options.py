"""What a user says of a long run: its failures, checkpoints, restarts and length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hespas.base.fields import Group, Option, declare
from hespas.base.figures import Count
from hespas.base.units import parse_quantity
from hespas.errors import ConfigError, option

DEFAULT_START_S = 600.0
DEFAULT_REPAIR_S = 86400.0


def _positive(text: str, *, unit: str, name: str) -> float:
    value = parse_quantity(text, unit, location=option(name))
    if value <= 0:
        raise ConfigError(f"{option(name)} is {text}", hint="give more than 0")
    return value


def _time(name: str) -> partial[float]:
    return partial(_positive, unit="s", name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputOptions:
    """A run of many steps on devices that fail. Times in seconds."""

    GROUP: ClassVar[Group] = Group.LONG_RUN

    goodput: bool = declare(
        Option(help="Say what of a long run's time is progress, with failures and checkpoints."),
        default=False,
    )
    device_failure_interval: float | None = declare(
        Option(
            help="Mean time between failures of one device, as in 50000h.",
            parse=_time("device_failure_interval"),
            metavar="TIME",
            default_text="as published for the part",
            needs="goodput",
        )
    )
    checkpoint_interval: float | None = declare(
        Option(
            help="Training between two checkpoints, as in 30min.",
            parse=_time("checkpoint_interval"),
            metavar="TIME",
            default_text="the one that loses least",
            needs="goodput",
        )
    )
    checkpoint_bandwidth: float | None = declare(
        Option(
            help="What all devices together write and read of a checkpoint, as in 100GB/s.",
            parse=partial(_positive, unit="B/s", name="checkpoint_bandwidth"),
            metavar="RATE",
            default_text="125 MB/s for each device",
            needs="goodput",
        )
    )
    restart_time: float = declare(
        Option(
            help="From a failure until the program runs again, without loading the checkpoint.",
            parse=_time("restart_time"),
            metavar="TIME",
            needs="goodput",
        ),
        default=DEFAULT_START_S,
    )
    spare_nodes: int | None = declare(
        Option(
            help="Nodes that stand by for those that fail.",
            form=Count,
            default_text="as many as it takes",
            needs="goodput",
        )
    )
    repair_time: float = declare(
        Option(
            help="How long a node that failed is away.",
            parse=_time("repair_time"),
            metavar="TIME",
            needs="spare_nodes",
        ),
        default=DEFAULT_REPAIR_S,
    )
    train_tokens: float | None = declare(
        Option(
            help="Tokens of the whole run, as in 15T, to say how many days it takes.",
            parse=partial(_positive, unit="", name="train_tokens"),
            metavar="TOKENS",
            needs="goodput",
        )
    )
    device_hour_usd: float | None = declare(
        Option(
            help="What an hour of one device costs, in dollars, to say what the run costs.",
            parse=partial(_positive, unit="", name="device_hour_usd"),
            metavar="USD",
            needs="train_tokens",
        )
    )

    def __post_init__(self) -> None:
        if self.spare_nodes is not None and self.spare_nodes < 0:
            raise ConfigError(
                f"{option('spare_nodes')} is {self.spare_nodes}", hint="give 0 or more"
            )
