"""The JSON Schema of a study's file: ``hespas schema study``."""

from __future__ import annotations

from collections.abc import Mapping

from hespas.study.goal import METRICS, Direction
from hespas.study.keys import MESH, SETTINGS, WORKLOAD, key_schema, known_keys
from hespas.study.study import AUTO, StudyFidelity

_COUNT: Mapping[str, object] = {"type": "integer", "minimum": 1}
_POSITIVE: Mapping[str, object] = {"type": "number", "exclusiveMinimum": 0}


def study_schema() -> dict[str, object]:
    """Return the JSON Schema (2020-12) of studies, made from what reads them."""
    keys = {
        key: {**_listed(key_schema(key)), "description": each.help}
        for key, each in known_keys().items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A study of hespas: a list is searched, a scalar is pinned",
        "type": "object",
        "properties": {**keys, **_own()},
        "required": [WORKLOAD],
        "additionalProperties": False,
    }


def _listed(value: Mapping[str, object]) -> dict[str, object]:
    array = {"type": "array", "items": value, "minItems": 1, "uniqueItems": True}
    return {"anyOf": [value, array]}


def _own() -> dict[str, object]:
    figure = {"enum": list(METRICS)}
    sizes = {"anyOf": [{"enum": [AUTO]}, *_either(_COUNT)]}
    mesh = {"anyOf": [{"type": "object", "additionalProperties": sizes}, {"type": "string"}]}
    plain = {"anyOf": [{"type": kind} for kind in ("string", "number", "boolean")]}
    text = {"type": "string", "minLength": 1}
    price = {"part": text, "usd_per_device_hour": _POSITIVE, "source": text}
    goals: list[dict[str, object]] = [{way.value: figure} for way in Direction]
    goals.append({"pareto": {"type": "array", "items": figure, "minItems": 2}})
    return {
        "title": {"type": "string", "description": "What the study is about."},
        MESH: {
            "anyOf": _either(mesh),
            "description": "Sizes of the axes; auto is every factorisation that fits the cluster.",
        },
        SETTINGS: {
            "type": "object",
            "additionalProperties": _listed(plain),
            "description": "Further settings of the model (hespas export --list shows them).",
        },
        "where": {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            "description": "What candidates have to satisfy, as in memory.fits and mesh.tp <= 8.",
        },
        "goal": {"anyOf": [_closed(each, required=True) for each in goals]},
        "budget": _closed({"evaluations": _COUNT, "compile": _COUNT, "minutes": _POSITIVE}),
        "fidelity": {"enum": [each.value for each in StudyFidelity]},
        "sampling": {
            **_closed({"past": _COUNT, "seed": {"type": "integer", "minimum": 0}}),
            "required": ["past"],
            "description": "Past how many candidates Optuna chooses those that are predicted.",
        },
        "prices": {
            "anyOf": [text, {"type": "array", "items": _closed(price, required=True)}],
            "description": "A file of prices, or a list of them, each with its source.",
        },
    }


def _either(value: Mapping[str, object]) -> list[object]:
    return [value, {"type": "array", "items": value, "minItems": 1}]


def _closed(properties: Mapping[str, object], *, required: bool = False) -> dict[str, object]:
    found: dict[str, object] = {"type": "object", "properties": properties}
    if required:
        found["required"] = list(properties)
    return {**found, "additionalProperties": False}
