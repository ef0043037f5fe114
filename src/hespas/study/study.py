"""A study: its keys and goal, read from YAML.

A list is searched, a scalar is pinned, for every option of a prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import cast

from hespas.base.decode import decode, read_yaml
from hespas.base.figures import Count, CountOrZero, Positive
from hespas.base.frozen import frozen
from hespas.base.suggest import choice, suggestion
from hespas.errors import ConfigError
from hespas.models.model import parse_mesh
from hespas.models.placement import ORDER
from hespas.study.goal import (
    EVERYTHING,
    FASTEST,
    FIGURES,
    GOALS,
    Constraint,
    Direction,
    Goal,
    Price,
    read_constraint,
    read_goal,
    read_prices,
)
from hespas.study.keys import (
    MESH,
    SETTINGS,
    SOFTWARE,
    WORKLOAD,
    Scalar,
    key_schema,
    known_keys,
    option_named,
    option_value,
)

AUTO = "auto"
DEFAULT_COMPILED = 8
"""The number of candidates that are compiled unless a study says otherwise."""
_OWN = ("title", MESH, SETTINGS, "where", "goal", "budget", "fidelity", "sampling", "prices")


class StudyFidelity(Enum):
    """The fidelity at which candidates are predicted.

    ``AUTO`` screens all by a model of the compiler and compiles the best, if a compiler is
    installed; ``COMPILED`` compiles all, ``FUSED``, ``LIBRARY`` and ``EXPORTED`` none. Candidates
    with ``software`` have its libraries' kernels, and are not compiled.
    """

    AUTO = "auto"
    COMPILED = "compiled"
    FUSED = "fused"
    LIBRARY = "library"
    EXPORTED = "exported"


@frozen
class Axis:
    """A mesh axis with sizes; None for all that fit."""

    name: str
    sizes: tuple[int, ...] | None


Meshes = tuple[Axis, ...]
"""Meshes with the same axes, major first."""


@frozen
class Budget:
    """The limits of a study's work; None is no limit.

    ``evaluations`` counts the candidates that are predicted without a compiler, ``compile`` those
    that are compiled then: what can't be among as many of the best is not predicted. After
    ``minutes`` no evaluation is started.
    """

    evaluations: Count | None = None
    compile: Count | None = None
    minutes: Positive | None = None


@frozen
class Sampling:
    """The number of candidates to sample beyond, and the seed."""

    past: Count
    seed: CountOrZero = 0


@frozen
class Study:
    """The searched keys and the goal of a study.

    ``search`` has the values of each key, one if it is pinned; ``settings`` those of further
    settings of the model (``set``). ``meshes`` are patterns of meshes, none for the model's own.
    Without ``sampling`` all candidates are predicted. Raises `ConfigError` for unknown keys and
    values, for a study without a model, and for missing prices that a goal needs.

    >>> study = Study(
    ...     search={"model": ("llama3-8b",), "cluster": ("8xH100_80GB", "16xH100_80GB")}
    ... )
    >>> study.goal.text, study.searched
    ('minimise step_time_s', ('cluster',))
    """

    search: Mapping[str, tuple[Scalar, ...]]
    meshes: tuple[Meshes, ...] = ()
    settings: Mapping[str, tuple[Scalar, ...]] = field(
        default_factory=dict[str, tuple[Scalar, ...]]
    )
    where: Constraint = EVERYTHING
    goal: Goal = FASTEST
    budget: Budget = Budget()
    fidelity: StudyFidelity = StudyFidelity.AUTO
    sampling: Sampling | None = None
    prices: tuple[Price, ...] = ()
    title: str = ""
    location: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if WORKLOAD not in self.search:
            raise ConfigError(
                "the study has no model",
                location=self.location,
                hint="add model, as in model: llama3-8b",
            )
        for key, values in self.search.items():
            option_named(key, location=self.location)
            for value in values:
                option_value(key, value, location=self.location)
        for key, values in (*self.search.items(), *self.settings.items()):
            _check_values(key, values, self.location)
        if SOFTWARE in self.search and self.fidelity is not StudyFidelity.AUTO:
            raise ConfigError(
                f"software names kernels of libraries, and fidelity is {self.fidelity.value}",
                location=self.location,
                hint="drop one of them",
            )
        if self.sampling is not None and self.budget.evaluations is None:
            raise ConfigError(
                "the study is sampled, and nothing says how many candidates are predicted",
                location=self.location,
                hint="add budget: {evaluations: 200}",
            )
        needed = [(name, key) for name, _ in self.goal.metrics for key in FIGURES[name].needs]
        for name, key in needed:
            if not (self.prices if key == "prices" else key in self.search):
                verb, hint = _NEEDED[key]
                raise ConfigError(
                    f"the goal is {name}, and there {verb} {key}", location=self.location, hint=hint
                )
        self._check_axes()
        self.where.check(dict.fromkeys(self.fields), location=self.location)

    def _check_axes(self) -> None:
        axes = dict.fromkeys(axis.name for meshes in self.meshes for axis in meshes)
        for name in self.where.fields:
            space, _, axis = name.partition(".")
            if space == MESH and axis not in axes:
                raise ConfigError(
                    f"where names {name!r}, and mesh has no axis {axis!r}",
                    location=self.location,
                    hint=suggestion(axis, axes) if axes else "add mesh, as in mesh: {fsdp: auto}",
                )

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that constraints can name."""
        axes = [f"{MESH}.{axis.name}" for meshes in self.meshes for axis in meshes]
        settings = [f"{SETTINGS}.{name}" for name in self.settings]
        names = (*known_keys(), *axes, *settings, *CLUSTER_FIELDS, *RESULT_FIELDS, *GOALS)
        return tuple(dict.fromkeys(names))

    @property
    def searched(self) -> tuple[str, ...]:
        """The keys, and perhaps meshes, with several values."""
        keys = [key for key, values in self.search.items() if len(values) > 1]
        keys += [f"{SETTINGS}.{key}" for key, values in self.settings.items() if len(values) > 1]
        is_one = len(self.meshes) < 2 and all(
            axis.sizes is not None and len(axis.sizes) == 1
            for pattern in self.meshes
            for axis in pattern
        )
        return tuple(keys if is_one else [*keys, MESH])

    @property
    def compiled_count(self) -> int:
        """The most candidates that are compiled: the best ones."""
        return self.budget.compile or DEFAULT_COMPILED

    def to_dict(self) -> dict[str, object]:
        """Return the study as a file writes it."""
        members: dict[str, object] = {"title": self.title} if self.title else {}
        members |= {
            key: _scalar_or_list(self.search[key]) for key in known_keys() if key in self.search
        }
        if self.meshes:
            members[MESH] = [
                [[axis.name, AUTO if axis.sizes is None else list(axis.sizes)] for axis in meshes]
                for meshes in self.meshes
            ]
        if self.settings:
            members[SETTINGS] = {
                name: _scalar_or_list(listed) for name, listed in self.settings.items()
            }
        if self.where.text:
            members["where"] = self.where.text
        budget = {
            name: getattr(self.budget, name) for name in ("evaluations", "compile", "minutes")
        }
        members |= {"goal": self.goal.to_dict(), "fidelity": self.fidelity.value}
        if any(budget.values()):
            members["budget"] = {name: value for name, value in budget.items() if value is not None}
        if self.sampling is not None:
            members["sampling"] = {"past": self.sampling.past, "seed": self.sampling.seed}
        if self.prices:
            members["prices"] = [price.to_dict() for price in self.prices]
        return members


