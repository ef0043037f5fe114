"""The candidates of a study, and samples of them.

Candidates are combinations of the listed values, unless a constraint refuses their keys.

Optuna chooses which candidates of a large study are predicted, from the results of others: by the
tree-structured Parzen estimator for one goal, by NSGA-II for several. Sources: J. Bergstra et al.,
Algorithms for hyper-parameter optimization, NIPS 2011; K. Deb et al., IEEE Transactions on
Evolutionary Computation 6 (2), 2002. Both are seeded, and get outcomes in generations of one size,
in the order of the candidates: the number of workers changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import sha256
from importlib import import_module
from itertools import product
from math import inf, prod
from pathlib import Path
from typing import Any, cast

from hespas.base.fields import build, options_in
from hespas.base.files import change_of
from hespas.errors import ConfigError, ExtraMissingError
from hespas.hardware.sized import find_system
from hespas.hardware.system import System
from hespas.models.model import PIPE, MeshAxes
from hespas.models.software import software_named
from hespas.prediction.frameworks import with_framework
from hespas.prediction.options import PredictOptions
from hespas.study.goal import Goal, Value
from hespas.study.keys import (
    CLUSTER,
    MESH,
    SETTINGS,
    SOFTWARE,
    Scalar,
    canonical,
    known_keys,
    option_value,
    scalar_text,
)
from hespas.study.study import Meshes, Study
from hespas.tasks.pipelining.options import PipelineOptions

_MOST = 1_000_000
_OF_STAGES = frozenset(option.name for option in options_in(PipelineOptions))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One configuration; ``mesh`` None is the model's own."""

    values: Mapping[str, Scalar]
    settings: Mapping[str, Scalar]
    mesh: tuple[tuple[str, int], ...] | None

    def to_dict(self) -> dict[str, object]:
        """Return the candidate as tables show it."""
        members: dict[str, object] = dict(self.values)
        if self.mesh is not None:
            members[MESH] = dict(self.mesh)
        if self.settings:
            members[SETTINGS] = dict(self.settings)
        return members

    @cached_property
    def digest(self) -> str:
        """The digest that identifies the candidate in any study."""
        return sha256(canonical(self.to_dict())).hexdigest()

    def options(self) -> PredictOptions:
        """Return the options of its prediction, without axes of 1.

        One stage of a framework that keeps weights is named. Raises `ConfigError` for
        options that exclude each other.
        """
        options = known_keys()
        values = {options[key].name: option_value(key, value) for key, value in self.values.items()}
        if self.mesh is not None:
            kept = {PIPE} if _has_stages(self.values) else set[str]()
            axes = tuple(axis for axis in self.mesh if axis[1] > 1 or axis[0] in kept)
            axes = axes or self.mesh[:1]
            values[MESH] = MeshAxes(axes=axes)
        if self.settings:
            values[SETTINGS] = {name: scalar_text(value) for name, value in self.settings.items()}
        return with_framework(build(PredictOptions, values))

    def fields(self) -> dict[str, Value]:
        """Return the constraint fields that need no prediction."""
        fields: dict[str, Value] = {**self.values}
        fields |= {f"{SETTINGS}.{name}": value for name, value in self.settings.items()}
        fields |= {f"{MESH}.{name}": size for name, size in self.mesh or ()}
        system = self.system
        if system is not None:
            fields |= {"cluster.devices": system.device_count, "devices": system.device_count}
            fields["cluster.part"] = system.part
        return fields

    @property
    def system(self) -> System | None:
        """The cluster, if there is one."""
        name = self.values.get(CLUSTER)
        return None if name is None else system_named(str(name))


def _has_stages(values: Mapping[str, Scalar]) -> bool:
    """Return whether one stage is a pipeline's, as its weights are whole."""
    name = values.get(SOFTWARE)
    return name is not None and software_named(str(name)).keeps_weights


def candidate_of(members: Mapping[str, object]) -> Candidate:
    """Return the candidate that `Candidate.to_dict` wrote."""
    mesh = cast("Mapping[str, int] | None", members.get(MESH))
    values = {name: value for name, value in members.items() if name not in {MESH, SETTINGS}}
    return Candidate(
        values=cast("Mapping[str, Scalar]", values),
        settings=cast("Mapping[str, Scalar]", members.get(SETTINGS, {})),
        mesh=None if mesh is None else tuple(mesh.items()),
    )


