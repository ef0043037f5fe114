"""Read the fields of a configuration by name and type.

Fields have the names of Hugging Face's transformers. A field that says what is computed and is not
known is an error that names it; what tokenizers, initial values and sampling need changes nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from hespas.base.configs import CONFIGS
from hespas.base.suggest import nearest
from hespas.errors import ConfigError, refuse


def ignored(file: Literal["config.json", "megatron"]) -> re.Pattern[str]:
    """Return the names of fields that change no cost."""
    names_of = json.loads((CONFIGS / "ignored_fields.json").read_bytes())[file]
    return re.compile("|".join(name for names in names_of.values() for name in names))


IGNORED = ignored("config.json")
_FAMILIES: Mapping[str, Any] = json.loads((CONFIGS / "family_fields.json").read_bytes())
"""By family, or ``megatron``: fields with the values that are known, and those without effect."""
MISSING = object()
MOST_LAYERS = 2000


@dataclass(slots=True, kw_only=True)
class Fields:
    """A configuration's fields; which were read or change nothing.

    A field that is not given has that of ``defaults``, and is ``assumed`` once it was asked for.
    One whose reader can do without it has that of ``fallbacks``.
    """

    values: Mapping[str, Any]
    location: str
    read: set[str] = field(default_factory=set)
    ignored: re.Pattern[str] = IGNORED
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fallbacks: Mapping[str, Any] = field(default_factory=dict[str, Any])
    assumed: set[str] = field(default_factory=set)

    def refuse(self, is_wrong: object, message: str, hint: str = "") -> None:
        """Raise `ConfigError`, with the file, where something is wrong."""
        refuse(is_wrong, message, hint, location=self.location)

    def given(self, *names: str) -> Any:
        """Return the value of the first given name.

        Raises `ConfigError` where two disagree.
        """
        self.read |= set(names)
        values = {name: self.values[name] for name in names if self.values.get(name) is not None}
        default = next((name for name in names if name in self.defaults), None)
        if default is not None and not set(names) & set(self.values):
            self.assumed.add(default)
            return self.defaults[default]
        first, *others_names = values or names
        for name, value in ((name, values[name]) for name in others_names if name in values):
            if value != values[first]:
                raise ConfigError(
                    f"{first} is {values[first]!r} and {name} is {value!r}, which mean the same",
                    location=self.location,
                    hint="keep one",
                )
        return next(iter(values.values()), None)

    def _given_or_fallback(self, names: tuple[str, ...], default: Any) -> Any:
        value = self.given(*names)
        fallback = next((name for name in names if name in self.fallbacks), None)
        if fallback is None or default is MISSING or set(names) & set(self.values):
            return value
        if self.fallbacks[fallback] != default:
            self.assumed.add(fallback)
        return self.fallbacks[fallback]

    def number(self, *names: str, default: Any = MISSING) -> float:
        """Return a number."""
        value = self._given_or_fallback(names, default)
        if value is None and default is not MISSING:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._type_error(names, value, "a number")
        if not math.isfinite(value):
            raise self._type_error(names, value, "a finite number")
        return float(value)

    def positive(self, *names: str, default: Any = MISSING) -> float:
        """Return a number above 0."""
        value = self.number(*names, default=default)
        if value <= 0:
            raise self._type_error(names, value, "a number above 0")
        return value

    def size(self, *names: str, default: Any = MISSING, least: int = 1) -> int:
        """Return a whole number of ``least`` or more."""
        value = self._given_or_fallback(names, default)
        if value is None and default is not MISSING:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise self._type_error(names, value, f"a whole number of {least} or more")
        return value

    def layers(self, *names: str) -> int:
        """Return the number of layers, within a limit."""
        count = self.size(*names)
        self.refuse(count > MOST_LAYERS, f"these are {count} layers", f"check {names[0]}")
        return count

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return a truth value."""
        value = self._given_or_fallback(names, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._type_error(names, value, "true or false")
        return value

    def text(self, *names: str, default: str = "") -> str:
        """Return a text."""
        value = self._given_or_fallback(names, default)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._type_error(names, value, "a text")
        return value

    def one_of(self, name: str, allowed: Sequence[Any]) -> None:
        """Raise `ConfigError` for a value that is not known."""
        value = self.given(name)
        self.refuse(
            value is not None and value not in allowed,
            f"{name} is {value!r}, which changes what is computed and is not known",
            f"known: {', '.join(map(repr, allowed))}",
        )

    def check_family(self, family: str) -> None:
        """Check the fields of a family that its files may say in one way alone.

        Raises `ConfigError` for another; takes as read what says nothing of cost there.
        """
        rules = _FAMILIES.get(family, {})
        for name, allowed in rules.get("allowed", {}).items():
            self.one_of(name, allowed)
        self.ignore(*rules.get("ignored", ()))

    def texts(self, *names: str) -> list[str]:
        """Return a list of texts; empty where none is given."""
        value = self.given(*names)
        if value is None:
            return []
        members = cast("list[object]", value) if isinstance(value, list) else [None]
        if not all(isinstance(member, str) for member in members):
            raise self._type_error(names, members, "a list of texts")
        return cast("list[str]", value)

    def numbers(self, *names: str) -> list[int]:
        """Return a list of whole numbers, empty without one."""
        value = self.given(*names)
        members = cast("list[object]", value if isinstance(value, list) else [value])
        if value is None:
            return []
        if not all(isinstance(member, int) for member in members):
            raise self._type_error(names, members, "a list of whole numbers")
        return cast("list[int]", members)

    def ignore(self, *names: str) -> None:
        """Take fields as read that say nothing of cost here."""
        self.read |= set(names)

    def with_values(self, **values: Any) -> Fields:
        """Return the fields with some changed."""
        return replace(self, values={**self.values, **values})

    def part(self, name: str) -> Fields:
        """Return the fields of a part, or none."""
        value = self.given(name)
        if value is not None and not isinstance(value, dict):
            raise self._type_error((name,), value, "an object")
        values = cast("Mapping[str, Any]", value or {})
        return Fields(values=values, location=f"{self.location}, {name}")

    def check_read(self) -> None:
        """Raise `ConfigError` for an unread field that may matter."""
        for name, value in self.values.items():
            is_plain = value is None or value is False or value in ([], {})
            if name not in self.read and not is_plain and not self.ignored.fullmatch(name):
                raise ConfigError(
                    f"{name} = {json.dumps(value)} may change what is computed, and is not known",
                    location=self.location,
                    hint=_nearest_hint(name, self.read),
                )

    def _type_error(self, names: Sequence[str], value: object, expected: str) -> ConfigError:
        name = next(
            (field_name for field_name in names if self.values.get(field_name) is not None),
            names[0],
        )
        problem = "is missing" if value is None else f"is {json.dumps(value)}"
        unread = [field_name for field_name in self.values if field_name not in self.read]
        close = nearest(name, unread) if value is None else []
        hint = f"give {expected}" + (f"; is {close[0]} meant to be {name}?" if close else "")
        return ConfigError(f"{name} {problem}", location=self.location, hint=hint)


def _nearest_hint(name: str, names: set[str]) -> str:
    close = nearest(name, sorted(names))
    remedy = "take it out if it changes nothing"
    return f"did you mean {close[0]}? Otherwise {remedy}" if close else remedy
