"""Declare options as dataclass fields: flags, keys, help and checks.

An option is declared once, as a field of a frozen dataclass. It states what it applies to: if that
is absent, `refuse_unused` refuses the option.

>>> MILK = Use(" on black coffee", "drop it, or add milk")
>>> @dataclass(frozen=True, kw_only=True)
... class Coffee:
...     cups: int = declare(help="How many cups.", key="cup_count", least=1, default=1)
...     froth: bool = declare(help="Froth the milk.", applies_to=(MILK,), default=False)
>>> [(option.name, option.key, option.help_text) for option in options_in(Coffee)][0]
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
from hespas.base.frozen import frozen
from hespas.base.suggest import choice, suggestion
from hespas.base.units import parse_quantity, parse_rate
from hespas.errors import ConfigError
from hespas.errors import option as mark


class Group(Enum):
    """The headings of help texts, in display order.

    ``MAIN`` has the options that most users need. A dataclass of options names its group as
    ``GROUP``; a field of another group declares its own (`hespas.base.fields.Option`).

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
    SERVER = "The engine that serves"
    LONG_RUN = "A long run"
    CACHES = "Caches and limits"
    OUTPUT = "Output"
    LOGGING = "Logging and help"


_T = TypeVar("_T")
_P = ParamSpec("_P")
_METADATA = "option"


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """A precondition of options, without which they have no effect.

    ``lack`` completes the sentence "OPTION has no effect", with ``{}`` for a detail given later;
    ``remedy`` is the hint.
    """

    lack: str
    remedy: str = "drop it"


@frozen
class Option:
    """The declaration of an option by a field.

    ``name`` is the main flag without dashes, and the name that `hespas.errors.option` marks in
    errors; by default it is the field's name. ``aliases`` are further flags. ``key`` is the key of
    the configuration file, with dots between nested keys. ``parse`` converts the text of a flag to
    a value, or the value is a number in ``unit``; without both the field's type decides. A text
    without a unit is refused where ``usual_unit``, which most people mean, is another. Of these
    ``metavar``, what help calls the value, has its default. A number must be at least ``least``,
    and, with only a unit, more than 0. ``applies_to`` lists everything
    that must be present for the option to have an effect, in addition to its dataclass's
    ``APPLIES_TO``; ``needs`` names the option without which it has none; of the options with equal
    ``one_of`` at most one may be given. A ``repeats`` option may be given several times, a
    ``negatable`` switch has a ``--no-`` form, or the form that ``negated`` names; an option without
    ``has_flag`` is for the API and the configuration only. ``default_text`` describes a default
    that is not a plain value. An ``is_hidden`` option is left out of the help.

    ``default`` is a value, or a function that creates one. ``kinds``, the types of the field, and
    ``form``, the type in the configuration, are derived from the field.
    """

    help: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    key: str = ""
    parse: Callable[[Any], object] | None = None
    unit: str | None = None
    usual_unit: str = ""
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
        """The help text with the default."""
        shown = self.default.value if isinstance(self.default, Enum) else self.default
        text = self.help.rstrip(".")
        has_none = shown in (None, ()) or isinstance(shown, bool) or callable(shown)
        if self.default_text or not has_none:
            text += f" (default: {self.default_text or shown})"
        return f"{text}."

    def value(self, raw: object) -> object:
        """Convert the text of a flag or a configuration value.

        Raises `ConfigError` for an invalid value.
        """
        texts = (str, tuple) if self.repeats else (str,)
        if self.parse is not None and isinstance(raw, texts):
            return self.parse(raw)
        if self.unit is not None and isinstance(raw, str):
            read = parse_rate if self.unit in USUAL_UNITS else parse_quantity
            number = read(raw, self.unit, location=mark(self.name))
            if number:
                refuse_bare(raw, self.unit, self.usual_unit, subject=mark(self.name))
            self.check(number, shown=repr(raw))
            return number
        enum = next((kind for kind in self.kinds if issubclass(kind, Enum)), None)
        if enum is not None and isinstance(raw, str):
            return choice(raw, enum, subject=mark(self.name))
        if Path in self.kinds and str not in self.kinds and isinstance(raw, str):
            return Path(raw)
        return raw

    def check(self, value: object, *, shown: str = "") -> None:
        """Raise `ConfigError` for a number out of bounds.

        ``shown`` is its text.
        """
        if not isinstance(value, int | float) or isinstance(value, bool):
            return
        if self.least is not None:
            is_right, hint = self.least <= value < inf, f"give {self.least} or more"
        else:
            is_right, hint = self.unit is None or 0 < value < inf, "give more than 0"
        if not is_right:
            raise ConfigError(f"{mark(self.name)} is {shown or format(value, 'g')}", hint=hint)


