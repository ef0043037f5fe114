"""The kernels of a compiled module, from what XLA dumped."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from hespas.errors import UnsupportedError
from hespas.program.kernels import CompiledKernels
from hespas.xla.compile_instructions import read_instructions
from hespas.xla.compile_ptx import ptx_target, read_ptx
from hespas.xla.compile_thunks import read_instructions as read_thunk_instructions
from hespas.xla.compile_thunks import read_thunks, tied_kernels


def read_kernels(dump: Path, *, module_text: str) -> CompiledKernels:
    """Read the kernels of the one module that was compiled into a dump directory.

    Raises `UnsupportedError` where the lists of thunks are missing, or can't be tied to the
    instructions of ``module_text``.
    """
    thunks = _only(dump, "*.thunk_sequence.txt")
    metadata = _only(dump, "*.thunk_metadata.txt")
    ptx: dict[str, str] = {}
    target = ""
    for file in sorted(dump.glob("*.ptx")):
        text = file.read_text()
        ptx |= read_ptx(text)
        target = target or ptx_target(text)
    instructions = read_instructions(module_text)
    tied = tied_kernels(
        read_thunks(thunks),
        read_thunk_instructions(metadata),
        ptx=ptx,
        fusions=instructions.fusions,
        known=instructions.all,
    )
    return replace(tied, target=target)


def _only(dump: Path, pattern: str) -> str:
    files = sorted(dump.glob(pattern))
    if len(files) != 1:
        raise UnsupportedError(f"the compiler left {len(files)} lists of thunks, not 1")
    return files[0].read_text()
