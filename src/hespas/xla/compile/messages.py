"""The question to the compiling process and its answer (`hespas.base.question`)."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from hespas.base.frozen import frozen

PROTO_FILE = "module.hlo.pb"
TEXT_FILE = "module.hlo"
DUMP_DIRECTORY = "dump"


class GpuHosts(msgspec.Struct, frozen=True, kw_only=True, tag="gpu"):
    """Hosts of GPUs.

    ``description`` is XLA's text of a ``GpuTargetConfigProto``.
    """

    description: str
    devices_per_host: int


class TpuSlice(msgspec.Struct, frozen=True, kw_only=True, tag="tpu", omit_defaults=True):
    """A slice of TPUs.

    ``generation`` is libtpu's name, ``topology`` the chips along each axis; None means the squarest
    slice of as many devices as there are. With several ``slices`` it is the topology of each.
    """

    generation: str
    topology: str | None
    slices: int = 1


Accelerator = GpuHosts | TpuSlice
"""The accelerator that a program is compiled for."""

TARGET_ATTRIBUTE = "hespas_target"
"""The module's attribute with its target, as `part_name` spells it."""

SLICES_ATTRIBUTE = "hespas_slices"
"""The module's attribute with its number of slices, if there are several."""

_CAPABILITY = re.compile(r"cuda_compute_capability \{ major: (\d+)(?: minor: (\d+))?")


def part_name(accelerator: Accelerator) -> str:
    """Return the target of code generation.

    It is a TPU's generation or a GPU's compute capability.

    >>> part_name(TpuSlice(generation="v5e", topology="2x2"))
    'tpu_v5e'
    >>> part_name(GpuHosts(description="cuda_compute_capability { major: 9 }", devices_per_host=8))
    'sm_90'
    """
    match accelerator:
        case TpuSlice():
            return f"tpu_{accelerator.generation}"
        case GpuHosts():
            match = _CAPABILITY.search(accelerator.description)
            return "" if match is None else f"sm_{match[1]}{match[2] or 0}"


# In JSON it is a "place", as in earlier releases: programs that they compiled stay cached.
class CompileRequest(msgspec.Struct, frozen=True, kw_only=True, rename={"accelerator": "place"}):
    """A program to compile.

    ``devices`` is None if the program states it. ``overrides`` are options for the compiler beside
    those of ``XLA_FLAGS``.
    """

    name: str
    accelerator: Accelerator
    devices: int | None
    overrides: Mapping[str, str] = {}


class FlagsQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """XLA flags to check with an accelerator's compiler."""

    accelerator: Accelerator
    flags: Mapping[str, str]


class FlagsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The flags that a compiler lacks or refuses."""

    unknown: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    """Flags whose value it refuses."""


@frozen
class MemoryAnalysis:
    """XLA's memory analysis of one device, in bytes.

    >>> MemoryAnalysis(argument_bytes=4, output_bytes=4, alias_bytes=3, temporary_bytes=1,
    ...                generated_code_bytes=0).total_bytes
    6
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temporary_bytes: int
    generated_code_bytes: int
    host_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The memory needed at once.

        Outputs that are written over arguments count once.
        """
        arguments_and_outputs = self.argument_bytes + self.output_bytes - self.alias_bytes
        return arguments_and_outputs + self.temporary_bytes + self.generated_code_bytes


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """The compiled program; its directory holds the module."""

    replicas: int
    partitions: int
    topology: str
    memory: MemoryAnalysis
    notes: tuple[str, ...]
