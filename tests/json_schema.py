"""A small judge of JSON by JSON Schema (2020-12), written against the specification alone.

Keys that the schema doesn't name are faults, and so are keywords that the judge doesn't know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_NOTES = {"$schema", "title", "description", "$defs", "default"}


def faults(
    value: Any, schema: Mapping[str, Any] | bool, root: Mapping[str, Any], at: str = "$"
) -> list[str]:
    """Return where and how a value doesn't satisfy a schema, whose root holds the definitions."""
    found: list[str] = []
    if isinstance(schema, bool):
        return found if schema else [f"{at}: is not in the schema"]
    if "type" in schema and list(_type(value, schema["type"], None, None, at)):
        return list(_type(value, schema["type"], None, None, at))
    for keyword, asked in schema.items():
        if keyword not in _NOTES and isinstance(value, _OF.get(keyword, object)):
            found += _FAULTS[keyword](value, asked, schema, root, at)
    return found


_OF: dict[str, type] = {
    "additionalProperties": dict,
    "items": list,
    "properties": dict,
    "required": dict,
}
"""Keywords that say something of values of one type, and nothing of others."""


def _type(value: Any, asked: str, _: Any, __: Any, at: str) -> Iterator[str]:
    is_bool = isinstance(value, bool) and asked != "boolean"
    if is_bool or not isinstance(value, _TYPES[asked]):
        yield f"{at}: {value!r} is no {asked}"


def _properties(value: Any, asked: Any, schema: Any, root: Any, at: str) -> Iterator[str]:
    # Of what is no object, `type` says so.
    fields: Mapping[str, Any] = value or {}
    for name, each in fields.items():
        if name in asked:
            yield from faults(each, asked[name], root, f"{at}.{name}")
        elif "additionalProperties" not in schema:
            yield f"{at}.{name}: is not in the schema"


def _additional(value: Any, asked: Any, schema: Any, root: Any, at: str) -> Iterator[str]:
    for name, each in value.items():
        if name not in schema.get("properties", {}):
            yield from faults(each, asked, root, f"{at}.{name}")


def _items(value: Any, asked: Any, _: Any, root: Any, at: str) -> Iterator[str]:
    for number, each in enumerate(value):
        yield from faults(each, asked, root, f"{at}[{number}]")


def _required(value: Any, asked: Any, _: Any, __: Any, at: str) -> Iterator[str]:
    yield from (f"{at}.{name}: is missing" for name in asked if name not in (value or {}))


def _any_of(value: Any, asked: Any, _: Any, root: Any, at: str) -> Iterator[str]:
    if all(faults(value, each, root, at) for each in asked):
        yield f"{at}: {value!r} is none of what is allowed"


def _enum(value: Any, asked: Any, _: Any, __: Any, at: str) -> Iterator[str]:
    if value not in asked:
        yield f"{at}: {value!r} is none of {asked}"


def _minimum(value: Any, asked: Any, _: Any, __: Any, at: str) -> Iterator[str]:
    if isinstance(value, int | float) and value < asked:
        yield f"{at}: {value} is below {asked}"


def _above(value: Any, asked: Any, _: Any, __: Any, at: str) -> Iterator[str]:
    if isinstance(value, int | float) and value <= asked:
        yield f"{at}: {value} is not above {asked}"


def _at_least(value: Any, asked: Any, _: Any, __: Any, at: str) -> Iterator[str]:
    if isinstance(value, str | list) and len(value) < asked:  # pyright: ignore[reportUnknownArgumentType]
        yield f"{at}: {value!r} is shorter than {asked}"


def _unique(value: Any, asked: Any, _: Any, __: Any, at: str) -> Iterator[str]:
    if asked and isinstance(value, list) and any(value.count(each) > 1 for each in value):  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType, reportUnknownArgumentType]
        yield f"{at}: {value!r} has something twice"


def _reference(value: Any, asked: str, _: Any, root: Any, at: str) -> list[str]:
    return faults(value, root["$defs"][asked.removeprefix("#/$defs/")], root, at)


_FAULTS: Mapping[str, Any] = {
    "type": _type,
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
    "required": _required,
    "anyOf": _any_of,
    "enum": _enum,
    "minimum": _minimum,
    "exclusiveMinimum": _above,
    "minItems": _at_least,
    "minLength": _at_least,
    "uniqueItems": _unique,
    "$ref": _reference,
}
