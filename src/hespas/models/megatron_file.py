"""Files of Megatron-LM's arguments, and those that change nothing.

A file has arguments as a shell has them (``--hidden-size 4096 ..``, with comments, variables and
arrays), or is YAML with the names of Megatron-Bridge, whose sections may be left out.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from hespas.base.configs import CONFIGS
from hespas.base.decode import read_text, read_yaml
from hespas.errors import ConfigError, refuse
from hespas.models.fields import ignored

IGNORED = ignored("megatron")
DEFAULTS: Mapping[str, object] = json.loads((CONFIGS / "megatron_defaults.json").read_bytes())
"""Arguments that are not read here, with the value that Megatron-Core gives them, and which changes
nothing; another is refused. Source: NVIDIA, Megatron-Core 0.16.1, ``TransformerConfig``,
``ModelParallelConfig``, ``DistributedDataParallelConfig`` and ``OptimizerConfig``."""


def arguments_of(path: Path) -> dict[str, Any]:
    """Return the values of a file's arguments by name.

    Raises `ConfigError`, with the file, for one that can't be read.
    """
    return dict(_sections(read_yaml(path), str(path)) if is_yaml(path) else _shell(path))


def spelled(name: str, path: Path) -> str:
    """Return an argument as the file writes it."""
    return name if is_yaml(path) else f"--{name.replace('_', '-')}"


def is_yaml(path: Path) -> bool:
    """Return whether a file is YAML, by its name."""
    return path.suffix in {".yml", ".yaml"}


_NAME = re.compile(r"--([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_ARRAY = re.compile(r"\"?\$\{\w+\[[@*]\]\}\"?")
_ENDS = {")", "(", ";", "\\", "&&", "|", ">", "2>&1", "&"}


def _shell(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a shell script, name and value."""
    text = read_text(path).replace("\\\n", " ")
    variables: dict[str, str] = {}
    name, values, seen = "", list[str](), dict[str, Any]()
    for token in [*_words(text, path), "--end"]:
        argument = _NAME.fullmatch(token)
        assigned = _ASSIGNED.fullmatch(token)
        if argument or assigned or token in _ENDS or _ARRAY.fullmatch(token):
            if name:
                _add(seen, name, values, path)
            name, values = "", []
        if argument:
            name = argument[1].replace("-", "_")
            values = [] if argument[2] is None else [_resolved(argument[2], variables, name, path)]
        elif assigned and assigned[2] != "(":
            variables[assigned[1]] = _resolved(assigned[2], variables, "", path)
        elif name and token not in _ENDS and not _ARRAY.fullmatch(token):
            values.append(_resolved(token, variables, name, path))
    refuse(
        not seen, "there are no arguments", "write them as --hidden-size 4096", location=str(path)
    )
    yield from seen.items()


def _words(text: str, path: Path) -> list[str]:
    words: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            words += [
                *shlex.split(line.rstrip(";"), comments=True),
                ";" if line[:1].strip() else "",
            ]
        except ValueError as error:
            raise ConfigError(
                f"this is no line of a shell: {error}", location=f"{path}:{number}",
                hint="close the quotes",
            ) from None  # fmt: skip
    # An argument's values may stand on the next line, unless something else begins there.
    return [word for word in words if word not in {"", ";"}]


def _add(seen: dict[str, Any], name: str, values: list[str], path: Path) -> None:
    value: Any = True if not values else _typed(values[0]) if len(values) == 1 else values
    if name in seen and seen[name] != value and not IGNORED.fullmatch(name):
        raise ConfigError(
            f"--{name.replace('_', '-')} is given twice, as {seen[name]} and {value}",
            location=str(path),
            hint="keep one",
        )
    seen[name] = value


def _typed(text: str) -> Any:
    """Return a text as a number, if it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _resolved(text: str, variables: Mapping[str, str], name: str, path: Path) -> str:
    """Return a text with the file's own variables in it."""

    def value(match: re.Match[str]) -> str:
        variable = match[1] or match[3]
        if variable in variables:
            return variables[variable]
        if match[2] is not None:
            return match[2]
        if not name or IGNORED.fullmatch(name):
            return match[0]
        raise ConfigError(
            f"--{name.replace('_', '-')} is {match[0]}, which the file does not set",
            location=str(path),
            hint=f"write {variable}=... before it",
        )

    return _VARIABLE.sub(value, text)


_ADAPTERS = "peft"
"""The section of adapters, whose fields have names of their own here: ``lora_dim``."""
_SECTIONS = {
    _ADAPTERS,
    *("model", "train", "optimizer", "ddp", "dataset", "comm_overlap", "mixed_precision"),
    *("scheduler", "logger", "checkpoint", "tokenizer", "dist", "rng", "trainer", "model_parallel"),
}


def _sections(values: Any, location: str) -> Iterator[tuple[str, Any]]:
    """Yield the fields of all sections but ignored ones."""
    refuse(
        not isinstance(values, dict),
        "this is no mapping of fields",
        "write hidden_size: 4096",
        location=location,
    )
    seen: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", values).items():
        if isinstance(value, dict):
            if IGNORED.fullmatch(name) or name in {"scheduler", "checkpoint", "dist", "rng"}:
                continue
            if name == _ADAPTERS:
                yield from (
                    (f"lora_{field_name}", leaf) for field_name, leaf in _sections(value, location)
                )
                continue
            if name not in _SECTIONS:
                raise ConfigError(f"there is no section {name}", location=location,
                                  hint=f"known: {', '.join(sorted(_SECTIONS))}")  # fmt: skip
            yield from _sections(value, location)
        else:
            seen[str(name).replace("-", "_")] = value
    yield from seen.items()
