"""Memory outside the devices.

Source: ASTRA-sim's analytical memory. A request takes ``latency + size / bandwidth``; memory
that several devices share serves one request at a time, in order of arrival.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from hespas.base.units import PS_PER_NS, to_gb_per_s, to_ns
from hespas.errors import SimulationError
from hespas.hardware.system import RemoteMemory, RemoteMemoryKind
from hespas.simulate.astra.events.network import check_not_at_start
from hespas.simulate.kernel import Action, ActorQueue

_Request = tuple[ActorQueue, int, Action, Any]


class Memory:
    """The remote memory of a system."""

    def __init__(self, remote: RemoteMemory) -> None:
        self._remote = remote
        self._requests: dict[int, deque[_Request]] = {}

    def duration_ps(self, size_bytes: int) -> int:
        """Return how long a request takes by itself. Raises `SimulationError` without memory."""
        latency_s, rate = self._remote.latency_s, self._remote.bandwidth_bytes_per_s
        is_absent = self._remote.kind is RemoteMemoryKind.NO_MEMORY_EXPANSION
        if is_absent or latency_s is None or rate is None:
            hint = "give another memory-type in remote_memory.json"
            raise SimulationError("the system has no memory outside the devices", hint=hint)
        return (int(to_ns(latency_s)) + int(size_bytes / to_gb_per_s(rate))) * PS_PER_NS

    def request(
        self,
        device: int,
        queue_of_device: ActorQueue,
        size_bytes: int,
        action: Action,
        argument: object,
    ) -> None:
        """Have ``action(argument)`` called when ``size_bytes`` have been moved."""
        duration_ps = self.duration_ps(size_bytes)
        check_not_at_start(queue_of_device.now_ps, duration_ps, "a memory access")
        node = self._shared_by(device)
        if node is None:
            queue_of_device.after(duration_ps, action, argument)
            return
        queue = self._requests.setdefault(node, deque())
        queue.append((queue_of_device, duration_ps, action, argument))
        if len(queue) == 1:
            queue_of_device.after(duration_ps, self._serve_next, queue)

    def _serve_next(self, queue: deque[_Request]) -> None:
        _, _, action, argument = queue.popleft()
        if queue:
            queue_of_device, duration_ps, _, _ = queue[0]
            queue_of_device.after(duration_ps, self._serve_next, queue)
        action(argument)

    def _shared_by(self, device: int) -> int | None:
        match self._remote.kind:
            case RemoteMemoryKind.PER_NODE_MEMORY_EXPANSION:
                return device // (self._remote.npus_per_node or 1)
            case RemoteMemoryKind.MEMORY_POOL:
                return 0
            case _:
                return None
