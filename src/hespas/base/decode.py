"""Convert plain values to typed ones, with one-line errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, HespasError, option

_T = TypeVar("_T")
_PLACED = re.compile(r"(?P<what>.*?)(?: - at (?P<of_key>`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(?P<key>[^.\[\]]+)|\[(?P<index>\d+|\.\.\.)\]")
_QUOTED = re.compile(r"`([^`]*)`")
_SCIENTIFIC = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")
_WORDS = {
    "`float`": "a number",
    "`int`": "an integer",
    "`str`": "a string",
    "`bool`": "true or false",
    "`array`": "a list",
    "`object`": "an object",
}


@frozen
class _Spot:
    """A part of a value, with JSON path and type."""

    path: str
    value: object
    form: object


def decode(data: object, form: type[_T], *, location: str, json_path: str = "$") -> _T:
    """Convert ``data`` to ``form``, a struct or dataclass, without coercion.

    ``location`` (a file) and ``json_path`` (the JSON path of ``data`` in it) appear in the
    `ConfigError` for an unknown key, a missing key, a wrong type or an impossible number.
    """
    root = _Spot(path=json_path, value=data, form=form)
    _refuse_not_finite(root, location)
    _refuse_unknown_keys(root, location)
    try:
        return msgspec.convert(data, form)
    except msgspec.ValidationError as error:
        raise _explain(str(error), root, location) from None
    except HespasError as error:
        # The form's own check doesn't know the location of its value.
        error.location = error.location or location
        raise


def _refuse_unknown_keys(spot: _Spot, location: str) -> None:
    """Refuse unknown keys of dataclasses; msgspec does so for structs."""
    if not (is_dataclass(_plain(spot.form)) and isinstance(spot.value, dict)):
        return
    fields = _fields(spot.form)
    for key in cast("dict[str, object]", spot.value):
        if key not in fields:
            message, hint = f"unknown key {key!r} in {spot.path}", suggestion(key, fields)
            raise ConfigError(message, location=location, hint=hint)
        _refuse_unknown_keys(_step_to_key(key, spot), location)


def _refuse_not_finite(spot: _Spot, location: str) -> None:
    value = spot.value
    if isinstance(value, float) and not isfinite(value):
        raise ConfigError(f"{spot.path} is {value}", location=location, hint="give a finite number")
    for path, member in _members(spot):
        _refuse_not_finite(_Spot(path=path, value=member, form=None), location)


def _members(spot: _Spot) -> list[tuple[str, object]]:
    if isinstance(spot.value, dict):
        mapping = cast("dict[object, object]", spot.value)
        return [(f"{spot.path}.{key}", value) for key, value in mapping.items()]
    if isinstance(spot.value, list):
        values = cast("list[object]", spot.value)
        return [(f"{spot.path}[{index}]", value) for index, value in enumerate(values)]
    return []


def _explain(complaint: str, root: _Spot, location: str) -> ConfigError:
    parts = _PLACED.fullmatch(complaint)
    if parts is None:
        return ConfigError(complaint, location=location)
    spot = _follow(parts["path"] or "", root)
    if parts["of_key"]:
        return _explain_key(spot, location)
    message, hint = _verdict(parts["what"], spot)
    return ConfigError(message, location=location, hint=hint)


def _explain_key(spot: _Spot, location: str) -> ConfigError:
    """Return the error of a mapping that has an impossible key."""
    keys = [key for key in cast("Mapping[object, object]", spot.value) if isinstance(key, str)]
    form = next(iter(get_args(_container(spot.form))), str)
    wrong = next((key for key in keys if not _fits(key, form)), None)
    if wrong is None:
        message, hint = f"a key of {spot.path} is not a string", "quote it"
    else:
        message = f"unknown key {wrong!r} in {spot.path}"
        hint = suggestion(wrong, _choices(form))
    return ConfigError(message, location=location, hint=hint)


def _verdict(complaint: str, spot: _Spot) -> tuple[str, str]:
    """Return the error at ``spot`` and its hint."""
    quoted = _QUOTED.search(complaint)
    name = quoted[1] if quoted else ""
    if complaint.startswith("Object contains unknown field"):
        return f"unknown key {name!r} in {spot.path}", suggestion(name, _fields(spot.form))
    if complaint.startswith("Object missing required field"):
        return f"{spot.path} lacks {name!r}", "add it"
    shown = json.dumps(spot.value, default=str)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return f"{spot.path} is {shown}", _hint(complaint, spot)


def _hint(complaint: str, spot: _Spot) -> str:
    if complaint.startswith("Invalid enum value"):
        return suggestion(str(spot.value), _choices(spot.form))
    expected = complaint.removeprefix("Expected ").partition(", got")[0].replace(" | null", "")
    for word, plain in _WORDS.items():
        expected = expected.replace(word, plain)
    return f"give {expected}"


def _follow(path: str, spot: _Spot) -> _Spot:
    """Return the part at a path below ``spot``."""
    for step in _STEP.finditer(path):
        spot = _step_to_key(step["key"], spot) if step["key"] else _step_in(step["index"], spot)
    return spot


def _step_to_key(key: str, spot: _Spot) -> _Spot:
    value = cast("Mapping[str, object]", spot.value).get(key)
    return _Spot(path=f"{spot.path}.{key}", value=value, form=_fields(spot.form).get(key))


def _step_in(index: str, spot: _Spot) -> _Spot:
    members = [arg for arg in get_args(_container(spot.form)) if arg is not Ellipsis]
    member: object = members[-1] if members else object
    if index != "...":
        value = cast("Sequence[object]", spot.value)[int(index)]
        return _Spot(path=f"{spot.path}[{index}]", value=value, form=member)
    # msgspec doesn't say which entry of a mapping is wrong: find the first wrong one.
    entries = cast("Mapping[str, object]", spot.value).items()
    key, value = next(entry for entry in entries if not _fits(entry[1], member))
    return _Spot(path=f"{spot.path}.{key}", value=value, form=member)


def _container(form: object) -> object:
    """Return the list, tuple or mapping type of a union."""
    plain = _plain(form)
    if get_origin(plain) not in {Union, UnionType}:
        return plain
    kinds = [_plain(member) for member in get_args(plain)]
    return next((kind for kind in kinds if get_origin(kind) in {list, tuple, dict}), plain)


def _fits(value: object, form: object) -> bool:
    try:
        msgspec.convert(value, cast("type[object]", form))
    except msgspec.ValidationError:
        return False
    return True


def _plain(form: object) -> object:
    """Strip ``Annotated[...]`` and ``| None`` from a type."""
    if get_origin(form) is Annotated:
        return _plain(get_args(form)[0])
    if get_origin(form) in (Union, UnionType):
        return _plain(next(member for member in get_args(form) if member is not type(None)))
    return form


def _fields(form: object) -> dict[str, object]:
    """Return the fields of a struct or dataclass, also of one in a union."""
    plain = _plain(form)
    bare = get_args(form)[0] if get_origin(form) is Annotated else form
    if get_origin(bare) in (Union, UnionType):
        found = [_fields(member) for member in get_args(bare)]
        return next((fields for fields in found if fields), dict[str, object]())
    if isinstance(plain, type) and is_dataclass(plain):
        types = get_type_hints(plain, include_extras=True)
        return {field.name: types[field.name] for field in dataclass_fields(plain)}
    if not (isinstance(plain, type) and issubclass(plain, msgspec.Struct)):
        return {}
    return {field.encode_name: field.type for field in msgspec.structs.fields(plain)}


def _choices(form: object) -> list[str]:
    plain = _plain(form)
    if get_origin(plain) is Literal:
        return [str(choice) for choice in get_args(plain)]
    members = list(plain) if isinstance(plain, type) and issubclass(plain, Enum) else []
    return [str(member.value) for member in members]


def read_text(path: Path) -> str:
    """Read a UTF-8 file, with or without a byte-order mark; `ConfigError` if it can't be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", location=str(path), hint="check the path"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"byte {error.start} is not UTF-8", location=str(path), hint="save the file as UTF-8"
        ) from None
    except ValueError as error:
        # The path contains a zero byte.
        message = f"cannot be read: {error}"
        raise ConfigError(message, location=repr(str(path)), hint="check the path") from None


