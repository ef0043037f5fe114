"""HLO modules as protobuf messages, from text or from either kind of serialised proto."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from google.protobuf.message import DecodeError

from hespas.errors import ProgramError
from hespas.xla.hlo_forms import is_hlo_text
from hespas.xla.hlo_schema import message_class


@dataclass(frozen=True, slots=True, kw_only=True)
class HloModule:
    """A module; ``message`` is an ``xla.HloModuleProto``.

    ``replicas`` and ``partitions`` are None where the source doesn't say.
    """

    message: Any
    replicas: int | None
    partitions: int | None


def read_hlo_module(source: bytes, *, name: str) -> HloModule:
    """Read HLO text, an HloProto or an HloModuleProto; ``name`` stands in messages.

    Raises `ProgramError` with line and column for text that XLA cannot parse, and for a proto
    that is damaged or holds no computation.
    """
    if is_hlo_text(source):
        return _from_text(source, name)
    message = _from_proto(source, name)
    assignment = message.device_assignment
    return HloModule(
        message=message,
        replicas=assignment.replica_count or None,
        partitions=assignment.computation_count or None,
    )


def _from_text(source: bytes, name: str) -> HloModule:
    try:
        text = source.decode()
    except UnicodeDecodeError as error:
        raise ProgramError(f"byte {error.start} is not UTF-8", location=name) from error
    _refuse_what_aborts(text, name)
    try:
        parsed = import_module("jaxlib._hlo").hlo_module_from_text(text)
    except RuntimeError as error:
        raise _text_error(str(error), name) from error
    message = message_class("xla.HloModuleProto").FromString(
        parsed.as_serialized_hlo_module_proto()
    )
    start = text.index("HloModule")
    header = text[start : text.find("\n", start)]
    return HloModule(
        message=message,
        replicas=_count(header, "replica_count"),
        partitions=_count(header, "num_partitions"),
    )


_PARAMETER = re.compile(r"parameter\((-?\d+)\)")
_END_OF_COMPUTATION = re.compile(r"\n\}")
_NEGATIVE_TILE = re.compile(r":T\([^)]*-\d")


def _refuse_what_aborts(text: str, name: str) -> None:
    """Refuse what jaxlib 0.10.2 answers by ending the process.

    A computation numbers its parameters 0, 1, ... Several computations may stand between two
    lines that begin with a brace, so that no number may be more frequent than the one below.
    """
    start = 0
    for end in [*[match.start() for match in _END_OF_COMPUTATION.finditer(text)], len(text)]:
        found = list(_PARAMETER.finditer(text, start, end))
        counts = Counter(int(each[1]) for each in found)
        for each in found:
            number = int(each[1])
            if number < 0 or (number and counts[number] > counts[number - 1]):
                message = f"parameter {number} is named, but not all before it are"
                location = _location(text, each.start(), name)
                raise ProgramError(message, location=location, hint="give the whole of the file")
        start = end
    tile = _NEGATIVE_TILE.search(text)
    if tile is not None:
        raise ProgramError("a tile is negative", location=_location(text, tile.start(), name))


def _location(text: str, at: int, name: str) -> str:
    line = text.count("\n", 0, at) + 1
    return f"{name}:{line}:{at - text.rfind(chr(10), 0, at)}"


def _count(header: str, name: str) -> int | None:
    """Read a number off the module's first line, where the parser leaves it out of the proto."""
    found = re.search(rf", {name}=(\d+)", header)
    return int(found[1]) if found else None


_DIAGNOSTIC = re.compile(r"was parsing (\d+):(\d+): error: (.*)")


def _text_error(message: str, name: str) -> ProgramError:
    found = _DIAGNOSTIC.search(message)
    if found is None:
        return ProgramError(f"cannot be parsed: {' '.join(message.split())}", location=name)
    return ProgramError(f"cannot be parsed: {found[3]}", location=f"{name}:{found[1]}:{found[2]}")


def _from_proto(source: bytes, name: str) -> Any:
    for read in (_of_hlo_proto, _of_module_proto):
        try:
            module = read(source)
        except DecodeError:
            continue
        if module.computations:
            return module
    raise ProgramError(
        "it is neither an HloProto nor an HloModuleProto, or it is damaged",
        location=name,
        hint="give a complete *.hlo.pb of an XLA dump, or HLO text",
    )


def _of_hlo_proto(source: bytes) -> Any:
    return message_class("xla.HloProto").FromString(source).hlo_module


def _of_module_proto(source: bytes) -> Any:
    return message_class("xla.HloModuleProto").FromString(source)
