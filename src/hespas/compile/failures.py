"""Why a compiler gave no program, as an error that says what to do."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from hespas import errors
from hespas.errors import ConfigError, HespasError, ToolError
from hespas.tools.process import Limits
from hespas.xla import compile_wire as wire

_UNKNOWN_FLAG = re.compile(r"Unknown flags? in XLA_FLAGS: (\S+)")
_BAD_VALUE = re.compile(r"Couldn't interpret value (\S*) for flag (\w+)")
_MEMORY = re.compile(
    r"bad_alloc|[Oo]ut of memory|Cannot allocate memory|MemoryError|failed to map segment"
)


def explained(error: ToolError, log: Path, limits: Limits) -> HespasError:
    """Return what a compiling process that died wrote down, or else the error as it is.

    A log that says nothing more than the new error is removed with its directory.
    """
    text = log.read_text(errors="replace") if log.is_file() else ""
    unknown, bad = _UNKNOWN_FLAG.search(text), _BAD_VALUE.search(text)
    if unknown is not None:
        shutil.rmtree(log.parent, ignore_errors=True)
        return ConfigError(f"the compiler has no flag {unknown[1].partition('=')[0].strip('-')}")
    if bad is not None:
        shutil.rmtree(log.parent, ignore_errors=True)
        return ConfigError(f"{bad[1]!r} is no value of the compiler's flag {bad[2]}")
    if limits.memory_bytes is not None and _MEMORY.search(text):
        return _out_of_memory(log, limits.memory_bytes)
    return error


def refusal(refused: wire.Refused, log: Path, limits: Limits) -> HespasError:
    """Return the error that an answer tells of; its log stays where the compiler failed."""
    kind: type[HespasError] = getattr(errors, refused.error)
    if kind is not ToolError:
        shutil.rmtree(log.parent, ignore_errors=True)
        return kind(refused.message, location=refused.location, hint=refused.hint)
    text = log.read_text(errors="replace")
    if limits.memory_bytes is not None and _MEMORY.search(text):
        return _out_of_memory(log, limits.memory_bytes)
    location = f"{refused.location}: {log}" if refused.location else str(log)
    return ToolError(refused.message, location=location, hint=refused.hint)


def _out_of_memory(log: Path, memory_bytes: int) -> ToolError:
    return ToolError(
        f"the compiler ran out of memory (it may address {memory_bytes / 2**30:.3g} GiB)",
        location=str(log),
        hint="allow more with a higher memory limit",
    )