def system_named(name: str) -> System:
    """Return a cluster by name or directory.

    A directory is read again only when it changes.
    """
    directory = Path(name)
    if not directory.is_dir():
        return _system(name, (0, 0))
    return _system(directory, change_of(directory))


@cache
def _system(name: str | Path, change: tuple[int, int]) -> System:  # noqa: ARG001 - of the key
    return find_system(name)


def candidates_of(study: Study) -> tuple[Candidate, ...]:
    """Return the candidates of a study, in order.

    Raises `ConfigError` if there are none or too many, and errors of reading a cluster.

    >>> from hespas.study.study import study_of
    >>> study = study_of({"model": "llama3-8b", "cluster": "8xH100_80GB",
    ...                   "mesh": {"fsdp": "auto", "tp": [1, 2, 4]}, "where": "mesh.tp > 1"})
    >>> [candidate.mesh for candidate in candidates_of(study)]
    [(('fsdp', 4), ('tp', 2)), (('fsdp', 2), ('tp', 4))]
    """
    accepted: list[Candidate] = []
    combined = 0
    axes = {f"{MESH}.{axis.name}": 1 for meshes in study.meshes for axis in meshes}
    for candidate in _combinations(study):
        combined += 1
        # An axis that a mesh lacks divides nothing.
        if study.where.holds({**axes, **candidate.fields()}) is not False:
            accepted.append(candidate)
        if len(accepted) > _MOST:
            raise ConfigError(
                f"the study has more than {_MOST} candidates",
                location=study.location,
                hint="list fewer values",
            )
    if not combined:
        raise ConfigError(
            "the study has no candidates: no mesh has as many devices as a cluster",
            location=study.location,
            hint="give an axis of the mesh auto, or list other sizes",
        )
    if not accepted:
        raise ConfigError(
            f"the study has no candidates: where refuses all {combined}",
            location=study.location,
            hint=f"loosen it: {study.where.text}",
        )
    unique: dict[str, Candidate] = {}
    for candidate in accepted:
        unique.setdefault(candidate.digest, candidate)
    return tuple(unique.values())


def _combinations(study: Study) -> Iterator[Candidate]:
    keys = [key for key in known_keys() if key in study.search]
    for choice in product(*(study.search[key] for key in keys)):
        values = dict(zip(keys, choice, strict=True))
        for settings in product(*study.settings.values()):
            named_settings = dict(zip(study.settings, settings, strict=True))
            for mesh in _meshes(study, values):
                stages = None if mesh is None else dict(mesh).get(PIPE)
                # Options of a pipeline have no effect on one stage, but for a framework's.
                is_one = stages == 1 and not _has_stages(values)
                of_one = {key: value for key, value in values.items() if key not in _OF_STAGES}
                used = of_one if is_one else values
                yield Candidate(values=used, settings=named_settings, mesh=mesh)


def _meshes(
    study: Study, values: Mapping[str, Scalar]
) -> Iterator[tuple[tuple[str, int], ...] | None]:
    if not study.meshes:
        yield None
        return
    cluster = values.get(CLUSTER)
    devices = None if cluster is None else system_named(str(cluster)).device_count
    for meshes in study.meshes:
        yield from meshes_of(meshes, devices, location=study.location)


