"""Run every device of a job, message by message.

The order is that of ASTRA-sim's event queue. Collectives may be written out in files. Source:
ASTRA-sim's custom collectives. ``<kind>-implementation-custom`` in system.json gives the prefix of
``<prefix>.<position>.et``, relative to the working directory, for all collectives of a kind;
``per-node-custom-implementation`` is a YAML map from ids of tasks to prefixes, which has priority.
A name that ends in ``.xml`` is an algorithm of MSCCL instead, which is verified before its use.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import cache
from graphlib import TopologicalSorter
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hespas.base.decode import read_yaml
from hespas.base.units import PS_PER_NS
from hespas.errors import AlgorithmError, ConfigError, SimulationError
from hespas.hardware.system import System
from hespas.program.collectives import CollectiveKind
from hespas.simulate.astra.algorithms import DeviceContext, Streams
from hespas.simulate.astra.folding import Folded
from hespas.simulate.astra.messages import (
    Memory,
    RendezvousTransport,
    Transport,
    check_not_at_start,
    make_links,
)
from hespas.simulate.astra.plan import (
    PER_NODE,
    Plan,
    Planner,
    Queues,
    collective_kind,
    custom_option,
    reduce_ns,
    task_text,
)
from hespas.simulate.communicators import Channel
from hespas.simulate.devices import EVERYONE, NEVER, Device, End, Match, TaskRun
from hespas.simulate.engine import Engine
from hespas.simulate.kernel import TAG_LIMIT, Kernel, check_memory
from hespas.simulate.options import AstraSettings, ContentionModel
from hespas.tasks.chakra.nodes import ParsedNode
from hespas.tasks.chakra.reader import read_messages
from hespas.tasks.graph import CollectiveTask, ComputeTask, MemoryTask, ReceiveTask, SendTask

if TYPE_CHECKING:
    from hespas.collectives.program import Program


_CUSTOM_QUEUE = 0
_BYTES_PER_MESSAGE = 450
_XML = ".xml"

log = logging.getLogger("hespas")


def run_events(
    folded: Folded,
    devices: Sequence[Device],
    system: System,
    *,
    network: ContentionModel,
    settings: AstraSettings,
) -> None:
    """Run devices, each its own class, to their ends."""
    kernel = Kernel()
    links = make_links(network, system, kernel)
    transport = (RendezvousTransport if settings.rendezvous_protocol else Transport)(kernel, links)
    event_network = _EventNetwork(
        kernel, folded, devices, system, transport, queues_per_dimension=settings.queues
    )
    engine = Engine(kernel, devices, event_network)
    check_memory(event_network.most_messages(), bytes_each=_BYTES_PER_MESSAGE)
    engine.run()
    engine.check_complete()


class _EventNetwork:
    """ASTRA-sim's network with every message of its collectives."""

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
        self._context = cache(self._new_context)
        self._running: dict[Hashable, int] = {}

    def _new_context(self, device: Device) -> DeviceContext:
        return DeviceContext(
            device=device.devices[0],
            actor=device.clock,
            transport=self._transport,
            queues=Queues(self._width),
            trees={},
            reduce_ps=lambda size_bytes: reduce_ns(self._system, size_bytes) * PS_PER_NS,
        )

    def members(self, group: int) -> Collection[int]:
        if group == EVERYONE:
            return range(len(self._devices))
        return self._folded.groups[group].members

    def join(self, run: TaskRun, match: Match, end: End, *, is_complete: bool) -> None:
        del is_complete  # each member starts its part when it joins
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
            self._running[tag] -= 1
            if not self._running[tag]:
                del self._running[tag]
                for chunk in range(plan.chunks):
                    self._transport.forget((tag, chunk))

        self._running.setdefault(tag, len(self._devices) if members is None else len(members))
        Streams(plan, members, self._context(run.device), tag, done).start()

    def _start_custom(self, run: TaskRun, task: CollectiveTask, prefix: str, end: End) -> None:
        context = self._context(run.device)
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
        group = None if number == EVERYONE else self._folded.groups[number].group
        if group is None or isinstance(group, Channel) or len(group) == len(self._devices):
            return None
        return group

    def send(self, run: TaskRun, task: SendTask, end: End) -> None:
        if task.size_bytes == 0:
            raise SimulationError(f"send {task.id} ({task.name}) has no bytes to send")
        self._transport.send(self._transport.mailbox(*_mailbox_key(run, task)), end, run)

    def receive(self, run: TaskRun, task: ReceiveTask, end: End) -> None:
        self._transport.receive(self._transport.mailbox(*_mailbox_key(run, task)), end, run)

    def access(self, run: TaskRun, task: MemoryTask, end: End) -> None:
        context = self._context(run.device)
        self._memory.request(context.device, context.actor, task.size_bytes, end, run)

    def unmatched(self) -> Iterator[TaskRun]:
        """Yield the started sends and receives without a partner."""
        ends: dict[object, tuple[list[TaskRun], list[TaskRun]]] = defaultdict(lambda: ([], []))
        for device in self._devices:
            for run in device.runs.values():
                if isinstance(run.task, SendTask | ReceiveTask) and run.issue_ps != NEVER:
                    is_receive = isinstance(run.task, ReceiveTask)
                    ends[_mailbox_key(run, run.task)][is_receive].append(run)
        for sends, receives in ends.values():
            matched = min(len(sends), len(receives))
            for runs in (sends, receives):
                yield from sorted(runs, key=lambda run: run.issue_ps)[matched:]

    def most_messages(self) -> int:
        """Estimate the concurrent messages: one collective per device."""
        peers: dict[tuple[object, ...], int] = {}
        total = 0
        for device in self._devices:
            most_of_device = 0
            for run in device.runs.values():
                task = run.task
                if isinstance(task, CollectiveTask) and task.recorded_ps is None:
                    key = (task.kind, task.size_bytes, run.group)
                    if key not in peers:
                        peers[key] = self._peers(task, run.group)
                    most_of_device = max(most_of_device, peers[key])
            total += most_of_device
        return total

    def _peers(self, task: CollectiveTask, group: int) -> int:
        """Return a member's most peers per phase; 0 for errors."""
        try:
            plan = self._plan(task, self._group(group))
        except SimulationError:
            return 0  # reported when it starts
        sizes = [
            ring.size - 1 if ring.implementation.algorithm == "direct" else 1 for ring in plan.rings
        ]
        return plan.chunks * max(sizes, default=0)


