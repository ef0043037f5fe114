"""Fields of options dataclasses: what flags, configuration keys, help texts and checks derive from.

An option is declared once, as a field of a frozen dataclass:

>>> @dataclass(frozen=True, kw_only=True)
... class Painting:
...     layers: int = declare(Option(help="How many coats.", key="coats"), default=1)
>>> [(each.name, each.key, each.help_text) for each in options_in(Painting)]
[('layers', 'coats', 'How many coats (default: 1).')]
>>> build(Painting, {"layers": 2})
Painting(layers=2)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from hespas.base.suggest import choice, suggestion
from hespas.errors import ConfigError
from hespas.errors import option as mark


class Group(Enum):
    """The headings of help texts, in the order in which they are shown.

    ``MAIN`` are those that most users need. A dataclass of options names its group as ``GROUP``; a
    field that stands elsewhere declares its own (`hespas.base.fields.Option`).

    >>> [group.value for group in Group][:2]
    ['Options', 'Workload']
    """

    MAIN = "Options"
    WORKLOAD = "Workload"
    MODEL = "Options of models"
    PIPELINE = "Pipelines"
    MAXTEXT = "Options of MaxText"
    COMPILATION = "Compilation"
    DIVISION = "Dividing the program"
    ESTIMATION = "Estimation"
    NETWORK = "Cluster and network"
    ENGINE = "Another simulator"
    LONG_RUN = "A long run"
    CACHES = "Caches and limits"
    OUTPUT = "Output"
    LOGGING = "Logging and help"


_T = TypeVar("_T")
_METADATA = "option"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What a field declares about its option.

    ``name`` is the main flag without dashes, and what `hespas.errors.option` marks in errors; by
    default it is the field's name. ``aliases`` are further flags. ``key`` is the key of the
    configuration file, with dots between nested keys; ``form`` is the type that the file may hold
    there, by default the field's. ``parse`` turns the text of a flag into a value; without it the
    field's type does. ``needs`` names the option without which this one has no effect; of the
    options with the same ``one_of`` at most one may be given. A ``repeats`` option may be given
    several times, a ``negatable`` switch has a ``--no-`` form, or one that ``negated`` names; an
    option without ``has_flag`` is for the API and the configuration alone. ``default_text``
    describes a default that is not a plain value. An option that ``is_hidden`` is left
    out of the help.

    ``default`` and ``kinds``, the types that the field may hold, are read from the field.
    """

    help: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    key: str = ""
    form: object = None
    parse: Callable[[Any], object] | None = None
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    default_text: str = ""
    needs: str = ""
    one_of: str = ""
    repeats: bool = False
    negatable: bool = False
    negated: str = ""
    has_flag: bool = True
    group: Group | None = None
    is_hidden: bool = False
    default: object = None
    kinds: tuple[type, ...] = ()

    @property
    def help_text(self) -> str:
        """The help with the default."""
        shown = self.default.value if isinstance(self.default, Enum) else self.default
        text = self.help.rstrip(".")
        if self.default_text or not (shown is None or isinstance(shown, bool | Mapping)):
            text += f" (default: {self.default_text or shown})"
        return f"{text}."

    def value(self, raw: object) -> object:
        """Return the value of what a flag or a configuration gives.

        Raises `ConfigError` for what the option doesn't take.
        """
        if self.parse is not None and isinstance(raw, str | tuple):
            return self.parse(raw)
        enum = next((kind for kind in self.kinds if issubclass(kind, Enum)), None)
        if enum is not None and isinstance(raw, str):
            return choice(raw, enum, what=mark(self.name))
        if Path in self.kinds and str not in self.kinds and isinstance(raw, str):
            return Path(raw)
        return raw


def declare(option: Option, *, default: Any = None) -> Any:
    """Return the dataclass field of an option; a callable ``default`` makes a fresh value."""
    metadata = {_METADATA: option}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def option_of(field: dataclasses.Field[Any]) -> Option | None:
    """Return the option that a field declares, as it is written there; None for other fields."""
    declared = field.metadata.get(_METADATA)
    return declared if isinstance(declared, Option) else None


@cache
def options_in(section: type) -> tuple[Option, ...]:
    """Return the options of a dataclass and of the dataclasses nested in it, in order."""
    return tuple(_options_in(section))


def _options_in(section: type) -> Iterator[Option]:
    types = get_type_hints(section)
    group: Group | None = getattr(section, "GROUP", None)
    for field in dataclasses.fields(section):
        declared = field.metadata.get(_METADATA)
        if isinstance(declared, Option):
            completed = _completed(declared, field, types[field.name])
            yield replace(completed, group=completed.group or group)
        elif is_dataclass(types[field.name]):
            yield from options_in(types[field.name])


def _completed(declared: Option, field: dataclasses.Field[Any], form: object) -> Option:
    """Return the option with what its field says."""
    union = get_args(form) if get_origin(form) in (Union, UnionType) else (form,)
    members = [member for member in union if member is not NoneType]
    origins = [get_origin(member) or member for member in members]
    kinds = tuple(origin for origin in origins if isinstance(origin, type))
    default = None if field.default is dataclasses.MISSING else field.default
    enum = next((kind for kind in kinds if issubclass(kind, Enum)), None)
    values = () if enum is None else tuple(str(each.value) for each in enum)
    return replace(
        declared,
        name=declared.name or field.name,
        form=members[0] if declared.form is None else declared.form,
        choices=declared.choices or values,
        default=default,
        kinds=kinds,
    )


