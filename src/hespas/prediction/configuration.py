"""Read the documented configuration file into options."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec

from hespas.base.decode import decode, read_json
from hespas.base.fields import Layer, options_in
from hespas.hardware.device import HARDWARE, EstimatorKeys
from hespas.hardware.presets import resolve_path
from hespas.prediction.options import PredictOptions
from hespas.price.methods import method_named

_ESTIMATOR = "perf_estimator"


@cache
def configuration_form(kind: type = PredictOptions) -> type[msgspec.Struct]:
    """Return a configuration file's form, from the fields' keys."""
    keys = [
        (field.key, cast("Any", field.form) | None, None)
        for field in options_in(kind)
        if field.key and "." not in field.key
    ]
    return msgspec.defstruct(
        "Configuration",
        [*keys, (_ESTIMATOR, EstimatorKeys | None, None)],
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


def read_configuration(path: str | Path, kind: type = PredictOptions) -> Layer:
    """Return the values of options in a JSON file.

    Raises `ConfigError` with the file and the JSON path for malformed JSON
    (``file:line:column``), an unknown or missing key, a wrong type, an impossible figure, and
    a method that there isn't.
    """
    location = str(path)
    file_path = resolve_path(Path(path))
    file: Any = decode(read_json(file_path), configuration_form(kind), location=location)
    read: dict[str, object] = {
        name: value for name in file.__struct_fields__ if (value := getattr(file, name)) is not None
    }
    estimator = read.pop(_ESTIMATOR, None)
    if isinstance(estimator, EstimatorKeys):
        read |= _estimator_keys(estimator, location)
    values = {
        field.name: field.value(read[field.key]) for field in options_in(kind) if field.key in read
    }
    # A switch that is off is a switch that is not given.
    values = {name: value for name, value in values.items() if value is not False}
    if "hardware" in values:
        values["configuration"] = file_path
    return Layer(values=values, location=location)


def _estimator_keys(estimator: EstimatorKeys, location: str) -> dict[str, object]:
    """Return what ``perf_estimator`` gives, by dotted keys."""
    method = method_named(estimator.method, location=location, path=f"$.{_ESTIMATOR}.method")
    hardware = method.decode(estimator.hardware, location=location, json_path=HARDWARE)
    read: dict[str, object] = {f"{_ESTIMATOR}.method": method.name}
    if hardware is not None:
        read[f"{_ESTIMATOR}.hardware"] = hardware
    for name in ("num_npus", "in_memory_only_cache", "power_limit_w"):
        value = getattr(hardware, name, None)
        if value is not None:
            read[f"{_ESTIMATOR}.hardware.{name}"] = value
    return read