def _mailbox_key(run: TaskRun, task: SendTask | ReceiveTask) -> tuple[int, int, int, int]:
    device = run.device.devices[0]
    if isinstance(task, SendTask):
        source, target = device, dict(task.pairs)[device]
    else:
        source = next(source for source, target in task.pairs if target == device)
        target = device
    return task.tag % TAG_LIMIT, source, target, task.size_bytes


class CustomCollectives:
    """One system's written-out collectives, each read once."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._per_node = _read_map(system.options.get(PER_NODE))
        self._read = cache(read_messages)
        self._program = cache(_read_program)
        self._graphs = cache(self._xml_graphs)
        self._warn = cache(_warn_of_graphs)

    def prefix(self, task_id: int, kind: CollectiveKind) -> str | None:
        """Return a task's file prefix; None if not written out."""
        option_value = self._system.options.get(custom_option(kind))
        kind_prefix = cast("Sequence[str]", option_value)[0] if option_value else None
        return self._per_node.get(task_id, kind_prefix)

    def nodes(
        self,
        prefix: str,
        device: int,
        members: Sequence[int],
        *,
        kind: CollectiveKind,
        size_bytes: int,
    ) -> Sequence[ParsedNode]:
        """Return a device's graph.

        Raises `AlgorithmError` for an algorithm that doesn't compute the collective, and
        `SimulationError` for a group that isn't in ascending order, for which ASTRA-sim confuses
        members. A Chakra graph that computes another collective runs unchanged, as in ASTRA-sim,
        with a warning.
        """
        if prefix.endswith(_XML):
            return self._graphs(prefix, kind, len(members), size_bytes)[members.index(device)]
        if list(members) != sorted(members):
            message = f"a custom collective in the group {list(members)}"
            raise SimulationError(message, hint="list its members in ascending order")
        self._warn(prefix, kind, len(members))
        return self._read(Path(f"{prefix}.{members.index(device)}.et"))

    def _xml_graphs(
        self, path: str, kind: CollectiveKind, members: int, size_bytes: int
    ) -> Sequence[Sequence[ParsedNode]]:
        from hespas.collectives.chakra_graphs import collective_graphs  # noqa: PLC0415 (as below)

        program = self._program(path)
        return collective_graphs(
            Path(path), program, kind=kind, members=members, size_bytes=size_bytes
        )


