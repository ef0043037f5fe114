"""What a study looks for: figures, which of them are better high or low, and the order of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar, cast

from hespas.base.suggest import suggestion
from hespas.errors import ConfigError

_T = TypeVar("_T")
Figures = Mapping[str, float | None]
"""What is predicted of a candidate, by name; None is what is not known."""


class Direction(Enum):
    """Which way a figure is better."""

    MAXIMISE = "maximise"
    MINIMISE = "minimise"


_UP, _DOWN = Direction.MAXIMISE, Direction.MINIMISE
METRICS: Mapping[str, tuple[Direction, str]] = {
    "step_time_s": (_DOWN, "the time of a step"),
    "tokens_per_s_per_device": (_UP, "tokens a second and device"),
    "tokens_per_s": (_UP, "tokens a second on all devices"),
    "samples_per_s": (_UP, "sequences or images a second on all devices"),
    "mfu": (_UP, "the model's FLOPs against the peak, 0 to 1"),
    "compute_s": (_DOWN, "the time that computation takes"),
    "communication_s": (_DOWN, "the time in which communication is under way"),
    "exposed_communication_s": (_DOWN, "communication that no computation hides"),
    "peak_memory_bytes": (_DOWN, "the memory that a device needs"),
    "energy_j": (_DOWN, "the energy of a step on all devices, while they compute"),
    "energy_j_per_token": (_DOWN, "the same for each token"),
    "usd_per_step": (_DOWN, "what a step costs, by the prices given"),
    "usd_per_mtoken": (_DOWN, "what a million tokens cost, by the prices given"),
    "devices": (_DOWN, "how many devices there are"),
    "goodput": (_UP, "what of a long run's time is progress, 0 to 1 (goodput: true)"),
    "tokens_per_day": (_UP, "tokens a day of a long run, with failures (goodput: true)"),
    "usd_per_day": (_DOWN, "what a day of it costs, by the prices given"),
    "days": (_DOWN, "how long all tokens take, with failures (train_tokens)"),
    "usd": (_DOWN, "what these days cost, by the prices given"),
}
"""The figures that can be a goal, with the way in which each is better."""
TIME_LIKE = frozenset(
    {
        "step_time_s",
        "tokens_per_s_per_device",
        "tokens_per_s",
        "samples_per_s",
        "mfu",
        "usd_per_step",
        "usd_per_mtoken",
    }
)
"""The figures that a longer step never makes better: a lower bound of its time bounds them."""
PRICED = frozenset({"usd_per_step", "usd_per_mtoken", "usd_per_day", "usd"})
LONG_RUN: Mapping[str, str] = {
    "goodput": "goodput",
    "tokens_per_day": "goodput",
    "usd_per_day": "goodput",
    "days": "train_tokens",
    "usd": "train_tokens",
}
"""The figures of a long run, and the key that each needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Figures with their directions: one, or several whose best trade-offs are looked for."""

    metrics: tuple[tuple[str, Direction], ...]

    @property
    def is_single(self) -> bool:
        """Whether there is one figure, by which rows are ordered."""
        return len(self.metrics) == 1

    @property
    def text(self) -> str:
        """The goal in words."""
        named = [f"{way.value} {name}" for name, way in self.metrics]
        return named[0] if self.is_single else "pareto: " + ", ".join(named)

    def keys(self, figures: Figures) -> tuple[float, ...]:
        """Return the figures as numbers that are better the lower; those not known are last."""
        found: list[float] = []
        for name, way in self.metrics:
            value = figures.get(name)
            if value is None:
                found.append(float("inf"))
            else:
                found.append(-value if way is _UP else value)
        return tuple(found)

    def to_dict(self) -> dict[str, object]:
        """Return it as a study's file writes it."""
        if self.is_single:
            name, way = self.metrics[0]
            return {way.value: name}
        return {"pareto": [name for name, _ in self.metrics]}


FASTEST = Goal(metrics=(("step_time_s", Direction.MINIMISE),))
"""What is looked for unless a study says otherwise."""


def read_goal(given: object, *, location: str = "") -> Goal:
    """Read ``{maximise: NAME}``, ``{minimise: NAME}`` or ``{pareto: [NAME, NAME]}``.

    >>> read_goal({"pareto": ["step_time_s", "mfu"]}).text
    'pareto: minimise step_time_s, maximise mfu'
    """
    known = (*(way.value for way in Direction), "pareto")
    named = dict(cast("Mapping[str, object]", given)) if isinstance(given, Mapping) else {}
    if len(named) != 1:
        raise ConfigError(
            "$.goal is not one goal",
            location=location,
            hint="write it as in maximise: tokens_per_s",
        )
    ((way, figures),) = named.items()
    if way not in known:
        raise ConfigError(
            f"unknown key {way!r} in $.goal", location=location, hint=suggestion(str(way), known)
        )
    if way == "pareto":
        names = cast("list[object]", figures) if isinstance(figures, list) else []
        if len(names) < 2 or len(set(map(str, names))) < len(names):
            raise ConfigError(
                "$.goal.pareto is no list of figures", location=location, hint="give two or more"
            )
        chosen = [_metric(name, location) for name in names]
        return Goal(metrics=tuple((name, METRICS[name][0]) for name in chosen))
    return Goal(metrics=((_metric(figures, location), Direction(way)),))


def _metric(name: object, location: str) -> str:
    if not isinstance(name, str) or name not in METRICS:
        raise ConfigError(
            f"{name!r} is no figure that can be a goal",
            location=location,
            hint=suggestion(str(name), METRICS),
        )
    return name


def ordered(rows: Sequence[_T], goal: Goal, figures: Callable[[_T], Figures]) -> list[_T]:
    """Return rows in the order of a goal, best first; equal ones keep their order.

    With several figures the rows that no other is better than in all of them come first, then those
    that only the first are better than, and so on; within them the first figure decides.
    """
    keys = [goal.keys(figures(row)) for row in rows]
    ranks = [0] * len(rows) if goal.is_single else fronts(keys)
    order = sorted(range(len(rows)), key=lambda index: (ranks[index], keys[index]))
    return [rows[index] for index in order]


def fronts(keys: Sequence[tuple[float, ...]]) -> list[int]:
    """Return for each point by how many layers of better ones it is covered.

    Source: K. Deb et al., A fast and elitist multiobjective genetic algorithm: NSGA-II, IEEE
    Transactions on Evolutionary Computation 6 (2), 2002, section III A.

    >>> fronts([(1, 3), (2, 2), (3, 3), (2, 2)])
    [0, 0, 1, 0]
    """
    left, ranks, rank = set(range(len(keys))), [0] * len(keys), 0
    while left:
        front = {
            index
            for index in left
            if not any(_is_better(keys[other], keys[index]) for other in left)
        }
        for index in front:
            ranks[index] = rank
        left -= front
        rank += 1
    return ranks


def _is_better(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    return first != second and all(a <= b for a, b in zip(first, second, strict=True))
