"""Write the schema of HLO that jaxlib embeds in its library.

python validation/hlo_schema.py        write src/hespas/xla/hlo/schema.binpb anew
"""

from __future__ import annotations

import mmap
from importlib import import_module
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from hespas.errors import ToolError
from hespas.xla.hlo.schema import SCHEMA_FILE

_SCHEMA_FILES = ("xla/xla_data.proto", "xla/service/metrics.proto", "xla/service/hlo.proto")
# The fields of a FileDescriptorProto, all of which are numbers or have a length.
_FIELDS = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14})
_VARINT, _LENGTH_DELIMITED = 0, 2


def embedded_schema() -> bytes:
    """Return the schema that the installed jaxlib embeds, in the form of ``schema.binpb``.

    Raises `ToolError` if jaxlib's library does not hold it.
    """
    library = Path(import_module("jaxlib").__file__ or "").with_name("libjax_common.so")
    with (
        library.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory,
    ):
        schema = FileDescriptorSet(file=[_embedded(memory, name) for name in _SCHEMA_FILES])
    return schema.SerializeToString(deterministic=True)


def _embedded(memory: mmap.mmap, name: str) -> FileDescriptorProto:
    """Find the descriptor of a file: it begins with field 1, the file's name."""
    start = bytes([1 << 3 | _LENGTH_DELIMITED, len(name)]) + name.encode()
    at = memory.find(start)
    while at >= 0:
        descriptor = _descriptor(memory[at : _end(memory, at)])
        if descriptor is not None and descriptor.name == name:
            return descriptor
        at = memory.find(start, at + 1)
    raise ToolError(f"jaxlib holds no descriptor of {name}", hint="install jaxlib 0.10.2")


def _descriptor(source: bytes) -> FileDescriptorProto | None:
    try:
        return FileDescriptorProto.FromString(source)
    except DecodeError:
        return None


def _end(memory: mmap.mmap, start: int) -> int:
    """Return where the fields end that could belong to a file descriptor."""
    at = start
    while True:
        key, after = _varint(memory, at)
        kind = key & 7
        if key >> 3 not in _FIELDS or kind not in (_VARINT, _LENGTH_DELIMITED):
            return at
        number, after = _varint(memory, after)
        at = after + number if kind == _LENGTH_DELIMITED else after


def _varint(memory: mmap.mmap, at: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, least significant first, and where it ends."""
    number = shift = 0
    while True:
        byte = memory[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


if __name__ == "__main__":
    SCHEMA_FILE.write_bytes(embedded_schema())
