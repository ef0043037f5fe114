"""What a model of the zoo is: settings, and a step made from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

from hespas.config.suggest import suggestion
from hespas.errors import ConfigError
from hespas.models.mesh import MeshAxes, parse_mesh

Settings = TypeVar("Settings")
_YES_NO = {"true": True, "yes": True, "false": False, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A function that ``jax.jit`` made, with the abstract arguments to trace it for."""

    function: Any
    arguments: tuple[Any, ...]
    mesh: MeshAxes


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Generic[Settings]):
    """A model by name; ``settings`` is a frozen dataclass, whose fields are its options."""

    name: str
    summary: str
    settings: Settings
    build: Callable[[Settings], Step]

    def options(self) -> dict[str, object]:
        """Return the options with their default values."""
        return {field.name: getattr(self.settings, field.name) for field in _fields(self.settings)}

    def step(self, given: dict[str, str]) -> Step:
        """Make the step with some options changed, given as text.

        Raises `ConfigError` for options that the model has not, and for values that don't fit.
        """
        known = self.options()
        changed: dict[str, object] = {}
        for name, text in given.items():
            if name not in known:
                raise ConfigError(
                    f"{self.name} has no option {name!r}", hint=suggestion(name, known)
                )
            changed[name] = _value(name, text, known[name])
        settings: Any = self.settings
        return self.build(replace(settings, **changed))


def _fields(settings: Any) -> tuple[Any, ...]:
    return fields(settings)


def _value(name: str, text: str, default: object) -> object:
    """Read an option as the type that its default has."""
    match default:
        case MeshAxes():
            return parse_mesh(text)
        case bool():
            if text.lower() not in _YES_NO:
                raise ConfigError(f"{name} is {text!r}", hint="give true or false")
            return _YES_NO[text.lower()]
        case int():
            if not text.isdecimal() or int(text) < 1:
                raise ConfigError(f"{name} is {text!r}", hint="give a whole number of 1 or more")
            return int(text)
        case _:
            return text


def one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    """Return a value that is one of those known; `ConfigError` for another."""
    if value not in known:
        raise ConfigError(f"{name} is {value!r}", hint=f"known: {', '.join(known)}")
    return value
