"""HLO modules: read as protobuf messages from text or protos, and converted to StableHLO."""

# jaxlib's bindings are only partly typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from google.protobuf.message import DecodeError

from hespas.errors import ProgramError, UnsupportedError
from hespas.xla.hlo.forms import is_hlo_text
from hespas.xla.hlo.schema import message_class
from hespas.xla.mlir.module import device_text, parse_mlir


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
    if _ENTRY.search(text) is None:
        # jaxlib takes the last computation for the program then.
        message = "it has no ENTRY computation"
        raise ProgramError(message, location=name, hint="give the whole of the file")
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


_ENTRY = re.compile(r"^\s*ENTRY\b", re.MULTILINE)
_PARAMETER = re.compile(r"parameter\((-?\d+)\)")
_END_OF_COMPUTATION = re.compile(r"\n\}")
_NEGATIVE_TILE = re.compile(r":T\([^)]*-\d")


def _refuse_what_aborts(text: str, name: str) -> None:
    """Raise `ProgramError` for text that makes jaxlib 0.10.2 abort the process.

    A computation numbers its parameters 0, 1, ... Several computations may stand between two
    lines that begin with a brace, so a number must not be more frequent than the one below it.
    """
    start = 0
    for end in [*[match.start() for match in _END_OF_COMPUTATION.finditer(text)], len(text)]:
        parameters = list(_PARAMETER.finditer(text, start, end))
        counts = Counter(int(match[1]) for match in parameters)
        for match in parameters:
            number = int(match[1])
            if number < 0 or (number and counts[number] > counts[number - 1]):
                message = f"parameter {number} is named, but not all before it are"
                location = _location(text, match.start(), name)
                raise ProgramError(message, location=location, hint="give the whole of the file")
        start = end
    tile = _NEGATIVE_TILE.search(text)
    if tile is not None:
        raise ProgramError("a tile is negative", location=_location(text, tile.start(), name))


def _location(text: str, at: int, name: str) -> str:
    line = text.count("\n", 0, at) + 1
    return f"{name}:{line}:{at - text.rfind(chr(10), 0, at)}"


def _count(header: str, name: str) -> int | None:
    """Read a number from the module's first line; the parser leaves it out of the proto."""
    match = re.search(rf", {name}=(\d+)", header)
    return int(match[1]) if match else None


_DIAGNOSTIC = re.compile(r"was parsing (\d+):(\d+): error: (.*)")


def _text_error(message: str, name: str) -> ProgramError:
    match = _DIAGNOSTIC.search(message)
    if match is None:
        return ProgramError(f"cannot be parsed: {' '.join(message.split())}", location=name)
    return ProgramError(f"cannot be parsed: {match[3]}", location=f"{name}:{match[1]}:{match[2]}")


def _from_proto(source: bytes, name: str) -> Any:
    # Either message may parse as the other: only the right one holds computations.
    readings: tuple[Callable[[], Any], ...] = (
        lambda: message_class("xla.HloProto").FromString(source).hlo_module,
        lambda: message_class("xla.HloModuleProto").FromString(source),
    )
    for read in readings:
        try:
            module = read()
        except DecodeError:
            continue
        if module.computations:
            return module
    raise ProgramError(
        "it is neither an HloProto nor an HloModuleProto, or it is damaged",
        location=name,
        hint="give a complete *.hlo.pb of an XLA dump, or HLO text",
    )


def stablehlo_of_hlo(source: bytes, *, name: str) -> bytes:
    """Return HLO text, an HloProto or an HloModuleProto as StableHLO text.

    Raises `ProgramError` for what is no HLO, and what `stablehlo_of_module` raises.
    """
    return stablehlo_of_module(read_hlo_module(source, name=name), name=name)


def stablehlo_of_module(module: HloModule, *, name: str) -> bytes:
    """Return an HLO module as StableHLO text.

    Raises `UnsupportedError` for what StableHLO lacks: fusions, asynchronous collectives of
    several arrays and tiled layouts, which compilers write.
    """
    convert = import_module("jaxlib._jax").mlir.hlo_to_stablehlo
    try:
        bytecode: bytes = convert(module.message.SerializeToString())
    except (RuntimeError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        raise UnsupportedError(f"it has no form in StableHLO: {first}", location=name) from error
    handle = parse_mlir(bytecode, name=name).handle
    return device_text(
        handle, replicas=module.replicas, partitions=module.partitions, with_locations=True
    )
