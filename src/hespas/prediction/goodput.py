"""Closed forms of a failing run with checkpoints.

A run trains for an interval, saves a checkpoint while it waits, and goes on. Failures come at
random (a Poisson process, every ``failure_interval_s`` on average); one throws away what was done
since the last checkpoint, and then the run restarts: it is started and loads the checkpoint, in
which it can fail again. The expected time of an interval is (J. T. Daly, A higher order estimate
of the optimum checkpoint interval for restart dumps, Future Generation Computer Systems 22, 2006,
equation 20), with M between failures, R of a restart, t of the interval and d of saving::

    M e^(R/M) (e^((t + d)/M) - 1)

Nodes that failed are repaired, and spares stand in for them; the run waits when all spares are out.
Failures come only while it runs, so that this is Erlang's loss system with a server more than there
are spares: the run waits for the share of time that Erlang's B formula gives, whatever the
distribution of repairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import exp, expm1, inf
from types import MappingProxyType
from typing import ClassVar

from hespas.base.fields import Group, Use, check_options, declare
from hespas.base.frozen import frozen
from hespas.base.units import DAY_S
from hespas.errors import ConfigError, option
from hespas.prediction.hazards import HazardsFile, read_hazards

DEFAULT_START_S = 600.0
DEFAULT_REPAIR_S = 86400.0


class CheckpointMode(Enum):
    """How a checkpoint is saved.

    ``SYNCHRONOUS``: training waits until it is written. ``ASYNCHRONOUS``: training waits until it
    is copied to the hosts, which write it. ``MEMORY``: hosts keep it, and send it to another node.
    """

    SYNCHRONOUS = "synchronous"
    ASYNCHRONOUS = "asynchronous"
    MEMORY = "memory"


TOKENS = Use(": the tokens of a step are not known", f"give {option('tokens')}")


@frozen
class GoodputOptions:
    """The options of a long run; times are in seconds."""

    GROUP: ClassVar[Group] = Group.LONG_RUN

    goodput: bool = declare(
        help="Predict which share of a long run is progress, with failures and checkpoints.",
        default=False,
    )
    device_failure_interval: float | None = declare(
        help="Mean time between failures of one device, as in 50000h.",
        unit="s",
        usual_unit="h",
        default_text="as published for the part",
        needs="goodput",
        one_of="failures",
    )
    checkpoint_interval: float | None = declare(
        help="Training between two checkpoints, as in 30min.",
        unit="s",
        usual_unit="min",
        default_text="the one that loses least",
        needs="goodput",
    )
    checkpoint_bandwidth: float | None = declare(
        help="What all devices together write and read of a checkpoint, as in 100GB/s.",
        unit="B/s",
        default_text="125 MB/s for each device",
        needs="goodput",
    )
    checkpoint_mode: CheckpointMode = declare(
        help="How checkpoints are saved: training waits until they are written, until they are "
        "copied to the hosts, which write them, or hosts keep them, and a copy on another node.",
        needs="goodput",
        default=CheckpointMode.SYNCHRONOUS,
    )
    restart_time: float = declare(
        help="From a failure until the program runs again, without loading the checkpoint.",
        unit="s",
        usual_unit="min",
        needs="goodput",
        default=DEFAULT_START_S,
    )
    spare_nodes: int | None = declare(
        help="Nodes that stand by for those that fail.",
        least=0,
        default_text="as many as it takes",
        needs="goodput",
    )
    repair_time: float = declare(
        help="How long a node that failed is away.",
        unit="s",
        usual_unit="h",
        needs="spare_nodes",
        default=DEFAULT_REPAIR_S,
    )
    elastic_nodes: int | None = declare(
        help="Nodes of a copy of the model: a run without a spare leaves a copy out, rather than "
        "wait, and takes it in again when its nodes are repaired.",
        least=1,
        default_text="the run waits",
        needs="spare_nodes",
    )
    train_tokens: float | None = declare(
        help="Tokens of the whole run, as in 15T, to say how many days it takes.",
        unit="",
        metavar="TOKENS",
        applies_to=(TOKENS,),
        needs="goodput",
    )
    device_hour_usd: float | None = declare(
        help="What an hour of one device costs, in dollars, to say what the run costs.",
        unit="",
        metavar="USD",
        needs="goodput",
    )
    run_days: float | None = declare(
        help="Play a run of this many days, failure by failure, for figures with quantiles.",
        unit="",
        metavar="DAYS",
        needs="goodput",
    )
    run_seeds: int = declare(
        help="How many such runs are played.", least=1, needs="run_days", default=1000
    )
    run_seed: int = declare(
        help="The first seed of their failures.", least=0, needs="run_days", default=0
    )
    hazards: HazardsFile | None = declare(
        help="What fails, and how: causes, unequal nodes, infant mortality, retries (a preset or "
        "a file).",
        parse=read_hazards,
        metavar="NAME|FILE",
        default_text="devices fail alike",
        needs="run_days",
        one_of="failures",
    )

    __post_init__ = check_options


_ROUNDS = 200


@frozen
class LongRun:
    """A run on all devices; times are in seconds.

    ``failure_interval_s`` is the mean time between failures of all devices together, infinite where
    nothing fails. ``start_s`` is from a failure until the program runs again, ``load_s`` loads the
    checkpoint; training waits for ``save_s`` while one is saved, every ``interval_s`` of training,
    and it can be loaded ``behind_s`` after that. ``spares`` nodes stand by, None for as many as it
    takes, and one that failed is back after ``repair_s`` on average. A run that is played goes on
    without copies of ``elastic_nodes`` nodes where spares are missing; None: it waits.
    """

    failure_interval_s: float
    start_s: float
    load_s: float
    save_s: float
    interval_s: float
    spares: int | None = None
    repair_s: float = 0.0
    behind_s: float = 0.0
    elastic_nodes: int | None = None

    @property
    def restart_s(self) -> float:
        """The time to restart, if nothing fails again."""
        return self.start_s + self.load_s


@frozen
class Goodput:
    """Shares of a long run's time, and its failures.

    The shares add up to 1. ``productive`` is training that counts; ``lost`` is training and saving
    that a failure undid.
    """

    productive: float
    saving: float
    lost: float
    starting: float
    loading: float
    waiting: float
    failures_per_day: float


def goodput_of(run: LongRun) -> Goodput:
    """Return the expected shares of a long run's time.

    >>> calm = LongRun(
    ...     failure_interval_s=float("inf"), start_s=60, load_s=60, save_s=10, interval_s=90
    ... )
    >>> goodput_of(calm).productive
    0.9
    """
    waiting = waiting_share(run)
    cycle_s = run.interval_s + run.save_s
    between_s = run.failure_interval_s
    if between_s == inf:
        working_s, restart_s, start_s = cycle_s, 0.0, 0.0
    else:
        # Failures while an interval is trained and saved: until it is done without one.
        restarts = expm1(cycle_s / between_s)
        # What was trained while a checkpoint was written is trained again, and may fail again.
        again = exp(run.behind_s / between_s)
        working_s = between_s * (restarts + restarts * (again - 1.0))
        restart_s = restarts * between_s * expm1(run.restart_s / between_s) * again
        # Each of the attempts that a restart takes begins with the start.
        attempts = restarts * exp(run.restart_s / between_s) * again
        start_s = attempts * between_s * -expm1(-run.start_s / between_s)
    expected_s = working_s + restart_s
    runs = (1.0 - waiting) / expected_s
    return Goodput(
        productive=run.interval_s * runs,
        saving=run.save_s * runs,
        lost=max(0.0, working_s - cycle_s) * runs,
        starting=start_s * runs,
        loading=max(0.0, restart_s - start_s) * runs,
        waiting=waiting,
        failures_per_day=86400.0 * (1.0 - waiting) / between_s,
    )


def waiting_share(run: LongRun) -> float:
    """Return the share of time without spares (Erlang B).

    >>> run = LongRun(
    ...     failure_interval_s=9, start_s=0, load_s=0, save_s=1, interval_s=1, spares=0, repair_s=9
    ... )
    >>> waiting_share(run)
    0.5
    """
    if run.spares is None or run.failure_interval_s == inf:
        return 0.0
    offered = run.repair_s / run.failure_interval_s
    blocked = 1.0
    for servers in range(1, run.spares + 2):
        blocked = offered * blocked / (servers + offered * blocked)
    return blocked


def best_interval_s(*, failure_interval_s: float, save_s: float) -> float:
    """Return the checkpoint interval of the most progress.

    It solves ``(1 - t/M) e^(t/M) = e^(-d/M)``, where the derivative of the expected time for each
    second of progress is zero; Young's ``sqrt(2 d M)`` is its limit for short saves. Infinite where
    nothing fails, and zero where saving costs nothing.

    >>> round(best_interval_s(failure_interval_s=10_000, save_s=1)), round((2 * 1 * 10_000) ** 0.5)
    (141, 141)
    """
    if failure_interval_s == inf:
        return inf
    target = exp(-save_s / failure_interval_s)
    low, high = 0.0, 1.0
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if (1.0 - middle) * exp(middle) > target:
            low = middle
        else:
            high = middle
    return high * failure_interval_s if target < 1.0 else 0.0


@frozen
class FailureRate:
    """The mean time between interruptions by one device.

    It includes the device's share of the machine.
    """

    device_interval_s: float
    source: str


FAILURES: Mapping[str, FailureRate] = MappingProxyType(
    {
        "H100": FailureRate(
            device_interval_s=16_384 * 54 * DAY_S / 419,
            source="419 unexpected interruptions of 16,384 H100 in 54 days (Llama 3, arXiv "
            "2407.21783, section 3.3.4)",
        ),
        "A100": FailureRate(
            device_interval_s=8 * 1000 * DAY_S / 6.50,
            source="6.50 failures in 1,000 days of a node of eight A100 (Meta's RSC-1, arXiv "
            "2410.21680)",
        ),
    }
)
"""By the first part of a device's name."""

CHECKPOINT_BYTES_PER_S = 2e12 / 16_000
CHECKPOINT_SOURCE = (
    "2 TB/s sustained for some 16,000 devices (Llama 3, arXiv 2407.21783, section 3.3.1)"
)
"""The checkpoint bandwidth of one device of a large cluster, all writing at once."""


def known_failures(device: str) -> FailureRate | None:
    """Return a part's published failure rate, if any.

    >>> known_failures("H100_80GB").device_interval_s / 3600 > 40_000, known_failures("MI300X")
    (True, None)
    """
    return FAILURES.get(device.partition("_")[0])


def failure_interval(options: GoodputOptions, device: str) -> FailureRate | None:
    """Return a device's failure interval, given or published.

    With hazards there is none.

    Raises `ConfigError` for a part of unknown failures.
    """
    if options.hazards is not None:
        return None
    if options.device_failure_interval is not None:
        return FailureRate(device_interval_s=options.device_failure_interval, source="")
    published = known_failures(device)
    if published is None:
        raise ConfigError(
            f"how often {device or 'the device'} fails is not known",
            hint=f"give {option('device_failure_interval')}, as in 50000h for one device",
        )
    return published
