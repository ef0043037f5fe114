"""The options of a prediction as JSON values: those that decide it and are not left as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, cast

import msgspec

from hespas.base.fields import option_of
from hespas.hardware.cluster import Cluster
from hespas.hardware.device import Device
from hespas.hardware.system import System
from hespas.prediction.options import PredictOptions

_WITHOUT_EFFECT = frozenset(
    {
        *("mlir_file", "disable_cache", "in_memory_only_cache", "cache_dir", "threads", "output"),
        "verbose",
    }
)
"""The program has a key of its own; the others change where answers are kept and shown alone."""


def given_options(options: PredictOptions) -> dict[str, Any]:
    """Return the options that differ from their defaults, by name, as JSON values.

    >>> from hespas.prediction.options import EstimateOptions
    >>> given_options(PredictOptions(estimate=EstimateOptions(node="H100_80GB", threads=4)))
    {'node': 'H100_80GB'}
    """
    return {name: value for name, value in _given(options) if name not in _WITHOUT_EFFECT}


def _given(section: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(section):
        value: Any = getattr(section, field.name)
        option = option_of(field)
        if option is not None and value != _default(field):
            yield option.name or field.name, _json_value(value)
        elif option is None and dataclasses.is_dataclass(value):
            yield from _given(value)


def _default(field: dataclasses.Field[Any]) -> object:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _json_value(value: object) -> object:
    match value:
        case bool() | int() | float() | str() | None | Enum():
            return msgspec.to_builtins(value)
        case Path() | Device() | System() | Cluster():
            return Path(value.source).name if isinstance(value, Cluster) else value.name
        case msgspec.Struct():
            return _json_value(msgspec.structs.asdict(value))
        case Mapping():
            pairs = cast("Mapping[str, object]", value)
            return {name: _json_value(each) for name, each in pairs.items()}
        case Sequence():
            return [_json_value(each) for each in cast("Sequence[object]", value)]
        case _:
            return str(value)