_NEEDED = {
    "prices": ("are no", "add prices: a file with usd_per_device_hour and source of each part"),
    "goodput": ("is no", "add goodput: true"),
    "variation": ("is no", "add variation: GPU_SC22"),
    "run_days": ("is no", "add run_days: 54, and goodput: true"),
    "train_tokens": ("is no", "add train_tokens: 15T, and goodput: true"),
}
"""The needs of a goal: how an error states their lack, and the remedy."""
CLUSTER_FIELDS = ("cluster.devices", "cluster.part")
RESULT_FIELDS = ("memory.fits", "memory.peak_bytes", "memory.capacity_bytes", "memory.free_bytes")


def _check_values(key: str, values: tuple[Scalar, ...], location: str) -> None:
    if not values:
        raise ConfigError(f"$.{key} lists nothing", location=location, hint="give a value")
    twice = next((value for index, value in enumerate(values) if value in values[:index]), None)
    if twice is not None:
        raise ConfigError(f"$.{key} lists {twice} twice", location=location, hint="keep one")


def _scalar_or_list(values: tuple[Scalar, ...]) -> Scalar | list[Scalar]:
    return values[0] if len(values) == 1 else list(values)


def read_study(path: Path) -> Study:
    """Read a study's YAML file.

    Its paths are relative to its directory. Raises `ConfigError` for a file that is no study.
    """
    return study_of(read_yaml(path), location=str(path), home=path.parent)


