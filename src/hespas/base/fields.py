"""Fields of options dataclasses: what flags, configuration keys, help texts and checks derive from.

An option is declared once, as a field of a frozen dataclass. It says what it applies to: where that
is not there, `refuse_unused` refuses it.

>>> MILK = Use(" on black coffee", "drop it, or add milk")
>>> @dataclass(frozen=True, kw_only=True)
... class Coffee:
...     cups: int = declare(help="How many cups.", key="cup_count", least=1, default=1)
...     froth: bool = declare(help="Froth the milk.", applies_to=(MILK,), default=False)
>>> [(each.name, each.key, each.help_text) for each in options_in(Coffee)][0]
('cups', 'cup_count', 'How many cups (default: 1).')
>>> build(Coffee, {"cups": 2})
Coffee(cups=2, froth=False)
>>> refuse_unused(Coffee(froth=True), {MILK: True})
Traceback (most recent call last):
    ...
hespas.errors.ConfigError: froth has no effect on black coffee; drop it, or add milk
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum
from functools import cache
from math import inf
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import Meta

from hespas.base.figures import USUAL_UNITS, Text
from hespas.base.suggest import choice, suggestion
from hespas.base.units import parse_quantity, parse_rate
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
    TORCH = "Options of PyTorch"
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
_P = ParamSpec("_P")
_METADATA = "option"


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """What options apply to; an option has no effect where none of it is there.

    ``lack`` completes the sentence "OPTION has no effect", with ``{}`` for what is known only then;
    ``remedy`` is the hint.
    """

    lack: str
    remedy: str = "drop it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What a field declares about its option.

    ``name`` is the main flag without dashes, and what `hespas.errors.option` marks in errors; by
    default it is the field's name. ``aliases`` are further flags. ``key`` is the key of the
    configuration file, with dots between nested keys. ``parse`` turns the text of a flag into a
    value, or it is a number in ``unit``; without both the field's type decides. A number is
    ``least`` or more, and with a unit alone more than 0. ``applies_to`` are all that must be there
    for the option to have an effect, after those of its dataclass (``APPLIES_TO``); ``needs`` names
    the option without which it has none; of the options with the same ``one_of`` at most one may be
    given. A ``repeats`` option may be given several times, a ``negatable`` switch has a ``--no-``
    form, or one that ``negated`` names; an option without ``has_flag`` is for the API and the
    configuration alone. ``default_text`` describes a default that is not a plain value. An option
    that ``is_hidden`` is left out of the help.

    ``default`` is a value, or a function that makes a fresh one. ``kinds``, the types that the
    field may hold, and ``form``, what the configuration may hold, are read from the field.
    """

    help: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    key: str = ""
    parse: Callable[[Any], object] | None = None
    unit: str | None = None
    least: int | None = None
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    default_text: str = ""
    applies_to: tuple[Use, ...] = ()
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
    form: object = None

    @property
    def help_text(self) -> str:
        """The help with the default."""
        shown = self.default.value if isinstance(self.default, Enum) else self.default
        text = self.help.rstrip(".")
        if self.default_text or not (shown is None or isinstance(shown, bool) or callable(shown)):
            text += f" (default: {self.default_text or shown})"
        return f"{text}."

    def value(self, raw: object) -> object:
        """Return the value of what a flag or a configuration gives.

        Raises `ConfigError` for what the option doesn't take.
        """
        if self.parse is not None and isinstance(raw, str | tuple):
            return self.parse(raw)
        if self.unit is not None and isinstance(raw, str):
            read = parse_rate if self.unit in USUAL_UNITS else parse_quantity
            number = read(raw, self.unit, location=mark(self.name))
            self.check(number, shown=repr(raw))
            return number
        enum = next((kind for kind in self.kinds if issubclass(kind, Enum)), None)
        if enum is not None and isinstance(raw, str):
            return choice(raw, enum, what=mark(self.name))
        if Path in self.kinds and str not in self.kinds and isinstance(raw, str):
            return Path(raw)
        return raw

    def check(self, value: object, *, shown: str = "") -> None:
        """Raise `ConfigError` for a number out of bounds; ``shown`` is its text."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return
        if self.least is not None:
            is_right, hint = self.least <= value < inf, f"give {self.least} or more"
        else:
            is_right, hint = self.unit is None or 0 < value < inf, "give more than 0"
        if not is_right:
            raise ConfigError(f"{mark(self.name)} is {shown or format(value, 'g')}", hint=hint)


def parse_pairs(texts: Iterable[str], *, name: str, form: str, alone: str = "") -> dict[str, str]:
    """Return the values of texts ``KEY=VALUE`` by their keys, each of which is given once.

    ``name`` is the option's, ``form`` how its texts are written. Where a value may stand without a
    key, for ``alone``, its key is empty.

    >>> parse_pairs(["layers=2", "sequence = 1024"], name="set", form="NAME=VALUE")
    {'layers': '2', 'sequence': '1024'}
    """
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals and alone:
            key, value = "", key
        elif not equals or not key:
            raise ConfigError(f"{mark(name)} is {text[:60]!r}", hint=f"write {form}")
        if key in pairs:
            raise ConfigError(f"{mark(name)} is given twice for {key or alone}", hint="keep one")
        pairs[key] = value
    return pairs


def _declaring(option: Callable[_P, Option]) -> Callable[_P, Any]:
    def field_of(*args: _P.args, **kwargs: _P.kwargs) -> Any:
        declared = option(*args, **kwargs)
        metadata = {_METADATA: declared}
        if callable(declared.default):
            return dataclasses.field(default_factory=declared.default, metadata=metadata)
        return dataclasses.field(default=declared.default, metadata=metadata)

    return field_of


declare = _declaring(Option)
"""Return the dataclass field of an option, which is described as an `Option` is."""


@cache
def options_in(section: type) -> tuple[Option, ...]:
    """Return the options of a dataclass and of the dataclasses nested in it, in order."""
    return tuple(options_by_field(section).values())


@cache
def options_by_field(section: type) -> Mapping[str, Option]:
    """Return the options of a dataclass and of those nested in it, by the names of their fields."""
    types, own = _types_of(section), _own_options(section)
    options: dict[str, Option] = {}
    for field in dataclasses.fields(section):
        if field.name in own:
            options[field.name] = own[field.name]
        elif is_dataclass(types[field.name]):
            options |= options_by_field(cast("type", types[field.name]))
    return options


@cache
def _types_of(section: type) -> Mapping[str, Any]:
    return get_type_hints(section)


@cache
def _own_options(section: type) -> Mapping[str, Option]:
    """Return the options of a dataclass, without those nested in it, by the names of its fields."""
    types = _types_of(section)
    return {
        field.name: _completed(field.metadata[_METADATA], field.name, types[field.name], section)
        for field in dataclasses.fields(section)
        if _METADATA in field.metadata
    }


def _completed(declared: Option, name: str, form: object, section: Any) -> Option:
    """Return the option with what its field and its dataclass say."""
    union = get_args(form) if get_origin(form) in (Union, UnionType) else (form,)
    members = [member for member in union if member is not NoneType]
    origins = [get_origin(member) or member for member in members]
    kinds = tuple(origin for origin in origins if isinstance(origin, type))
    enum = next((kind for kind in kinds if issubclass(kind, Enum)), None)
    values = () if enum is None else tuple(str(each.value) for each in enum)
    of_file: object = Text if Path in kinds else members[0]
    if declared.least is not None and int in kinds:
        of_file = Annotated[int, Meta(ge=declared.least)]
    return replace(
        declared,
        name=declared.name or name,
        form=of_file,
        choices=declared.choices or values,
        kinds=kinds,
        group=declared.group or getattr(section, "GROUP", None),
        applies_to=(*getattr(section, "APPLIES_TO", ()), *declared.applies_to),
    )


def given_options(values: object) -> Iterator[tuple[Option, object]]:
    """Yield the options of a dataclass that don't have their default, and their values.

    Those of dataclasses nested in it are among them.
    """
    own = _own_options(type(values))
    for field in dataclasses.fields(cast("Any", values)):
        value = getattr(values, field.name)
        if field.name in own:
            default = own[field.name].default
            if value != (default() if callable(default) else default):
                yield own[field.name], value
        elif is_dataclass(value):
            yield from given_options(value)


def changed(values: object) -> tuple[str, ...]:
    """Return the names of the options of a dataclass that don't have their default.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Painting:
    ...     layers: int = declare(help="How many coats.", default=1)
    ...     colour: str = declare(help="Which colour.", default="white")
    >>> changed(Painting(layers=2))
    ('layers',)
    """
    return tuple(option.name for option, _ in given_options(values))


def check_options(values: object) -> None:
    """Raise `ConfigError` for a number out of bounds, and for options that exclude each other.

    Dataclasses call it when they are made.
    """
    given = list(given_options(values))
    for option, value in given:
        option.check(value)
    _check_exclusive([option for option, _ in given])


def refuse_unused(
    values: object, absent: Mapping[Use, bool | str], *, location: str = "", remedy: str = ""
) -> None:
    """Raise `ConfigError` for a given option that applies to what is ``absent``.

    ``absent`` says of uses whether they are, or the detail that their texts leave open. ``remedy``
    goes before those of the uses.
    """
    for option, _ in given_options(values):
        for use in option.applies_to:
            if absent.get(use, False) is not False:
                raise ConfigError(
                    f"{mark(option.name)} has no effect{use.lack.format(absent[use])}",
                    location=location,
                    hint=remedy or use.remedy,
                )


def build(section: type[_T], values: Mapping[str, object]) -> _T:
    """Return the dataclass with ``values``, by the names of options; others have their defaults.

    Raises what the dataclasses raise for values that contradict each other.
    """
    types, own = _types_of(section), _own_options(section)
    arguments: dict[str, object] = {}
    for field in dataclasses.fields(cast("Any", section)):
        if field.name in own:
            name = own[field.name].name
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
    ...     layers: int = declare(help="How many coats.", default=1)
    >>> overridden(Painting(), {"layers": 3})
    Painting(layers=3)
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    known = options_by_field(type(values))
    for name in given:
        if name not in known:
            raise ConfigError(f"there is no option {name}", hint=suggestion(name, list(known)))
    return _overridden(values, {name: _typed(known[name], raw) for name, raw in given.items()})


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
    own = _own_options(type(values))
    for field in dataclasses.fields(cast("Any", values)):
        old = getattr(values, field.name)
        if field.name in own:
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
        of_layer = [each for each in options if each.name in layer.values]
        for each in of_layer:
            if each.needs and groups.get(each.needs, each.needs) not in present:
                raise ConfigError(
                    f"{mark(each.name)} has no effect without {mark(each.needs)}",
                    location=layer.location,
                    hint=f"give {mark(each.needs)}",
                )
        _check_exclusive(of_layer, location=layer.location)


def _check_exclusive(given: Iterable[Option], *, location: str = "") -> None:
    first_of: dict[str, str] = {}
    for each in given:
        if each.one_of and first_of.setdefault(each.one_of, each.name) != each.name:
            raise ConfigError(
                f"{mark(each.name)} has no effect with {mark(first_of[each.one_of])}",
                location=location,
                hint="drop one",
            )