def read_json(path: Path) -> object:
    """Read the value of a JSON file.

    Raises `ConfigError` at ``file:line:column`` for malformed JSON, and for misleading content that
    JSON parsers accept: a key given twice, NaN, Infinity.
    """
    text = read_text(path)

    def without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
        _refuse_duplicates([key for key, _ in pairs], str(path))
        return dict(pairs)

    def refuse_constant(name: str) -> NoReturn:
        raise ConfigError(
            f"{name} is not a number", location=str(path), hint="give a finite number"
        )

    try:
        value: object = json.loads(
            text, object_pairs_hook=without_duplicates, parse_constant=refuse_constant
        )
    except json.JSONDecodeError as error:
        location = f"{path}:{error.lineno}:{error.colno}"
        hint = "" if text.rstrip().endswith(("}", "]")) else "is the file whole?"
        raise ConfigError(f"malformed JSON: {error.msg}", location=location, hint=hint) from None
    except RecursionError:
        raise ConfigError("the JSON is nested too deeply", location=str(path)) from None
    except ValueError as error:
        # Python parses no number of more digits than sys.get_int_max_str_digits().
        raise ConfigError(f"malformed JSON: {error}", location=str(path)) from None
    _refuse_half_characters(text, value, str(path))
    return value


def _refuse_half_characters(text: str, value: object, location: str) -> None:
    """Raise `ConfigError` for a lone surrogate in a text."""
    if "\\ud" not in text.lower():
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"a text holds half of a character, \\u{ord(error.object[error.start]):04x}",
            location=location,
        ) from None


