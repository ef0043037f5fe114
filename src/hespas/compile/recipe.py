"""Read a recipe's flags of XLA, as published scripts print them.

A recipe sets ``XLA_FLAGS`` or ``LIBTPU_INIT_ARGS`` for compilers of another version, with a device
attached. `read_recipe` reads the text; `hespas.compile.compiler` decides which of the flags the
compilers without a device take.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hespas.base.frozen import frozen
from hespas.errors import ConfigError

_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")
_VARIABLE = r"(?:export\s+)?(?:XLA_FLAGS|LIBTPU_INIT_ARGS)\+?="
_ASSIGNED = re.compile(rf"^\s*{_VARIABLE}")
_SELF = re.compile(r"\$\{?(?:XLA_FLAGS|LIBTPU_INIT_ARGS)(?::?-)?\}?")
_QUOTES = str.maketrans("", "", "'\"")
_FLAG = re.compile(r"(?:--)?([A-Za-z]\w*_\w+)(?:=(.*))?")
_MOST_BYTES = 2**20


@frozen
class RecipeFlags:
    """Flags of XLA by name without dashes, with their lines in ``file``.

    ``repeated`` are flags with several values; XLA takes the last.
    """

    file: str
    flags: Mapping[str, str]
    lines: Mapping[str, int]
    repeated: tuple[str, ...] = ()

    def location(self, name: str) -> str:
        """Return ``file:line`` of a flag."""
        return f"{self.file}:{self.lines[name]}"


def read_recipe(path: str) -> RecipeFlags:
    """Read a file of flags as `parse_recipe` does.

    Raises `ConfigError` for a file that can't be read.
    """
    file = Path(path)
    try:
        content = file.read_bytes()[: _MOST_BYTES + 1]
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", location=path, hint="check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError("is no text", location=path, hint="give a recipe's flags") from error
    if len(content) > _MOST_BYTES:
        raise ConfigError("is larger than 1 MiB", location=path, hint="give a recipe's flags")
    return parse_recipe(text, file=path)


def parse_recipe(text: str, *, file: str) -> RecipeFlags:
    r"""Parse flags as recipes print them.

    Comments start with ``#``. Dashes, quotes, backslashes at the ends of lines, and ``export
    XLA_FLAGS=`` or ``LIBTPU_INIT_ARGS=`` before them are as in a shell. A flag without a value is
    ``true``, and of several values of a flag the last counts, as XLA reads them. Raises
    `ConfigError`, with the line, for anything else, and for a text without flags.

    >>> recipe = parse_recipe('''export LIBTPU_INIT_ARGS="--xla_tpu_a=1 \\
    ...     --xla_tpu_b"  # faster''', file="recipe.sh")
    >>> dict(recipe.flags), recipe.location("xla_tpu_b")
    ({'xla_tpu_a': '1', 'xla_tpu_b': 'true'}, 'recipe.sh:2')
    """
    flags: dict[str, str] = {}
    lines: dict[str, int] = {}
    repeated: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        for word in _words(line):
            match = _FLAG.fullmatch(word)
            if match is None:
                raise ConfigError(
                    f"{word!r} is no flag of XLA",
                    location=f"{file}:{number}",
                    hint="give flags as in --xla_gpu_enable_triton_gemm=false",
                )
            name, value = match[1], match[2]
            value = "true" if value is None else value
            if flags.get(name, value) != value:
                repeated[name] = None
            flags[name], lines[name] = value, number
    if not flags:
        raise ConfigError(
            "holds no flags of XLA",
            location=file,
            hint="give what a recipe sets XLA_FLAGS or LIBTPU_INIT_ARGS to",
        )
    return RecipeFlags(file=file, flags=flags, lines=lines, repeated=tuple(repeated))


def _words(line: str) -> list[str]:
    bare = _ASSIGNED.sub("", _COMMENT.sub("", line))
    words = (word.rstrip("\\;") for word in _SELF.sub("", bare).translate(_QUOTES).split())
    return [word for word in words if word]
