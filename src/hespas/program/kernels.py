"""The kernels that a compiler wrote for a scheduled program: launch shapes and PTX."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

Extent = tuple[int, int, int]


class KernelLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """A launch of a kernel by one instruction of the main function.

    ``instruction`` is the compiler's name for it (`Op.instruction`), ``kernel`` the entry point
    in the PTX: equal fusions share one. ``grid`` counts blocks, ``block`` threads.
    """

    instruction: str
    kernel: str
    grid: Extent
    block: Extent
    shared_memory_bytes: int


class CompiledKernels(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels of a compiled program.

    ``launches`` stand in schedule order; ``ptx`` holds each kernel's text by its name, without
    the headers that kernels of a module share. ``target`` is what the PTX was written for
    (``sm_90a``), ``program`` the digest of the program's instructions
    (`hespas.program.program.instructions_digest`); both are empty if unknown.
    """

    launches: tuple[KernelLaunch, ...]
    ptx: Mapping[str, str]
    target: str = ""
    program: str = ""

    @property
    def launches_of_instruction(self) -> Mapping[str, tuple[KernelLaunch, ...]]:
        """The launches by instruction: most have one, a sort has one for each of its stages."""
        found: dict[str, tuple[KernelLaunch, ...]] = {}
        for launch in self.launches:
            found[launch.instruction] = (*found.get(launch.instruction, ()), launch)
        return found


def encode_kernels(kernels: CompiledKernels) -> bytes:
    """Return the kernels as JSON."""
    return msgspec.json.encode(kernels)


def decode_kernels(source: bytes) -> CompiledKernels:
    """Return the kernels that `encode_kernels` wrote; `msgspec.DecodeError` for anything else.

    Text that is not UTF-8 raises `UnicodeDecodeError`.

    >>> empty = CompiledKernels(launches=(), ptx={})
    >>> decode_kernels(encode_kernels(empty)) == empty
    True
    """
    return msgspec.json.decode(source, type=CompiledKernels)
