"""The keys of a study: options to pin or search.

They are the options themselves (`hespas.prediction.options.PredictOptions`), so that a new option
can be searched at once. ``model`` names the workload, and the model of the network is
``network_model``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

import msgspec

from hespas.base.decode import decode
from hespas.base.fields import Group, Option, options_in
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError
from hespas.prediction.options import PredictOptions

Scalar = str | int | float | bool
"""One value of a key."""
WORKLOAD, CLUSTER, MESH, SETTINGS, SOFTWARE = "model", "cluster", "mesh", "set", "software"
_RENAMED = {"mlir_file": WORKLOAD, "model": "network_model"}
_OWN = frozenset(
    {
        "fidelity",
        "as_exported",
        "optimise",
        "system",
        "kernels",
        "output",
        "device_hour_usd",
        MESH,
        SETTINGS,
    }
)
"""Options that a study sets itself or names differently."""
_LEFT_OUT = frozenset({Group.OUTPUT, Group.CACHES, Group.DIVISION})
"""Groups of options that change no figure that a study compares."""


@cache
def known_keys() -> Mapping[str, Option]:
    """Return the keys' options, the workload first.

    >>> list(known_keys())[0], "remat" in known_keys(), "output" in known_keys()
    ('model', True, False)
    """
    options: dict[str, Option] = {}
    for option in options_in(PredictOptions):
        is_left_out = option.name in _OWN or option.is_hidden or option.group in _LEFT_OUT
        if option.has_flag and not is_left_out:
            options[_RENAMED.get(option.name, option.name)] = option
    first = {name: options.pop(name) for name in (WORKLOAD, CLUSTER)}
    return MappingProxyType({**first, **options})


def option_named(key: str, *, location: str = "") -> Option:
    """Return a key's option; refuse an unknown key."""
    options = known_keys()
    if key not in options:
        raise ConfigError(
            f"there is no key {key!r}", location=location, hint=suggestion(key, options)
        )
    return options[key]


def option_value(key: str, value: Scalar, *, location: str = "") -> object:
    """Return an option's value for a value in a study.

    Raises `ConfigError`, naming the key, for a value that the option doesn't take.

    >>> option_value("sequence", 4096), option_value("peak_flops", "312TFLOP/s")
    (4096, 312000000000000.0)
    """
    option = option_named(key, location=location)
    where = f"$.{key}"
    if bool in option.kinds:
        return decode(value, bool, location=location, json_path=where)
    if isinstance(value, bool):
        raise ConfigError(f"{where} is {str(value).lower()}", location=location, hint="quote it")
    if option.kinds == (int,) and option.parse is None:
        # Whole numbers without further limits are counts.
        number = decode(value, int, location=location, json_path=where)
        least = _least(option)
        if number < least:
            hint = f"give {least} or more"
            raise ConfigError(f"{where} is {number}", location=location, hint=hint)
        return number
    try:
        return option.value((str(value),) if option.repeats else str(value))
    except ConfigError as error:
        error.location = error.location or location
        raise


def _least(option: Option) -> int:
    """Return the least whole number that an option takes, 1 where it says none."""
    return 1 if option.least is None else option.least


def key_schema(key: str) -> dict[str, object]:
    """Return the JSON Schema of one value of a key."""
    option = known_keys()[key]
    if option.choices:
        return {"enum": list(option.choices)}
    if bool in option.kinds:
        return {"type": "boolean"}
    if option.kinds == (int,) and option.parse is None:
        return {"type": "integer", "minimum": _least(option)}
    text: dict[str, object] = {"type": "string"}
    is_number = option.parse is not None or option.unit is not None
    return {"anyOf": [text, {"type": "number"}]} if is_number else text


def scalar_text(value: Scalar) -> str:
    """Return a value as users and flags write it.

    >>> scalar_text(True), scalar_text(8192)
    ('true', '8192')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


def canonical(value: object) -> bytes:
    """Return plain values as JSON; equal values give equal bytes."""
    return msgspec.json.encode(value)