def study_of(description: object, *, location: str = "", home: Path | None = None) -> Study:
    """Return the study that plain values describe.

    >>> study_of({"model": "llama3-8b", "cluster": "8xA100_80GB", "mesh": {"tp": "auto"}}).searched
    ('mesh',)
    >>> study_of({"model": "llama3-8b", "clusters": ["8xH100_80GB"]})
    Traceback (most recent call last):
        ...
    hespas.errors.ConfigError: there is no key 'clusters'; did you mean 'cluster'?
    """
    if not isinstance(description, Mapping):
        raise ConfigError(
            "the study is no mapping of keys", location=location, hint="begin with model: NAME"
        )
    values = cast("Mapping[object, object]", description)
    for key in values:
        if key not in _OWN and key not in known_keys():
            raise ConfigError(
                f"there is no key {key!r}",
                location=location,
                hint=suggestion(str(key), (*known_keys(), *_OWN)),
            )
    search = {
        key: _scalars(values[key], f"$.{key}", location) for key in known_keys() if key in values
    }
    fidelity = decode(values.get("fidelity", AUTO), str, location=location, json_path="$.fidelity")
    where = values.get("where", "")
    return Study(
        search=search,
        meshes=_meshes(values.get(MESH, ()), location),
        settings=_settings(values.get(SETTINGS, {}), location),
        where=read_constraint(_where(where, location), location=location),
        goal=read_goal(values["goal"], location=location) if "goal" in values else FASTEST,
        budget=decode(values.get("budget", {}), Budget, location=location, json_path="$.budget"),
        fidelity=choice(fidelity, StudyFidelity, subject="$.fidelity"),
        sampling=decode(values["sampling"], Sampling, location=location, json_path="$.sampling")
        if "sampling" in values
        else None,
        prices=read_prices(values["prices"], location=location, home=home)
        if "prices" in values
        else (),
        title=decode(values.get("title", ""), str, location=location, json_path="$.title"),
        location=location,
    )


def _where(value: object, location: str) -> str:
    if isinstance(value, list):
        items = cast("list[object]", value)
        parts = decode(items, list[str], location=location, json_path="$.where")
        return " and ".join(f"({part})" for part in parts)
    return decode(value, str, location=location, json_path="$.where")


def listed(value: object) -> list[object]:
    """Return a key's values, from a list or a scalar."""
    return cast("list[object]", value) if isinstance(value, list) else [value]


def _scalars(value: object, where: str, location: str) -> tuple[Scalar, ...]:
    items = listed(value)
    for item in items:
        if not isinstance(item, str | int | float):
            raise ConfigError(
                f"{where} is no value, nor a list of values",
                location=location,
                hint="give a text, a number, true or false, or a list of them",
            )
    return tuple(cast("list[Scalar]", items))


def _settings(value: object, location: str) -> dict[str, tuple[Scalar, ...]]:
    entries = decode(value, dict[str, object], location=location, json_path=f"$.{SETTINGS}")
    return {
        name: _scalars(value, f"$.{SETTINGS}.{name}", location) for name, value in entries.items()
    }


def _meshes(value: object, location: str) -> tuple[Meshes, ...]:
    """Read meshes from a mapping, ``--mesh`` text, or list."""
    if isinstance(value, list | tuple):
        patterns = cast("list[object]", value)
        return tuple(meshes for pattern in patterns for meshes in _meshes_of(pattern, location))
    return tuple(_meshes_of(value, location))


