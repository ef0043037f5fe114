"""Names of the compilers' passes."""

from __future__ import annotations

import mmap
from importlib.metadata import distribution
from pathlib import Path

from hespas.compile.job import Job
from hespas.compile.options import WORKFLOW_DISABLES
from hespas.compile.targets import GpuTarget

_GPU_LIBRARY = ("jax-cuda12-pjrt", "jax_plugins/xla_cuda12/xla_cuda_plugin.so")
_TPU_LIBRARY = ("libtpu", "libtpu/libtpu.so")


def absent_passes(job: Job) -> tuple[str, ...]:
    """Return a note for each pass to leave out that the compiler has not.

    XLA says nothing about these. A name that stands nowhere in the compiler is no pass's name.
    """
    asked = job.flags.get("xla_disable_hlo_passes", "").split(",")
    names = [name for name in asked if name and name not in WORKFLOW_DISABLES]
    if not names:
        return ()
    package, library = _GPU_LIBRARY if isinstance(job.target, GpuTarget) else _TPU_LIBRARY
    path = Path(str(distribution(package).locate_file(library)))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        absent = [name for name in names if content.find(name.encode()) < 0]
    return tuple(f"the compiler has no pass {name}: leaving it out did nothing" for name in absent)
