"""The result of a compilation."""

from __future__ import annotations

from collections.abc import Mapping

from hespas.base.frozen import frozen
from hespas.program.kernels import CompiledKernels
from hespas.program.program import OverlapLimit
from hespas.xla.compile.messages import MemoryAnalysis


@frozen
class CompiledProgram:
    """A program as the compiler of a target would run it.

    ``hlo_proto`` is a serialized ``HloModuleProto`` and ``hlo_text`` the same module as text;
    ``kernels`` is None if the target's kernels cannot be read, and ``notes`` say why. ``flags`` are
    the compiler's options as they were set, ``versions`` those of the packages that compiled,
    ``log`` the compiler's output. ``overlap`` is the scheduler's memory limit, if the scheduler
    counted more than that.
    """

    name: str
    target: str
    topology: str
    replicas: int
    partitions: int
    hlo_proto: bytes
    hlo_text: str
    kernels: CompiledKernels | None
    memory: MemoryAnalysis
    flags: Mapping[str, str]
    versions: Mapping[str, str]
    notes: tuple[str, ...]
    log: str
    overlap: OverlapLimit | None = None

    @property
    def device_count(self) -> int:
        """The number of replicas times partitions."""
        return self.replicas * self.partitions

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of a prediction from this program."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        compiled = (
            f"the program is as XLA optimises and schedules it for {self.target} ({versions}), "
            "which had no device to measure its choices on"
        )
        return (compiled, *self.notes)