def read_yaml(path: Path) -> object:
    """Read the value of a YAML file, plain types only.

    Numbers like 2e-5 count as in YAML 1.2; PyYAML takes them for text. Raises `ConfigError` at
    ``file:line:column`` for malformed YAML, and for a key given twice.
    """
    import yaml  # noqa: PLC0415 - yaml takes 28 ms to import

    text = read_text(path)
    try:
        root, value = _load_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        location = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        at_tab = mark is not None and text[mark.index : mark.index + 1] == "\t"
        hint = "indent with spaces: YAML takes no tabs" if at_tab else ""
        raise ConfigError(
            f"malformed YAML: {error.problem}", location=location, hint=hint
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise ConfigError(f"malformed YAML: {first_line}", location=str(path)) from None
    for keys in _keys(root):
        _refuse_duplicates(keys, str(path))
    return value


def read_document(path: Path) -> object:
    """Read a file's value: JSON by its suffix, else YAML."""
    return read_json(path) if path.suffix == ".json" else read_yaml(path)


def preset_names(directory: Path) -> tuple[str, ...]:
    """Return the sorted names of a directory's presets (JSON)."""
    return tuple(sorted(path.stem for path in directory.glob("*.json")))


def preset_path(
    name: str | Path, directory: Path, *, option_name: str, other_names: tuple[str, ...] = ()
) -> Path:
    """Return the file of a preset, or the named file.

    ``option_name`` is the option that names it, ``other_names`` are further names for suggestions.
    Raises `ConfigError` for a name that is neither.
    """
    path, names = Path(name), preset_names(directory)
    if str(name) in names:
        return directory / f"{name}.json"
    if not path.suffix and not path.exists():
        raise ConfigError(
            f"{option(option_name)} is {str(name)!r}, which is no preset and no file",
            hint=suggestion(str(name), (*names, *other_names)),
        )
    return path


@cache
def _yaml_loader() -> Any:
    import yaml  # noqa: PLC0415 - as above

    # LibYAML's parser, if PyYAML was built with it, takes a tenth of the time.
    parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("Loader", (parser,), {})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", _SCIENTIFIC, [*"+-.0123456789"])
    return loader


def _load_yaml(text: str) -> tuple[Any, object]:
    """Return the root node and value of a YAML text.

    The root of an empty text is None.
    """
    loader = _yaml_loader()(text)
    try:
        root = loader.get_single_node()
        return root, None if root is None else loader.construct_document(root)
    finally:
        loader.dispose()


def _keys(root: Any) -> Iterator[list[str]]:
    """Yield the keys of each mapping below a YAML node."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen or node.id == "scalar":
            continue
        # Aliases lead to the same node.
        seen.add(id(node))
        if node.id == "mapping":
            yield [str(key.value) for key, _ in node.value if key.value != "<<"]
            waiting += [value for _, value in node.value]
        else:
            waiting += node.value


def _refuse_duplicates(keys: list[str], location: str) -> None:
    repeated = next((key for key in keys if keys.count(key) > 1), None)
    if repeated is not None:
        raise ConfigError(
            f"the key {repeated!r} is given twice", location=location, hint="keep one"
        )