def _meshes_of(value: object, location: str) -> Iterator[Meshes]:
    match value:
        case str():
            axes = parse_mesh(value).axes
            yield tuple(Axis(name=name, sizes=(size,)) for name, size in axes)
        case Mapping():
            entries = cast("Mapping[object, object]", value)
            axes = [_axis(str(name), sizes, location) for name, sizes in entries.items()]
            yield tuple(sorted(axes, key=lambda axis: _place(axis.name)))
        case list():  # as `Study.to_dict` writes it
            items = cast("list[object]", value)
            pairs = decode(
                items, list[tuple[str, object]], location=location, json_path=f"$.{MESH}"
            )
            yield tuple(_axis(name, sizes, location) for name, sizes in pairs)
        case _:
            raise ConfigError(
                f"$.{MESH} is no mesh",
                location=location,
                hint="write it as in {fsdp: auto, tp: [1, 2, 4, 8]} or fsdp=8,tp=4",
            )


def _place(name: str) -> float:
    inner = len(ORDER) - 1.5
    return ORDER.index(name) if name in ORDER else inner


def _axis(name: str, value: object, location: str) -> Axis:
    if value == AUTO:
        return Axis(name=name, sizes=None)
    sizes = tuple(cast("list[object]", value)) if isinstance(value, list) else (value,)
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(
                f"$.{MESH}.{name} is {size!r}",
                location=location,
                hint="give auto, a number of 1 or more, or a list of numbers",
            )
    _check_values(f"{MESH}.{name}", cast("tuple[int, ...]", sizes), location)
    return Axis(name=name, sizes=cast("tuple[int, ...]", sizes))


_COUNT: Mapping[str, object] = {"type": "integer", "minimum": 1}
_POSITIVE: Mapping[str, object] = {"type": "number", "exclusiveMinimum": 0}


def study_schema() -> dict[str, object]:
    """Return the JSON Schema (2020-12) of studies."""
    keys = {
        key: {**_value_or_list(key_schema(key)), "description": option.help}
        for key, option in known_keys().items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A study of hespas: a list is searched, a scalar is pinned",
        "type": "object",
        "properties": {**keys, **_own_keys()},
        "required": [WORKLOAD],
        "additionalProperties": False,
    }


def _value_or_list(value: Mapping[str, object]) -> dict[str, object]:
    array = {"type": "array", "items": value, "minItems": 1, "uniqueItems": True}
    return {"anyOf": [value, array]}


def _own_keys() -> dict[str, object]:
    figure = {"enum": list(GOALS)}
    sizes = {"anyOf": [{"enum": [AUTO]}, *_or_list(_COUNT)]}
    mesh = {"anyOf": [{"type": "object", "additionalProperties": sizes}, {"type": "string"}]}
    plain = {"anyOf": [{"type": kind} for kind in ("string", "number", "boolean")]}
    text = {"type": "string", "minLength": 1}
    price = {"part": text, "usd_per_device_hour": _POSITIVE, "source": text}
    goals: list[dict[str, object]] = [{way.value: figure} for way in Direction]
    goals.append({"pareto": {"type": "array", "items": figure, "minItems": 2}})
    return {
        "title": {"type": "string", "description": "What the study is about."},
        MESH: {
            "anyOf": _or_list(mesh),
            "description": "Sizes of the axes; auto is every factorisation that fits the cluster.",
        },
        SETTINGS: {
            "type": "object",
            "additionalProperties": _value_or_list(plain),
            "description": "Further settings of the model (hespas export --list shows them).",
        },
        "where": {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            "description": "What candidates have to satisfy, as in memory.fits and mesh.tp <= 8.",
        },
        "goal": {"anyOf": [_object_schema(value, required=True) for value in goals]},
        "budget": _object_schema({"evaluations": _COUNT, "compile": _COUNT, "minutes": _POSITIVE}),
        "fidelity": {"enum": [value.value for value in StudyFidelity]},
        "sampling": {
            **_object_schema({"past": _COUNT, "seed": {"type": "integer", "minimum": 0}}),
            "required": ["past"],
            "description": "Past how many candidates Optuna chooses those that are predicted.",
        },
        "prices": {
            "anyOf": [text, {"type": "array", "items": _object_schema(price, required=True)}],
            "description": "A file of prices, or a list of them, each with its source.",
        },
    }


def _or_list(value: Mapping[str, object]) -> list[object]:
    return [value, {"type": "array", "items": value, "minItems": 1}]


def _object_schema(
    properties: Mapping[str, object], *, required: bool = False
) -> dict[str, object]:
    schema: dict[str, object] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(properties)
    return {**schema, "additionalProperties": False}
