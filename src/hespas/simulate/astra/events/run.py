"""Run every device of a job, message by message, in the order of ASTRA-sim's event queue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Sequence
from math import ceil

from hespas.base.units import PS_PER_NS
from hespas.errors import SimulationError
from hespas.hardware.system import System
from hespas.simulate.astra.events.algorithms import DeviceContext, Streams
from hespas.simulate.astra.events.custom import CustomCollectives, CustomRun
from hespas.simulate.astra.events.network import (
    Memory,
    RendezvousTransport,
    Transport,
    check_not_at_start,
    make_links,
)
from hespas.simulate.astra.folding import Channel, Folded
from hespas.simulate.astra.plan import (
    ContentionModel,
    Plan,
    Planner,
    Queues,
    collective_kind,
    reduce_ns,
    task_text,
)
from hespas.simulate.device import EVERYONE, NEVER, Device, TaskRun
from hespas.simulate.engine import End, Engine, Match
from hespas.simulate.kernel import Kernel, check_memory
from hespas.simulate.matching import TAG_LIMIT
from hespas.tasks.graph import CollectiveTask, MemoryTask, ReceiveTask, SendTask

_CUSTOM_QUEUE = 0
_BYTES_PER_MESSAGE = 450


def run_events(
    folded: Folded,
    devices: Sequence[Device],
    system: System,
    *,
    network: ContentionModel,
    queues_per_dimension: int,
    rendezvous: bool,
) -> None:
    """Run devices, each a class of its own in ``folded``, to their ends.

    Raises `SimulationError` if members of a collective start different ones, or somebody waits
    for ever.
    """
    kernel = Kernel()
    links = make_links(network, system, kernel)
    transport = (RendezvousTransport if rendezvous else Transport)(kernel, links)
    event_network = _EventNetwork(
        kernel, folded, devices, system, transport, queues_per_dimension=queues_per_dimension
    )
    engine = Engine(kernel, devices, event_network)
    event_network.get_ready()
    engine.run()
    engine.check_complete()


class _EventNetwork:
    """ASTRA-sim's network with every message, and the collectives that they make up."""

    def __init__(
        self,
        kernel: Kernel,
        folded: Folded,
        devices: Sequence[Device],
        system: System,
        transport: Transport,
        *,
        queues_per_dimension: int,
    ) -> None:
        self._kernel = kernel
        self._folded = folded
        self._devices = devices
        self._system = system
        self._transport = transport
        self._width = ceil(system.active_chunks_per_dimension / queues_per_dimension)
        self._planner = Planner(system, queues_per_dimension)
        self._custom = CustomCollectives(system)
        self._memory = Memory(system.remote_memory, kernel)
        self._contexts: list[DeviceContext] = []
        self._left: dict[Hashable, int] = {}

    def get_ready(self) -> None:
        """Get ready for devices that have clocks; `SimulationError` for too many messages."""
        check_memory(self._most_messages(), bytes_each=_BYTES_PER_MESSAGE)
        self._contexts = [
            DeviceContext(
                device=device.devices[0],
                actor=device.clock,
                transport=self._transport,
                queues=Queues(self._width),
                trees={},
                reduce_ps=lambda size_bytes: reduce_ns(self._system, size_bytes) * PS_PER_NS,
            )
            for device in self._devices
        ]

    def members(self, group: int) -> Collection[int]:
        if group == EVERYONE:
            return range(len(self._devices))
        return self._folded.groups[group].members

    def join(self, run: TaskRun, match: Match, end: End, *, is_complete: bool) -> None:
        del is_complete  # each member starts its part when it comes
        task = run.task
        if not isinstance(task, CollectiveTask):
            raise TypeError(task)
        try:
            prefix = self._custom.prefix(task.id, collective_kind(task))
            if prefix is None:
                self._start_collective(run, task, match, end)
            else:
                self._start_custom(run, task, prefix, end)
        except SimulationError as error:
            error.location = error.location or task_text(task)
            raise

    def _start_collective(self, run: TaskRun, task: CollectiveTask, match: Match, end: End) -> None:
        members = self._group(run.group)
        plan = self._plan(task, members)
        check_not_at_start(self._kernel.now_ps, plan.endpoint_ps, "an endpoint's delay")
        tag = ("collective", run.group, match.number)

        def done() -> None:
            end(run)
            self._left[tag] -= 1
            if not self._left[tag]:
                del self._left[tag]
                for chunk in range(plan.chunks):
                    self._transport.forget((tag, chunk))

        self._left.setdefault(tag, len(self._devices) if members is None else len(members))
        Streams(plan, members, self._contexts[run.device.number], tag, done).start()

    def _start_custom(self, run: TaskRun, task: CollectiveTask, prefix: str, end: End) -> None:
        context = self._contexts[run.device.number]
        members = self._group(run.group) or range(len(self._devices))
        nodes = self._custom.nodes(
            prefix,
            context.device,
            members,
            kind=collective_kind(task),
            size_bytes=task.size_bytes,
        )

        def done() -> None:
            end(run)
            context.queues.leave(_CUSTOM_QUEUE)

        custom = CustomRun(nodes, members=members, context=context, done=done)
        context.queues.enter(_CUSTOM_QUEUE, custom.start)
        context.queues.kick(_CUSTOM_QUEUE)

    def _plan(self, task: CollectiveTask, members: tuple[int, ...] | None) -> Plan:
        kind = collective_kind(task)
        if members is None:
            return self._planner.everyone(kind, task.size_bytes, task.involved_dimensions)
        return self._planner.group(kind, task.size_bytes, len(members))

    def _group(self, number: int) -> tuple[int, ...] | None:
        """Return the members of a group; None for everyone."""
        group = None if number == EVERYONE else self._folded.groups[number].group
        if group is None or isinstance(group, Channel) or len(group) == len(self._devices):
            return None
        return group

    def send(self, run: TaskRun, task: SendTask, end: End) -> None:
        if task.size_bytes == 0:
            raise SimulationError(f"send {task.id} ({task.name}) has no bytes to send")
        self._transport.send(self._transport.mailbox(*_ends(run, task)), end, run)

    def receive(self, run: TaskRun, task: ReceiveTask, end: End) -> None:
        self._transport.receive(self._transport.mailbox(*_ends(run, task)), end, run)

    def access(self, run: TaskRun, task: MemoryTask, end: End) -> None:
        context = self._contexts[run.device.number]
        self._memory.request(context.device, context.actor, task.size_bytes, end, run)

    def unmatched(self) -> Iterator[TaskRun]:
        """Yield the sends without a receive, and the receives without a send, that have started."""
        ends: dict[object, tuple[list[TaskRun], list[TaskRun]]] = defaultdict(lambda: ([], []))
        for device in self._devices:
            for run in device.runs.values():
                if isinstance(run.task, SendTask | ReceiveTask) and run.issue_ps != NEVER:
                    is_receive = isinstance(run.task, ReceiveTask)
                    ends[_ends(run, run.task)][is_receive].append(run)
        for sends, receives in ends.values():
            for some, others in ((sends, receives), (receives, sends)):
                some.sort(key=lambda run: run.issue_ps)
                yield from some[len(others) :]

    def _most_messages(self) -> int:
        """Return about how many messages there are at a time: of one collective a device."""
        peers: dict[tuple[object, ...], int] = {}
        total = 0
        for device in self._devices:
            most = 0
            for run in device.runs.values():
                task = run.task
                if isinstance(task, CollectiveTask) and task.recorded_ps is None:
                    key = (task.kind, task.size_bytes, run.group)
                    if key not in peers:
                        peers[key] = self._peers(task, run.group)
                    most = max(most, peers[key])
            total += most
        return total

    def _peers(self, task: CollectiveTask, group: int) -> int:
        """Return how many others a member sends to at most in one phase; 0 where it is an error."""
        try:
            plan = self._plan(task, self._group(group))
        except SimulationError:
            return 0  # reported when it starts
        sizes = [
            ring.size - 1 if ring.implementation.algorithm == "direct" else 1 for ring in plan.rings
        ]
        return plan.chunks * max(sizes, default=0)


def _ends(run: TaskRun, task: SendTask | ReceiveTask) -> tuple[int, int, int, int]:
    """Return what a message is known by: its tag, source, target and size."""
    device = run.device.devices[0]
    if isinstance(task, SendTask):
        source, target = device, dict(task.pairs)[device]
    else:
        source = next(source for source, target in task.pairs if target == device)
        target = device
    return task.tag % TAG_LIMIT, source, target, task.size_bytes
