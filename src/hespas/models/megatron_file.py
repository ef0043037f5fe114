"""Files of Megatron-LM's arguments, and those that change nothing or are refused.

A file has arguments as a shell has them (``--hidden-size 4096 ..``, with comments, variables and
arrays), or is YAML with the names of Megatron-Bridge, whose sections may be left out.

Source of what is refused: NVIDIA, Megatron-LM (core 0.15), ``validate_args`` of
``megatron/training/arguments.py``, and the checks of ``TransformerConfig``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hespas.base.configs import CONFIGS
from hespas.base.decode import read_text, read_yaml
from hespas.errors import ConfigError, refuse
from hespas.models.fields import Fields, ignored
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


_CHECKS: Mapping[str, Any] = json.loads((CONFIGS / "megatron_checks.json").read_bytes())
"""Arguments that are ``refused``, since they change what is computed and are not modelled, each
with what is modelled; those that Megatron-LM itself refuses or ignores without others that are
``needed`` on its command line; and those that are ``exclusive``."""


def check_arguments(fields: Fields, path: Path) -> None:
    """Raise `ConfigError` for arguments that are not modelled or that contradict each other."""
    for name, why in _CHECKS["refused"].items():
        value = fields.values.get(name)
        fields.ignore(name)
        if value not in (None, False, DEFAULTS.get(name)):
            raise ConfigError(
                f"{spelled(name, path)} is not modelled: {why}",
                location=str(path),
                hint="drop it",
            )
    implementation = fields.text("transformer_impl", default="transformer_engine")
    fields.refuse(
        implementation == "local",
        "transformer_impl local is not modelled: kernels are those of Transformer Engine",
        "drop it",
    )
    experts = fields.given("num_experts", "num_moe_experts")
    fields.refuse(
        experts is None and fields.size("expert_model_parallel_size", default=1) > 1,
        "expert_model_parallel_size divides experts, and the model has none",
        "drop it, or give num_experts",
    )
    if not is_yaml(path):
        _check_line(fields, path)


def _check_line(fields: Fields, path: Path) -> None:
    """Refuse what Megatron-LM's own command line refuses or ignores."""

    def is_on(name: str) -> bool:
        return fields.values.get(name) not in (None, False)

    for one, other in _CHECKS["exclusive"]:
        fields.refuse(
            is_on(one) and is_on(other),
            f"{spelled(one, path)} and {spelled(other, path)} are both given",
            "keep one",
        )
    for name, needed in _CHECKS["needed"].items():
        for other in needed:
            has_other = is_on(other) or (
                other == "recompute_granularity" and is_on("recompute_activations")
            )
            argument, missing = spelled(name, path), spelled(other, path)
            fields.refuse(
                is_on(name) and not has_other,
                f"{argument} has no effect in Megatron-LM without {missing}",
                f"add {missing}, or drop {argument}",
            )
    fields.refuse(
        is_on("num_experts")
        and fields.size("expert_model_parallel_size", default=1) > 1
        and not is_on("moe_token_dispatcher_type"),
        "without --moe-token-dispatcher-type Megatron-LM gathers the tokens of all devices "
        "(allgather), which is not modelled",
        "add --moe-token-dispatcher-type alltoall, or flex",
    )
    chunks = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")
    stages = fields.size("pipeline_model_parallel_size", default=1)
    for name in chunks:
        fields.refuse(
            stages == 1 and is_on(name) and fields.values[name] != 1,
            f"{spelled(name, path)} divides stages, and there is one",
            "drop it, or give --pipeline-model-parallel-size",
        )
