"""What the compiling process is asked for, and what it answers, as JSON files."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

REQUEST_FILE = "request.json"
PROGRAM_FILE = "program.mlir"
ANSWER_FILE = "answer.json"
PROTO_FILE = "module.hlo.pb"
TEXT_FILE = "module.hlo"
DUMP_DIRECTORY = "dump"


class GpuPlace(msgspec.Struct, frozen=True, kw_only=True, tag="gpu"):
    """A GPU as XLA describes it (text of a ``GpuTargetConfigProto``), and how many a host has."""

    description: str
    devices_per_host: int


class TpuPlace(msgspec.Struct, frozen=True, kw_only=True, tag="tpu"):
    """A generation of TPU as libtpu names it, and the shape of its chips; None: by their count."""

    generation: str
    topology: str | None


TARGET_ATTRIBUTE = "hespas_target"
"""The module's attribute that says what it was compiled for, as `part_name` spells it."""

_CAPABILITY = re.compile(r"cuda_compute_capability \{ major: (\d+)(?: minor: (\d+))?")


def part_name(location: GpuPlace | TpuPlace) -> str:
    """Return what decides what a compiler makes: a generation of TPUs, or a compute capability.

    >>> part_name(TpuPlace(generation="v5e", topology="2x2"))
    'tpu_v5e'
    >>> part_name(GpuPlace(description="cuda_compute_capability { major: 9 }", devices_per_host=8))
    'sm_90'
    """
    match location:
        case TpuPlace():
            return f"tpu_{location.generation}"
        case GpuPlace():
            found = _CAPABILITY.search(location.description)
            return "" if found is None else f"sm_{found[1]}{found[2] or 0}"


class CompileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A program to compile. ``devices`` is None where the program says it itself.

    ``overrides`` are options that the compiler takes beside those of ``XLA_FLAGS``.
    """

    name: str
    location: GpuPlace | TpuPlace
    devices: int | None
    overrides: Mapping[str, str] = {}


class MemoryWire(msgspec.Struct, frozen=True, kw_only=True):
    """What XLA's memory_analysis says of one device, in bytes."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temporary_bytes: int
    generated_code_bytes: int


class Compiled(msgspec.Struct, frozen=True, kw_only=True, tag="compiled"):
    """It compiled: the module lies beside this answer."""

    replicas: int
    partitions: int
    topology: str
    memory: MemoryWire
    notes: tuple[str, ...]


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """It did not: ``error`` names a class of `hespas.errors`."""

    error: str
    message: str
    location: str
    hint: str


Answer = Compiled | Refused


def encode(value: CompileRequest | Answer) -> bytes:
    """Return a request or an answer as JSON."""
    return msgspec.json.encode(value)


def decode_request(source: bytes) -> CompileRequest:
    """Read a request; `msgspec.DecodeError` where it is none."""
    return msgspec.json.decode(source, type=CompileRequest)


def decode_answer(source: bytes) -> Answer:
    """Read an answer; `msgspec.DecodeError` where it is none.

    >>> refused = Refused(error="ToolError", message="no", location="", hint="")
    >>> decode_answer(encode(refused)) == refused
    True
    """
    return msgspec.json.decode(source, type=Compiled | Refused)
