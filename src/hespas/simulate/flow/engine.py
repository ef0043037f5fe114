"""The engine: device classes run their tasks on streams, and transfers share links."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TypeAlias, assert_never

from hespas.base.units import PS_PER_NS, to_gb_per_s, to_ns
from hespas.errors import SimulationError, option
from hespas.hardware.system import RemoteMemory, RemoteMemoryKind
from hespas.simulate.flow.device import Device
from hespas.simulate.flow.groups import Signature, signature_of
from hespas.simulate.flow.symmetry import Classes
from hespas.simulate.flow.transfers import Transfer, Transfers, make_transfer
from hespas.simulate.kernel import Kernel
from hespas.simulate.matching import (
    CollectiveMatch,
    Collectives,
    Mailbox,
    Mailboxes,
    check_complete,
    mismatch,
)
from hespas.tasks.graph import (
    CollectiveTask,
    ComputeTask,
    EmptyTask,
    MemoryTask,
    ReceiveTask,
    SendTask,
)

_Endpoint: TypeAlias = tuple[Device, int]
"""A class of devices, and the index of its task."""


class Engine:
    """One simulation. `run` fills in when each task of each device class starts and ends.

    ``remote`` is the memory outside the devices, of which each has its own.
    """

    def __init__(self, classes: Classes, remote: RemoteMemory | None) -> None:
        self._groups = classes.groups
        self.devices = [
            Device(number, one, classes.world, lambda group: self._groups[group].devices)
            for number, one in enumerate(classes.devices)
        ]
        self._world = classes.world
        self._remote = remote
        self._kernel = Kernel()
        self._transfers = Transfers(self._kernel, classes.capacities)
        self._transfer_of: dict[tuple[int, Signature], Transfer] = {}
        self._changed: set[int] = set()
        self._collectives: Collectives[_Endpoint] = Collectives()
        self._mailboxes: Mailboxes[_Endpoint] = Mailboxes()

    def run(self) -> None:
        """Advance time until nothing happens any more.

        Raises `SimulationError` if members of a group start different collectives, and for a
        deadlock.
        """
        self._changed.update(range(len(self.devices)))
        self._kernel.run(self._settle)
        # Where messages wait for their receivers, an endpoint may wait in two mailboxes.
        messages = list(dict.fromkeys(self._mailboxes.waiting()))
        check_complete(self.devices, self._collectives.pending(), messages, self._member_classes)

    def _settle(self) -> None:
        """Start what can start after all that ended at this instant, and share the links anew."""
        while self._changed:
            changed = sorted(self._changed)
            self._changed.clear()
            for number in changed:
                self._start_ready(self.devices[number])
        self._transfers.settle()

    def _member_classes(self, group: int) -> Collection[int]:
        return range(len(self.devices)) if group == self._world else self._groups[group].members

    def _end(self, endpoint: _Endpoint) -> None:
        device, index = endpoint
        device.end(index, self._kernel.now_ps)
        self._changed.add(device.number)

    def _start_ready(self, device: Device) -> None:
        for index in device.take_ready():
            device.issue_ps[index] = self._kernel.now_ps
            task = device.tasks[index]
            endpoint = (device, index)
            match task:
                case ComputeTask():
                    self._kernel.after(task.duration_ps, self._end, endpoint)
                case CollectiveTask():
                    self._join(endpoint, device.groups[index], task)
                case SendTask():
                    self._send(endpoint, device.groups[index], task)
                case ReceiveTask():
                    self._receive(endpoint, device.groups[index], task)
                case MemoryTask(duration_ps=int(duration_ps)):
                    self._kernel.after(duration_ps, self._end, endpoint)
                case MemoryTask():
                    duration_ps = _memory_duration_ps(self._remote, task)
                    self._kernel.after(duration_ps, self._end, endpoint)
                case EmptyTask():
                    self._end(endpoint)
                case _:
                    assert_never(task)

    def _join(self, endpoint: _Endpoint, group: int, task: CollectiveTask) -> None:
        """Start a collective once all its members have joined."""
        now_ps = self._kernel.now_ps
        signature = signature_of(task)
        match = self._collectives.join(
            group, endpoint[0].number, endpoint, signature=signature, now_ps=now_ps
        )
        if match.signature != signature:
            raise SimulationError(mismatch(match, endpoint, now_ps))
        if len(match.endpoints) == len(self._member_classes(group)):
            self._collectives.complete(match)
            for device, index in match.endpoints.values():
                device.begin(index, now_ps)
            end = partial(self._end_collective, match)
            self._transfers.start(self._transfer(group, signature), end)

    def _end_collective(self, match: CollectiveMatch[_Endpoint]) -> None:
        for endpoint in match.endpoints.values():
            self._end(endpoint)

    def _transfer(self, group: int, signature: Signature) -> Transfer:
        key = (group, signature)
        if key not in self._transfer_of:
            of_class = self._groups[group]
            plan = of_class.plans[signature]
            self._transfer_of[key] = make_transfer(
                plan, of_class.uses, has_rivals=plan in of_class.rivals
            )
        return self._transfer_of[key]

    def _mailbox(
        self, group: int, task: SendTask | ReceiveTask, *, is_ready: bool = False
    ) -> Mailbox[_Endpoint]:
        """Return the mailbox of a message; or that of the notices that a receiver is ready."""
        source, target = self._groups[group].devices
        tag = ("ready", task.tag) if is_ready else task.tag
        return self._mailboxes.mailbox(tag, source, target, task.size_bytes)

    def _waits_for_receiver(self, group: int, task: SendTask | ReceiveTask) -> bool:
        return self._groups[group].plans[signature_of(task)].waits_for_receiver

    def _send(self, sender: _Endpoint, group: int, task: SendTask) -> None:
        waits = self._waits_for_receiver(group, task)
        if waits and self._mailbox(group, task, is_ready=True).receive(sender) is None:
            return
        self._carry(sender, group, task)

    def _receive(self, receiver: _Endpoint, group: int, task: ReceiveTask) -> None:
        if self._waits_for_receiver(group, task):
            sender = self._mailbox(group, task, is_ready=True).deliver(receiver)
            if sender is not None:
                self._carry(sender, group, task)
        if self._mailbox(group, task).receive(receiver) is not None:
            self._end(receiver)

    def _carry(self, sender: _Endpoint, group: int, task: SendTask | ReceiveTask) -> None:
        """Start to transfer a message."""
        mailbox, now_ps = self._mailbox(group, task), self._kernel.now_ps
        device, index = sender
        device.begin(index, now_ps)
        self._transfers.start(
            self._transfer(group, signature_of(task)),
            partial(self._arrive, mailbox, sender, now_ps),
        )

    def _arrive(self, mailbox: Mailbox[_Endpoint], sender: _Endpoint, begin_ps: int) -> None:
        self._end(sender)
        receiver = mailbox.deliver(sender)
        if receiver is not None:
            device, index = receiver
            device.begin(index, begin_ps)
            self._end(receiver)


def _memory_duration_ps(remote: RemoteMemory | None, task: MemoryTask) -> int:
    """Return ``latency + size / bandwidth``. Raises `SimulationError` for shared memory."""
    location = f"task {task.id} ({task.name})"
    if remote is None or remote.kind is RemoteMemoryKind.NO_MEMORY_EXPANSION:
        message = "the system has no memory outside the devices"
        hint = "give another memory-type in remote_memory.json"
        raise SimulationError(message, location=location, hint=hint)
    is_own = remote.kind is RemoteMemoryKind.PER_NPU_MEMORY_EXPANSION
    if not is_own or remote.latency_s is None or remote.bandwidth_bytes_per_s is None:
        message = f"{remote.kind.value} has no model in hespas' own network model"
        raise SimulationError(message, location=location, hint=f"use {option('model')} astra-sim")
    bytes_per_ns = to_gb_per_s(remote.bandwidth_bytes_per_s)
    time_ns = to_ns(remote.latency_s) + task.size_bytes / bytes_per_ns
    return int(time_ns * PS_PER_NS)