def meshes_of(
    meshes: Meshes, devices: int | None, *, location: str = ""
) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield the meshes of a pattern with this many devices.

    Axes with ``auto`` take all factorisations.
    """
    free = [axis.name for axis in meshes if axis.sizes is None]
    if free and devices is None:
        raise ConfigError(
            f"$.{MESH}.{free[0]} is auto, and there is no cluster to fit",
            location=location,
            hint="add cluster, as in cluster: 64xH100_80GB",
        )
    axis_choices = [
        [(axis.name, size) for size in axis.sizes or ()] for axis in meshes if axis.sizes
    ]
    for choice in product(*axis_choices):
        pinned = dict(choice)
        if devices is None:
            yield tuple((axis.name, pinned[axis.name]) for axis in meshes)
            continue
        free_devices, remainder = divmod(devices, prod(pinned.values()))
        if remainder or (not free and free_devices != 1):
            continue
        for sizes in factorisations(free_devices, len(free)) if free else [()]:
            every = {**pinned, **dict(zip(free, sizes, strict=True))}
            yield tuple((axis.name, every[axis.name]) for axis in meshes)


def factorisations(number: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield the ordered factorisations of a number into ``count`` factors.

    >>> list(factorisations(4, 2))
    [(1, 4), (2, 2), (4, 1)]
    """
    if count == 1:
        yield (number,)
        return
    for first in (divisor for divisor in range(1, number + 1) if number % divisor == 0):
        for other_factors in factorisations(number // first, count - 1):
            yield (first, *other_factors)


GENERATION = 16
_MOST_ASKED = 64
"""The most trials of a sampler for each new candidate."""
Point = tuple[Scalar, ...]


@dataclass(slots=True, kw_only=True)
class Sampler:
    """Chooses candidates by their numbers; made by `sampler_of`."""

    goal: Goal
    optuna: Any
    names: tuple[str, ...]
    values: tuple[tuple[Scalar, ...], ...]
    numbers: Mapping[Point, int]
    values_of: dict[int, tuple[float, ...]] = field(default_factory=dict[int, tuple[float, ...]])
    _open: dict[int, Any] = field(default_factory=dict[int, Any])

    def ask(self, count: int) -> list[int]:
        """Return up to ``count`` new candidates.

        They are the sampler's, and the first where it has none.
        """
        numbers: list[int] = []
        for _ in range(_MOST_ASKED * count):
            if len(numbers) == count:
                break
            trial = self.optuna.ask()
            number = self.numbers.get(self._point(trial))
            if number is None or number in self._open:
                self._tell(trial, None)
            elif number in self.values_of:
                self._tell(trial, self.values_of[number])
            else:
                self._open[number] = trial
                numbers.append(number)
        for number in sorted(self.numbers.values()):
            if len(numbers) == count:
                break
            if number not in self.values_of and number not in self._open:
                self._open[number] = None
                numbers.append(number)
        return numbers

    def _point(self, trial: Any) -> Point:
        point: list[Scalar] = []
        for name, values in zip(self.names, self.values, strict=True):
            if _is_ordered(values):
                place: int = trial.suggest_int(name, 0, len(values) - 1)
                point.append(values[place])
            else:
                point.append(cast("Scalar", trial.suggest_categorical(name, values)))
        return tuple(point)

    def tell(self, number: int, figures: Mapping[str, float | None] | None) -> None:
        """Report a candidate's figures to the sampler; None excludes it."""
        count = len(self.goal.metrics)
        values = (inf,) * count if figures is None else self.goal.keys(figures)
        self.values_of[number] = values
        trial = self._open.pop(number)
        if trial is not None:
            self._tell(trial, values)

    def _tell(self, trial: Any, values: tuple[float, ...] | None) -> None:
        if values is None:
            self.optuna.tell(trial, state=import_module("optuna.trial").TrialState.FAIL)
        else:
            self.optuna.tell(trial, [min(value, 1e300) for value in values])


def sampler_of(candidates: Mapping[int, Candidate], goal: Goal, *, seed: int) -> Sampler:
    """Return a sampler of candidates; raise `ExtraMissingError` without Optuna."""
    try:
        # Optuna is an extra: few studies are so large.
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
        values=tuple(_in_order(tuple(listed)) for listed in values),
        numbers=numbers,
    )


def _is_ordered(values: Sequence[Scalar]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _in_order(values: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    return tuple(sorted(values, key=float)) if _is_ordered(values) else values


def _points(candidates: Mapping[int, Candidate]) -> tuple[tuple[str, ...], dict[Point, int]]:
    """Return the varying keys, and each candidate's values.

    An axis that follows from the others is left out.
    """
    rows = {number: _flatten(candidate) for number, candidate in candidates.items()}
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    varying = [name for name in names if len({row.get(name, 1) for row in rows.values()}) > 1]
    axes = [name for name in varying if name.startswith(f"{MESH}.")]
    for left_out in axes:
        fewer = tuple(name for name in varying if name != left_out)
        points = _numbers_by_point(rows, fewer)
        if len(points) == len(rows):
            return fewer, points
    return tuple(varying), _numbers_by_point(rows, tuple(varying))


def _numbers_by_point(
    rows: Mapping[int, Mapping[str, Scalar]], names: tuple[str, ...]
) -> dict[Point, int]:
    # An axis that a mesh lacks divides nothing.
    return {tuple(row.get(name, 1) for name in names): number for number, row in rows.items()}


def _flatten(candidate: Candidate) -> dict[str, Scalar]:
    values: dict[str, Scalar] = {}
    for name, value in candidate.to_dict().items():
        if name in {MESH, SETTINGS}:
            inside = cast("Mapping[str, Scalar]", value)
            values |= {f"{name}.{key}": inner for key, inner in inside.items()}
        else:
            values[name] = cast("Scalar", value)
    return values