def changed(values: object) -> tuple[str, ...]:
    """Return the names of the options of a dataclass that don't have their default.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Painting:
    ...     layers: int = declare(Option(help="How many coats."), default=1)
    ...     colour: str = declare(Option(help="Which colour."), default="white")
    >>> changed(Painting(layers=2))
    ('layers',)
    """
    kind = type(values)
    default, fields = kind(), dataclasses.fields(cast("Any", kind))
    return tuple(
        field.metadata[_METADATA].name or field.name
        for field in fields
        if _METADATA in field.metadata
        and getattr(values, field.name) != getattr(default, field.name)
    )


@cache
def _types_of(section: type) -> dict[str, object]:
    return get_type_hints(section)


def build(section: type[_T], values: Mapping[str, object]) -> _T:
    """Return the dataclass with ``values``, by the names of options; others have their defaults.

    Raises what the dataclasses raise for values that contradict each other.
    """
    types = _types_of(section)
    arguments: dict[str, object] = {}
    for field in dataclasses.fields(cast("Any", section)):
        declared = field.metadata.get(_METADATA)
        if isinstance(declared, Option):
            name = declared.name or field.name
            if name in values:
                arguments[field.name] = values[name]
        elif is_dataclass(types[field.name]):
            arguments[field.name] = build(cast("type[object]", types[field.name]), values)
    return section(**arguments)


def overridden(values: _T, overrides: Mapping[str, object]) -> _T:
    """Return options with fields replaced, those of nested dataclasses included.

    ``overrides`` are by the names of fields; None leaves a field as it is, and texts are read as
    those of flags. Raises `ConfigError` for a name that no field has, for a value of another type,
    and what the dataclasses raise for values that contradict each other.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Painting:
    ...     layers: int = declare(Option(help="How many coats."), default=1)
    >>> overridden(Painting(), {"layers": 3})
    Painting(layers=3)
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    known = _fields_of(type(values))
    for name in given:
        if name not in known:
            raise ConfigError(f"there is no option {name}", hint=suggestion(name, list(known)))
    return _overridden(values, {name: _typed(known[name], raw) for name, raw in given.items()})


@cache
def _fields_of(section: type) -> dict[str, Option]:
    """Return the options of a dataclass and those nested in it, by the names of their fields."""
    types = _types_of(section)
    found: dict[str, Option] = {}
    for field in dataclasses.fields(section):
        declared = option_of(field)
        if declared is not None:
            found[field.name] = _completed(declared, field, types[field.name])
        elif is_dataclass(types[field.name]):
            found |= _fields_of(cast("type", types[field.name]))
    return found


def _typed(option: Option, raw: object) -> object:
    if option.repeats and isinstance(raw, str | list):
        raw = (raw,) if isinstance(raw, str) else tuple(cast("list[object]", raw))
    value = option.value(raw)
    kinds = (*option.kinds, int) if float in option.kinds else option.kinds
    is_switch = isinstance(value, bool) and bool not in kinds and object not in kinds
    if kinds and (is_switch or not isinstance(value, kinds)):
        expected = " or ".join(kind.__name__ for kind in option.kinds)
        raise ConfigError(f"{mark(option.name)} is {raw!r}", hint=f"give {expected}")
    return value


def _overridden(values: _T, overrides: Mapping[str, object]) -> _T:
    changes: dict[str, object] = {}
    for field in dataclasses.fields(cast("Any", values)):
        old = getattr(values, field.name)
        if option_of(field) is not None:
            if field.name in overrides:
                changes[field.name] = overrides[field.name]
        elif is_dataclass(old):
            new = _overridden(old, overrides)
            if new is not old:
                changes[field.name] = new
    return replace(cast("Any", values), **changes) if changes else values


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Values from one source, by the names of options: the flags, or a configuration.

    ``location`` names the source in errors; it is empty for flags.
    """

    values: Mapping[str, object]
    location: str = ""


def joined(layers: Sequence[Layer], options: Sequence[Option]) -> dict[str, object]:
    """Return the values of all layers; the first that gives an option decides.

    Of options that exclude each other (``one_of``), the first layer that gives any decides all.
    """
    values: dict[str, object] = {}
    for layer in layers:
        groups = {each.one_of for each in options if each.one_of and each.name in values}
        for each in options:
            if each.name in layer.values and each.one_of not in groups:
                values.setdefault(each.name, layer.values[each.name])
    return values


def check_effects(layers: Sequence[Layer], options: Sequence[Option]) -> None:
    """Raise `ConfigError` where a value that one of ``options`` is given would have no effect."""
    given = {name for layer in layers for name in layer.values}
    groups = {each.name: each.one_of for each in options if each.one_of}
    # Options that exclude each other stand in for each other.
    present = {groups.get(name, name) for name in given}
    for layer in layers:
        first_of: dict[str, str] = {}
        for each in options:
            if each.name not in layer.values:
                continue
            if each.needs and groups.get(each.needs, each.needs) not in present:
                raise ConfigError(
                    f"{mark(each.name)} has no effect without {mark(each.needs)}",
                    location=layer.location,
                    hint=f"give {mark(each.needs)}",
                )
            if each.one_of and first_of.setdefault(each.one_of, each.name) != each.name:
                raise ConfigError(
                    f"{mark(each.name)} has no effect with {mark(first_of[each.one_of])}",
                    location=layer.location,
                    hint="drop one",
                )
