"""Read JSON and YAML files, and say where a malformed one breaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from hespas.errors import ConfigError


def read_text(path: Path) -> str:
    """Return the text of ``path``; `ConfigError` when it can't be read or isn't UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", location=str(path), hint="check the path"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"byte {error.start} is not UTF-8", location=str(path), hint="save the file as UTF-8"
        ) from None
    except ValueError as error:
        # A path with a zero in it.
        message = f"cannot be read: {error}"
        raise ConfigError(message, location=repr(str(path)), hint="check the path") from None


def read_json(path: Path) -> object:
    """Return the value that the JSON file ``path`` holds.

    Raises `ConfigError` at ``file:line:column`` for malformed JSON, and for what JSON lets
    pass though it misleads: a key given twice, NaN, Infinity.
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
        raise ConfigError(f"malformed JSON: {error.msg}", location=location) from None
    except RecursionError:
        raise ConfigError("the JSON is nested too deeply", location=str(path)) from None
    except ValueError as error:
        # Python reads no number of more digits than sys.get_int_max_str_digits().
        raise ConfigError(f"malformed JSON: {error}", location=str(path)) from None
    _refuse_half_characters(text, value, str(path))
    return value


def _refuse_half_characters(text: str, value: object, location: str) -> None:
    """Raise `ConfigError` for half of a pair of surrogates, which no file or terminal can hold."""
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
    """Return the value that the YAML file ``path`` holds, plain types only.

    Raises `ConfigError` at ``file:line:column`` for malformed YAML, and for a top-level key
    given twice.
    """
    import yaml  # noqa: PLC0415 - yaml takes 28 ms to import

    text = read_text(path)
    try:
        # LibYAML's parser, where PyYAML was built with it, takes a tenth of the time.
        root, value = _composed(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        location = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise ConfigError(f"malformed YAML: {error.problem}", location=location) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise ConfigError(f"malformed YAML: {first_line}", location=str(path)) from None
    if isinstance(root, yaml.MappingNode):
        _refuse_duplicates([str(key.value) for key, _ in root.value], str(path))
    return value


def _composed(text: str, kind: Any) -> tuple[Any, object]:
    """Return the root of a YAML text, None for an empty one, and its value."""
    loader = kind(text)
    try:
        root = loader.get_single_node()
        return root, None if root is None else loader.construct_document(root)
    finally:
        loader.dispose()


def _refuse_duplicates(keys: list[str], location: str) -> None:
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ConfigError(f"the key {twice!r} is given twice", location=location, hint="keep one")