def _read_program(path: str) -> Program:
    # It imports numpy, which few runs need.
    from hespas.collectives.msccl_xml import read_verified  # noqa: PLC0415

    return read_verified(Path(path))


def _warn_of_graphs(prefix: str, kind: CollectiveKind, members: int) -> None:
    from hespas.collectives.chakra_graphs import verify_graphs  # noqa: PLC0415 (as above)

    graphs = [read_messages(Path(f"{prefix}.{position}.et")) for position in range(members)]
    try:
        verify_graphs(graphs, kind, name=prefix)
    except AlgorithmError as error:
        log.warning("%s is no %s, and runs as it is: %s", prefix, kind.option, error)


def _read_map(file_name: object) -> Mapping[int, str]:
    if not file_name:
        return {}
    path = Path(str(file_name))
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise ConfigError("$ is not a map from ids to prefixes", location=str(path))
    entries = cast("dict[object, object]", data)
    for key, value in entries.items():
        if not isinstance(key, int) or not isinstance(value, str):
            raise ConfigError(f"{key!r}: {value!r} is not an id and a prefix", location=str(path))
    return cast("dict[int, str]", entries)


class CustomRun:
    """One member's messages and computations, without slots and endpoint waits.

    ``members`` are the devices of the files' peer numbers.
    """

    def __init__(
        self,
        nodes: Sequence[ParsedNode],
        *,
        members: Sequence[int],
        context: DeviceContext,
        done: Callable[[], None],
    ) -> None:
        self._nodes = {node.task.id: node for node in nodes}
        self._members = members
        self._device = context.device
        self._actor = context.actor
        self._transport = context.transport
        self._done = done
        self._order = TopologicalSorter({
            number: node.task.depends_on for number, node in self._nodes.items()
        })  # fmt: skip
        self._order.prepare()

    def start(self) -> None:
        """Start all ready nodes."""
        for number in sorted(self._order.get_ready()):
            self._start(number)

    def _start(self, number: int) -> None:
        node = self._nodes[number]
        match node.task:
            case ComputeTask(duration_ps=duration_ps):
                self._actor.after(duration_ps, self._end, number)
            case SendTask(tag=tag, size_bytes=size_bytes):
                mailbox = self._transport.mailbox(
                    tag % TAG_LIMIT, self._device, self._peer(node), size_bytes
                )
                self._transport.send(mailbox, self._end, number)
            case ReceiveTask(tag=tag, size_bytes=size_bytes):
                mailbox = self._transport.mailbox(
                    tag % TAG_LIMIT, self._peer(node), self._device, size_bytes
                )
                self._transport.receive(mailbox, self._end, number)
            case _:
                raise SimulationError(f"node {number} of a custom collective has no model here")

    def _peer(self, node: ParsedNode) -> int:
        members = self._members
        peer = members[node.peer] if node.peer < len(members) else self._device
        if peer == self._device:
            message = f"node {node.task.id} of a custom collective names the peer {node.peer}"
            raise SimulationError(f"{message} of {len(members)}")
        return peer

    def _end(self, number: int) -> None:
        self._order.done(number)
        self.start()
        if not self._order.is_active():
            self._done()