def refuse_bare(text: str, unit: str, usual_unit: str, *, subject: str) -> None:
    """Refuse a number without its unit, which most people take for another."""
    text = text.strip()
    if usual_unit and not text[-1:].isalpha():
        raise ConfigError(
            f"{text} without a unit is {text} {unit}",
            location=subject,
            hint=f"give {text}{usual_unit}, or {text}{unit} if it is meant",
        )


def parse_pairs(texts: Iterable[str], *, name: str, form: str, alone: str = "") -> dict[str, str]:
    """Parse ``KEY=VALUE`` texts; each key may occur once.

    ``name`` is the option's, ``form`` its syntax in errors. With ``alone`` a value may have no key:
    its key is empty, and ``alone`` describes it in errors.

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
"""Return the dataclass field of an option; the arguments are those of `Option`."""


@cache
def options_in(section: type) -> tuple[Option, ...]:
    """Return a dataclass's options, nested ones included, in order."""
    return tuple(options_by_field(section).values())


@cache
def options_by_field(section: type) -> Mapping[str, Option]:
    """Return a dataclass's options, nested ones included, by field name."""
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
    """Return a dataclass's options by field name, without nested ones."""
    types = _types_of(section)
    return {
        field.name: _completed(field.metadata[_METADATA], field.name, types[field.name], section)
        for field in dataclasses.fields(section)
        if _METADATA in field.metadata
    }


def _completed(declared: Option, name: str, form: object, section: Any) -> Option:
    """Complete an option from its field and its dataclass."""
    union = get_args(form) if get_origin(form) in (Union, UnionType) else (form,)
    members = [member for member in union if member is not NoneType]
    origins = [get_origin(member) or member for member in members]
    kinds = tuple(origin for origin in origins if isinstance(origin, type))
    enum = next((kind for kind in kinds if issubclass(kind, Enum)), None)
    values = () if enum is None else tuple(str(member.value) for member in enum)
    shown = declared.metavar or (None if declared.parse else _metavar(declared, kinds))
    form_in_file: object = Text if Path in kinds else members[0]
    if declared.least is not None and int in kinds:
        form_in_file = Annotated[int, Meta(ge=declared.least)]
    return replace(
        declared,
        name=declared.name or name,
        form=form_in_file,
        choices=declared.choices or values,
        metavar=shown,
        kinds=kinds,
        group=declared.group or getattr(section, "GROUP", None),
        applies_to=(*getattr(section, "APPLIES_TO", ()), *declared.applies_to),
    )


_METAVARS = {"s": "TIME", "B": "SIZE", "W": "POWER", "B/s": "RATE", "FLOP/s": "RATE"}
"""What help calls a number, by its unit."""


def _metavar(declared: Option, kinds: tuple[type, ...]) -> str | None:
    if declared.unit is not None:
        return _METAVARS.get(declared.unit)
    if kinds == (Path,):
        return "FILE"
    return "N" if kinds == (int,) else None


def changed_options(values: object) -> Iterator[tuple[Option, object]]:
    """Yield a dataclass's options with non-default values, nested ones included."""
    own = _own_options(type(values))
    for field in dataclasses.fields(cast("Any", values)):
        value = getattr(values, field.name)
        if field.name in own:
            default = own[field.name].default
            if value != (default() if callable(default) else default):
                yield own[field.name], value
        elif is_dataclass(value):
            yield from changed_options(value)


