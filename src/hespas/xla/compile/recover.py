"""Recover a module that XLA optimised and scheduled, but could not turn into an executable.

That happens if passes are left out (a collective that stays synchronous has no kernel), or if a
target needs a kernel of CUDA's own libraries. XLA has dumped the module and its buffers by then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hespas.xla.compile.messages import MemoryAnalysis

_NO_KERNEL = re.compile(
    r"Unsupported instruction opcode: [\w-]+|Error loading CUDA libraries"
    r"|No registered implementation for custom call to __flash_\S+"
)
_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), (.*?):?$", re.MULTILINE)
_HOST = "color 5"
_MODULE = "*_gpu_after_optimizations.txt"
_BUFFERS = "*_gpu_after_optimizations-buffer-assignment.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The module's text, its memory, and why it is no executable."""

    text: str
    memory: MemoryAnalysis
    note: str


def recover(dump: Path, message: str) -> Recovered | None:
    """Return the dumped module if ``message`` says that only the executable failed, else None."""
    why = _NO_KERNEL.search(message)
    modules, buffers = sorted(dump.glob(_MODULE)), sorted(dump.glob(_BUFFERS))
    if why is None or len(modules) != 1 or len(buffers) != 1:
        return None
    return Recovered(
        text=modules[0].read_text(),
        memory=read_memory(buffers[0].read_text()),
        note=f"optimised and scheduled, but the compiler can't write it as kernels: {why[0]}",
    )


def read_memory(text: str) -> MemoryAnalysis:
    r"""Add up XLA's buffer assignment.

    >>> read_memory("allocation 0: size 8, parameter 0, shape |f32[2]| at ShapeIndex {}:\n"
    ...             "allocation 1: size 4, output shape is |f32[]|, maybe-live-out:\n"
    ...             "allocation 2: size 16, preallocated-temp:").temporary_bytes
    16
    """
    arguments = outputs = aliases = temporary = host = 0
    for allocation in _ALLOCATION.finditer(text):
        size, kind = int(allocation[1]), allocation[2]
        if _HOST in kind:
            host += size
            continue
        is_argument, is_output = "parameter " in kind, "maybe-live-out" in kind
        arguments += size if is_argument else 0
        outputs += size if is_output else 0
        aliases += size if is_argument and is_output else 0
        temporary += size if "preallocated-temp" in kind else 0
    return MemoryAnalysis(
        argument_bytes=arguments,
        output_bytes=outputs,
        alias_bytes=aliases,
        temporary_bytes=temporary,
        generated_code_bytes=0,
        host_bytes=host,
    )
