"""Memory outside the devices, each device with its own."""

from __future__ import annotations

from dataclasses import dataclass

from hespas.errors import SimulationError
from hespas.hardware.system import RemoteMemory, RemoteMemoryKind
from hespas.schedule.tasks import MemoryTask
from hespas.units import PS_PER_NS, to_gb_per_s, to_ns


@dataclass(frozen=True, slots=True)
class MemoryTimes:
    """How long the requests of a system take."""

    remote: RemoteMemory | None

    def duration_ps(self, task: MemoryTask) -> int:
        """Return ``latency + size / bandwidth``. Raises `SimulationError` for shared memory."""
        remote = self.remote
        place = f"task {task.id} ({task.name})"
        if remote is None or remote.kind is RemoteMemoryKind.NO_MEMORY_EXPANSION:
            hint = "give another memory-type in remote_memory.json"
            raise SimulationError(
                "the system has no memory outside the devices", location=place, hint=hint
            )
        is_own = remote.kind is RemoteMemoryKind.PER_NPU_MEMORY_EXPANSION
        if not is_own or remote.latency_s is None or remote.bandwidth_bytes_per_s is None:
            message = f"{remote.kind.value} has no model in hespas' own network model"
            raise SimulationError(message, location=place, hint="use --model astra-sim")
        bytes_per_ns = to_gb_per_s(remote.bandwidth_bytes_per_s)
        time_ns = to_ns(remote.latency_s) + task.size_bytes / bytes_per_ns
        return int(time_ns * PS_PER_NS)
