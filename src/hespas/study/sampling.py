"""Which candidates of a large study are predicted: chosen by Optuna, from what others gave.

The tree-structured Parzen estimator chooses for one goal, NSGA-II for several: J. Bergstra et al.,
Algorithms for hyper-parameter optimization, NIPS 2011; K. Deb et al., IEEE Transactions on
Evolutionary Computation 6 (2), 2002. Both are seeded, and get outcomes in generations of
one size, in the order of the candidates: how many workers there are changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from math import inf
from typing import Any, cast

from hespas.errors import ExtraMissingError
from hespas.study.goal import Goal
from hespas.study.keys import MESH, SETTINGS, Scalar
from hespas.study.space import Candidate

GENERATION = 16
_MOST_ASKED = 64
"""How often a sampler is asked for each candidate that it is to choose anew."""
Point = tuple[Scalar, ...]


@dataclass(slots=True, kw_only=True)
class Sampler:
    """Chooses candidates, by their numbers; make one with `sampler_of`."""

    goal: Goal
    optuna: Any
    names: tuple[str, ...]
    values: tuple[tuple[Scalar, ...], ...]
    numbers: Mapping[Point, int]
    found: dict[int, tuple[float, ...]] = field(default_factory=dict[int, tuple[float, ...]])
    _open: dict[int, Any] = field(default_factory=dict[int, Any])

    def ask(self, count: int) -> list[int]:
        """Return up to ``count`` candidates never chosen before: the sampler's, else the first."""
        chosen: list[int] = []
        for _ in range(_MOST_ASKED * count):
            if len(chosen) == count:
                break
            trial = self.optuna.ask()
            number = self.numbers.get(self._point(trial))
            if number is None:
                self._tell(trial, None)
            elif number in self.found:
                self._tell(trial, self.found[number])
            elif number in self._open:
                self._tell(trial, None)
            else:
                self._open[number] = trial
                chosen.append(number)
        for number in sorted(self.numbers.values()):
            if len(chosen) == count:
                break
            if number not in self.found and number not in self._open:
                self._open[number] = None
                chosen.append(number)
        return chosen

    def _point(self, trial: Any) -> Point:
        found: list[Scalar] = []
        for name, values in zip(self.names, self.values, strict=True):
            if _is_ordered(values):
                place: int = trial.suggest_int(name, 0, len(values) - 1)
                found.append(values[place])
            else:
                found.append(cast("Scalar", trial.suggest_categorical(name, values)))
        return tuple(found)

    def tell(self, number: int, figures: Mapping[str, float | None] | None) -> None:
        """Tell what came of a candidate: its figures, or None where it is out of question."""
        count = len(self.goal.metrics)
        values = (inf,) * count if figures is None else self.goal.keys(figures)
        self.found[number] = values
        trial = self._open.pop(number)
        if trial is not None:
            self._tell(trial, values)

    def _tell(self, trial: Any, values: tuple[float, ...] | None) -> None:
        if values is None:
            self.optuna.tell(trial, state=import_module("optuna.trial").TrialState.FAIL)
        else:
            self.optuna.tell(trial, [min(each, 1e300) for each in values])


def sampler_of(candidates: Mapping[int, Candidate], goal: Goal, *, seed: int) -> Sampler:
    """Return a sampler of candidates; `ExtraMissingError` without Optuna."""
    try:
        # An extra: few studies are so large.
        optuna: Any = import_module("optuna")
    except ImportError as error:
        raise ExtraMissingError("a study that is sampled", extra="search") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if goal.is_single:
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=GENERATION)
    else:
        sampler = optuna.samplers.NSGAIISampler(seed=seed, population_size=GENERATION)
    names, numbers = _points(candidates)
    values = [dict.fromkeys(point[index] for point in numbers) for index in range(len(names))]
    return Sampler(
        goal=goal,
        optuna=optuna.create_study(directions=["minimize"] * len(goal.metrics), sampler=sampler),
        names=names,
        values=tuple(_in_order(tuple(each)) for each in values),
        numbers=numbers,
    )


def _is_ordered(values: Sequence[Scalar]) -> bool:
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def _in_order(values: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    return tuple(sorted(values, key=float)) if _is_ordered(values) else values


def _points(candidates: Mapping[int, Candidate]) -> tuple[tuple[str, ...], dict[Point, int]]:
    """Return what varies, without an axis that follows from others, and each candidate's values."""
    rows = {number: _flat(candidate) for number, candidate in candidates.items()}
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    varying = [name for name in names if len({row.get(name, 1) for row in rows.values()}) > 1]
    axes = [name for name in varying if name.startswith(f"{MESH}.")]
    for left_out in axes:
        fewer = tuple(name for name in varying if name != left_out)
        points = _named(rows, fewer)
        if len(points) == len(rows):
            return fewer, points
    return tuple(varying), _named(rows, tuple(varying))


def _named(rows: Mapping[int, Mapping[str, Scalar]], names: tuple[str, ...]) -> dict[Point, int]:
    # An axis that a mesh lacks divides nothing.
    return {tuple(row.get(name, 1) for name in names): number for number, row in rows.items()}


def _flat(candidate: Candidate) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    for name, value in candidate.to_dict().items():
        if name in {MESH, SETTINGS}:
            inside = cast("Mapping[str, Scalar]", value)
            found |= {f"{name}.{key}": each for key, each in inside.items()}
        else:
            found[name] = cast("Scalar", value)
    return found
