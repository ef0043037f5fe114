"""Read HLO modules, and convert them to StableHLO."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib import import_module
from typing import Any

from google.protobuf.message import DecodeError

from hespas.base.frozen import frozen
from hespas.errors import ProgramError, UnsupportedError
from hespas.xla.hlo.forms import is_hlo_text
from hespas.xla.hlo.schema import message_class
from hespas.xla.mlir.module import declare_counts, parse_mlir, printed
from hespas.xla.trial import proto_of_text

_HEADER = re.compile(r"^HloModule [^\n]*", re.MULTILINE)
_ATTRIBUTES = ", frontend_attributes={"


def with_attribute(program: bytes, key: str, value: str) -> bytes:
    """Return HLO text or a proto with a frontend attribute.

    The key and the value need no quoting.

    >>> print(with_attribute(b"HloModule step, is_scheduled=true", "mesh", "x=4").decode())
    HloModule step, is_scheduled=true, frontend_attributes={mesh="x=4"}
    """
    if is_hlo_text(program):
        text = program.decode()
        return _HEADER.sub(lambda match: _in_header(match[0], key, value), text, count=1).encode()
    # Readers of a proto merge it with a message appended to it.
    name, _ = _parse_proto(program) or ("xla.HloModuleProto", None)
    addition = message_class(name)()
    _module_of(addition).frontend_attributes.map[key] = value
    return program + addition.SerializeToString(deterministic=True)


def _in_header(header: str, key: str, value: str) -> str:
    entry = f'{key}="{value}"'
    if _ATTRIBUTES in header:
        return header.replace(_ATTRIBUTES, f"{_ATTRIBUTES}{entry},", 1)
    return f"{header}{_ATTRIBUTES}{entry}}}"


def _module_of(message: Any) -> Any:
    """Return the module of an HloProto or HloModuleProto."""
    return getattr(message, "hlo_module", message)


def _parse_proto(source: bytes) -> tuple[str, Any] | None:
    """Return a proto's class and module, or None."""
    # Either message may parse as the other: only the right one holds computations.
    for name in ("xla.HloProto", "xla.HloModuleProto"):
        with suppress(DecodeError):
            module = _module_of(message_class(name).FromString(source))
            if module.computations:
                return name, module
    return None


@frozen
class HloModule:
    """A module; ``message`` is an ``xla.HloModuleProto``.

    ``replicas`` and ``partitions`` are None if the source doesn't say.
    """

    message: Any
    replicas: int | None
    partitions: int | None


def read_hlo_module(source: bytes, *, name: str) -> HloModule:
    """Read HLO text, an HloProto or an HloModuleProto.

    ``name`` stands in messages. Raises `ProgramError` with line and column for text that XLA cannot
    parse, and for a proto that is damaged or holds no computation.
    """
    if is_hlo_text(source):
        return _from_text(source, name)
    parsed = _parse_proto(source)
    if parsed is None:
        raise ProgramError(
            "it is neither an HloProto nor an HloModuleProto, or it is damaged",
            location=name,
            hint="give a complete *.hlo.pb of an XLA dump, or HLO text",
        )
    _, message = parsed
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
        # Otherwise jaxlib takes the last computation for the program.
        message = "it has no ENTRY computation"
        raise ProgramError(message, location=name, hint="give the whole of the file")
    message = message_class("xla.HloModuleProto").FromString(proto_of_text(text, name=name))
    start = text.index("HloModule")
    header = text[start : text.find("\n", start)]
    return HloModule(
        message=message,
        replicas=_count(header, "replica_count"),
        partitions=_count(header, "num_partitions"),
    )


_ENTRY = re.compile(r"^\s*ENTRY\b", re.MULTILINE)


def _count(header: str, name: str) -> int | None:
    """Read a number from the module's first line.

    XLA's parser leaves it out.
    """
    match = re.search(rf", {name}=(\d{{1,9}})\b", header)
    return int(match[1]) if match else None


def stablehlo_of_hlo(source: bytes, *, name: str) -> bytes:
    """Convert HLO, as text or a proto, to StableHLO.

    Raises `ProgramError` for input that is not HLO, and what `stablehlo_of_module` raises.
    """
    return stablehlo_of_module(read_hlo_module(source, name=name), name=name)


def stablehlo_of_module(module: HloModule, *, name: str) -> bytes:
    """Convert an HLO module to StableHLO text.

    Raises `UnsupportedError` for HLO without a StableHLO form: fusions, asynchronous collectives of
    several arrays and tiled layouts, which compilers write.
    """
    convert = import_module("jaxlib._jax").mlir.hlo_to_stablehlo
    try:
        bytecode: bytes = convert(module.message.SerializeToString())
    except (RuntimeError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        raise UnsupportedError(f"it has no form in StableHLO: {first}", location=name) from error
    handle = parse_mlir(bytecode, name=name).handle
    declare_counts(handle, replicas=module.replicas, partitions=module.partitions)
    return printed(handle, with_locations=True)