def changed(values: object) -> tuple[str, ...]:
    """Return the names of options with non-default values.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Painting:
    ...     layers: int = declare(help="How many coats.", default=1)
    ...     colour: str = declare(help="Which colour.", default="white")
    >>> changed(Painting(layers=2))
    ('layers',)
    """
    return tuple(option.name for option, _ in changed_options(values))


def check_options(values: object) -> None:
    """Raise `ConfigError` for numbers out of bounds and exclusive options.

    Dataclasses call it from ``__post_init__``.
    """
    changes = list(changed_options(values))
    for option, value in changes:
        option.check(value)
    _check_exclusive([option for option, _ in changes])


def check_needs(values: object) -> None:
    """Raise `ConfigError` for options that lack an option they need."""
    values_by_name = {option.name: value for option, value in changed_options(values)}
    check_effects([Layer(values=values_by_name)], options_in(type(values)))


def refuse_unused(
    values: object, absent: Mapping[Use, bool | str], *, location: str = "", remedy: str = ""
) -> None:
    """Raise `ConfigError` for a given option whose `Use` is ``absent``.

    ``absent`` maps uses to whether they are absent, or to the detail of their text. ``remedy``
    replaces the hints of the uses.
    """
    for option, _ in changed_options(values):
        for use in option.applies_to:
            if absent.get(use, False) is not False:
                raise ConfigError(
                    f"{mark(option.name)} has no effect{use.lack.format(absent[use])}",
                    location=location,
                    hint=remedy or use.remedy,
                )


def build(section: type[_T], values: Mapping[str, object]) -> _T:
    """Build a dataclass from ``values`` by option name, with defaults.

    Raises the dataclasses' errors for contradictory values.
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
    """Replace fields of options, including those of nested dataclasses.

    ``overrides`` are by field name; None leaves a field unchanged, and texts are parsed like flags.
    Raises `ConfigError` for an unknown name or a value of another type, and the dataclasses' errors
    for contradictory values.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Painting:
    ...     layers: int = declare(help="How many coats.", default=1)
    >>> overridden(Painting(), {"layers": 3})
    Painting(layers=3)
    """
    changes = {name: value for name, value in overrides.items() if value is not None}
    options = options_by_field(type(values))
    for name in changes:
        if name not in options:
            raise ConfigError(f"there is no option {name}", hint=suggestion(name, list(options)))
    return _overridden(values, {name: _typed(options[name], raw) for name, raw in changes.items()})


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


@frozen
class Layer:
    """One source's values (flags, a configuration) by option name.

    ``location`` names the source in errors; it is empty for flags.
    """

    values: Mapping[str, object]
    location: str = ""


def joined(layers: Sequence[Layer], options: Sequence[Option]) -> dict[str, object]:
    """Merge layers; the first layer that gives an option decides.

    For options that exclude each other (``one_of``), the first layer that gives any decides all.
    """
    values: dict[str, object] = {}
    for layer in layers:
        groups = {option.one_of for option in options if option.one_of and option.name in values}
        for option in options:
            if option.name in layer.values and option.one_of not in groups:
                values.setdefault(option.name, layer.values[option.name])
    return values


def check_effects(layers: Sequence[Layer], options: Sequence[Option]) -> None:
    """Raise `ConfigError` for a given option without effect."""
    names = {name for layer in layers for name in layer.values}
    groups = {option.name: option.one_of for option in options if option.one_of}
    # Options that exclude each other count as each other.
    present = {groups.get(name, name) for name in names}
    for layer in layers:
        own = [option for option in options if option.name in layer.values]
        for option in own:
            if option.needs and groups.get(option.needs, option.needs) not in present:
                raise ConfigError(
                    f"{mark(option.name)} has no effect without {mark(option.needs)}",
                    location=layer.location,
                    hint=f"give {mark(option.needs)}",
                )
        _check_exclusive(own, location=layer.location)


def _check_exclusive(options: Iterable[Option], *, location: str = "") -> None:
    first_of: dict[str, str] = {}
    for option in options:
        if option.one_of and first_of.setdefault(option.one_of, option.name) != option.name:
            raise ConfigError(
                f"{mark(option.name)} has no effect with {mark(first_of[option.one_of])}",
                location=location,
                hint="drop one",
            )
