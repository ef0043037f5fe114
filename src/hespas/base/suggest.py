"""Suggest the words that the user probably meant."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from hespas.base.configs import CONFIGS
from hespas.errors import ConfigError

Choice = TypeVar("Choice", bound=Enum)
_LEAST_LETTERS = 3
"""The fewest letters that identify a part of a word."""
_MOST_WORDS = 3
_SHOWN = 24
_OTHER_NAMES = CONFIGS / "other_names.json"


@cache
def other_names() -> Mapping[str, Any]:
    """Return other tools' names of options, settings, axes and types.

    The tools are Megatron-LM, torchtitan, DeepSpeed, vLLM, SGLang, TensorRT-LLM and benchmarks.
    """
    return json.loads(_OTHER_NAMES.read_bytes())


def own_name(kind: str, other: str) -> str | None:
    """Return the name here of what other tools call ``other``, if any.

    >>> own_name("axes", "pp"), own_name("types", "bfloat16"), own_name("types", "int3")
    ('pipe', 'bf16', None)
    """
    names = other_names()[kind].items()
    return next((own for own, others in names if other.casefold() in others), None)


def suggestion(word: str, choices: Iterable[str]) -> str:
    """Return a hint with the ``choices`` nearest to ``word``.

    Without near ones it lists all of them, or the first ones. Words that begin with it are nearest;
    then words of similar spelling, or that contain it.

    >>> suggestion("peak_flop", ["peak_flops", "num_npus"])
    "did you mean 'peak_flops'?"
    >>> suggestion("H100", ["H100_SXM", "H200", "V100"])
    "did you mean 'H100_SXM'?"
    >>> suggestion("npus", ["peak_flops", "num_npus"])
    "did you mean 'num_npus'?"
    >>> suggestion("speed", ["peak_flops", "num_npus"])
    'known: num_npus, peak_flops'
    >>> suggestion("?", [f"part{number}" for number in range(10, 99)]).endswith("part33, 65 more")
    True
    """
    words = sorted(set(choices))
    close = nearest(word, words)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    shown = words if len(words) <= _SHOWN else [*words[:_SHOWN], f"{len(words) - _SHOWN} more"]
    return f"known: {', '.join(shown)}" if words else "remove it"


def nearest(text: str, choices: Iterable[str]) -> list[str]:
    """Return the ``choices`` that were probably meant, likeliest first.

    >>> nearest("hardwear", ["hardware", "run", "kernels"])
    ['hardware']
    >>> nearest("xyz", ["hardware", "run", "kernels"])
    []
    """
    by_folded = {word.casefold(): word for word in sorted(set(choices))}
    folded = text.casefold()
    close = _with_prefix(folded, by_folded)
    if not close:
        # Most calls need no spelling search, so its import waits.
        from difflib import get_close_matches  # noqa: PLC0415

        close = get_close_matches(folded, by_folded, n=_MOST_WORDS)
    if not close and len(folded) >= _LEAST_LETTERS:
        close = [word for word in by_folded if folded in word]
    return [by_folded[word] for word in close]


def _with_prefix(text: str, choices: Iterable[str]) -> list[str]:
    """Return the shortest words that begin with ``text``."""
    if len(text) < _LEAST_LETTERS:
        return []
    begun = [word for word in choices if word.startswith(text)]
    return sorted(begun, key=lambda word: (len(word), word))[:_MOST_WORDS]


def choice(name: str, kind: type[Choice], *, subject: str) -> Choice:
    """Return the member with the value ``name``; `ConfigError` for others.

    >>> class Side(Enum):
    ...     LEFT = "left"
    >>> choice("left", Side, subject="the side")
    <Side.LEFT: 'left'>
    """
    members = {member.value: member for member in kind}
    if name not in members:
        raise ConfigError(f"{subject} is {name!r}", hint=f"use one of {', '.join(members)}")
    return members[name]
