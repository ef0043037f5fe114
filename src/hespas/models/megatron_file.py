"""Files of Megatron-LM's arguments, and those that change nothing.

A file has arguments as a shell has them (``--hidden-size 4096 ..``, with comments, variables and
arrays), or is YAML with the names of Megatron-Bridge, whose sections may be left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hespas.base.configs import CONFIGS
from hespas.base.decode import read_text, read_yaml
from hespas.errors import ConfigError, refuse
from hespas.models.fields import ignored
from hespas.models.megatron_shell import shell_arguments

IGNORED = ignored("megatron")
DEFAULTS: Mapping[str, object] = json.loads((CONFIGS / "megatron_defaults.json").read_bytes())
"""Arguments that are not read here, with the value that Megatron-Core gives them, and which changes
nothing; another is refused. Source: NVIDIA, Megatron-Core 0.16.1, ``TransformerConfig``,
``ModelParallelConfig``, ``DistributedDataParallelConfig`` and ``OptimizerConfig``."""


def arguments_of(path: Path) -> dict[str, Any]:
    """Return the values of a file's arguments by name.

    Raises `ConfigError`, with the file, for one that can't be read.
    """
    pairs = _sections(read_yaml(path), str(path)) if is_yaml(path) else _shell(path)
    seen = dict[str, Any]()
    for name, value in pairs:
        if value is None or name == "_target_":
            continue
        if seen.setdefault(name, value) != value and not IGNORED.fullmatch(name):
            raise ConfigError(
                f"{name} is {seen[name]!r} in one section and {value!r} in another",
                location=str(path),
                hint="keep one",
            )
    return seen


def spelled(name: str, path: Path) -> str:
    """Return an argument as the file writes it."""
    return name if is_yaml(path) else f"--{name.replace('_', '-')}"


def is_yaml(path: Path) -> bool:
    """Return whether a file is YAML, by its name."""
    return path.suffix in {".yml", ".yaml"}


def _shell(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a shell script, name and value."""
    seen = dict[str, Any]()
    for argument in shell_arguments(read_text(path), str(path), ignores=IGNORED.fullmatch):
        _add(seen, argument.name, argument.values, path)
    refuse(
        not seen, "there are no arguments", "write them as --hidden-size 4096", location=str(path)
    )
    yield from seen.items()


def _add(seen: dict[str, Any], name: str, values: Sequence[str], path: Path) -> None:
    value: Any = True if not values else _typed(values[0]) if len(values) == 1 else list(values)
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


def _named(value: object) -> str | None:
    """Return what Megatron-Bridge writes as ``{_target_: torch.bfloat16, _call_: false}``."""
    parts = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    if "_target_" not in parts or set(parts) - _OF_OBJECTS:
        return None
    return str(parts["_target_"]).rpartition(".")[2]


_OF_OBJECTS = {"_target_", "_call_", "_partial_"}
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
        if (called := _named(value)) is not None:
            seen[name] = called
        elif isinstance(value, dict):
            if name == "dataset":
                sizes = cast("dict[str, Any]", value)
                yield "seq_length", sizes.get("sequence_length", sizes.get("seq_length"))
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
