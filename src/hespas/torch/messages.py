"""What the worker is asked, and what it answers: read without torch."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

STEP_FILE = "step.json"
"""The recorded step, in the worker's directory."""
PINNED = {"torch": "2.13.0", "triton": "3.7.1"}
"""The versions whose internals are known; the extra ``torch`` has the same."""


class GpuDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as the CUDA driver describes it to torch and Triton."""

    name: str
    major: int
    minor: int
    multiprocessors: int
    memory_bytes: int
    l2_cache_bytes: int
    shared_memory_per_block_bytes: int
    shared_memory_per_multiprocessor_bytes: int
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int
    clock_hz: float

    @property
    def architecture(self) -> str:
        """The architecture that kernels are compiled for.

        >>> GpuDescription(name="", major=9, minor=0, multiprocessors=1, memory_bytes=1,
        ...     l2_cache_bytes=1, shared_memory_per_block_bytes=1, clock_hz=1.0,
        ...     shared_memory_per_multiprocessor_bytes=1, registers_per_multiprocessor=1,
        ...     threads_per_multiprocessor=1).architecture
        'sm_90a'
        """
        # Instructions of an architecture alone ("a") begin with Hopper.
        return f"sm_{self.major}{self.minor}{'a' if self.major >= 9 else ''}"


class StepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which function to call, or script to run, with which arguments, and on what.

    ``module`` is a file or a module's dotted name, imported from ``path``, in ``directory``.
    ``arguments`` are text, read by the types of the function's parameters. Without a ``function``
    the file is a script, with ``words`` behind its name. With ``is_eager``,
    ``torch.compile`` changes nothing. ``torch_version`` is the torch whose choice of library
    kernels is followed; empty is the installed one. Recordings of pipeline stages leave files for
    each other in the directory ``stages``.
    """

    name: str
    module: str
    function: str
    arguments: dict[str, str] = {}
    words: list[str] = []
    gpu: GpuDescription
    world_size: int = 1
    devices_per_host: int = 8
    rank: int = 0
    is_eager: bool = False
    torch_version: str = ""
    directory: str = "."
    path: list[str] = []
    stages: str = ""

    @property
    def local_rank(self) -> int:
        """The rank among those of its host."""
        return self.rank % self.devices_per_host

    @property
    def local_world_size(self) -> int:
        """How many ranks a host has, each with a GPU."""
        return min(self.devices_per_host, self.world_size)


class StepAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The step is recorded; it came from ``files`` and ``variables`` of the environment."""

    files: list[str] = []
    variables: list[str] = []


def ranks_file(directory: Path) -> Path:
    """Return the file with the ranks of a pipeline's stages."""
    return directory / "ranks"


def ended_file(directory: Path, rank: int) -> Path:
    """Return the file that is there once a rank's recording ended."""
    return directory / f"ended{rank}"


def leave(file: Path, content: bytes) -> None:
    """Write a file that other processes wait for."""
    unfinished = file.with_name(f"{file.name}.{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.rename(file)
