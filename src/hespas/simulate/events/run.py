"""Run every device of a job, message by message."""

from __future__ import annotations

from math import ceil

from hespas.errors import SimulationError
from hespas.hardware.system import System
from hespas.simulate.events.carriers import make_carrier
from hespas.simulate.events.clock import Clock
from hespas.simulate.events.device import Device, World
from hespas.simulate.events.memory import Memory
from hespas.simulate.events.post import Post, RendezvousPost
from hespas.simulate.events.rings import Plan, Planner
from hespas.simulate.events.streams import Member, Streams
from hespas.simulate.fold import Channel, Folded, Place
from hespas.simulate.kinds import collective_kind, task_text
from hespas.simulate.machine import EVERYONE, NEVER, Machine
from hespas.simulate.meeting import Meetings
from hespas.simulate.network import Network, reduce_ns
from hespas.simulate.timeline import Timeline
from hespas.trace.devices_text import devices_text
from hespas.trace.tasks import CollectiveTask

_PS_PER_NS = 1000


def run_events(
    folded: Folded,
    system: System,
    *,
    network: Network,
    queues_per_dimension: int,
    rendezvous: bool,
) -> Timeline:
    """Return what devices, each a class of its own in ``folded``, do.

    Raises `SimulationError` if members of a collective start different ones, or somebody waits
    for ever.
    """
    machines = [Machine(number, one) for number, one in enumerate(folded.devices)]
    meetings = Meetings(machines, [one.members for one in folded.places])
    clock = Clock()
    carrier = make_carrier(network, system, clock)
    world = World(
        clock=clock,
        post=RendezvousPost(clock, carrier) if rendezvous else Post(clock, carrier),
        memory=Memory(system.remote_memory),
        meetings=meetings,
        start_collective=_Starter(
            [one.place for one in folded.places], system, queues_per_dimension
        ),
    )
    for device in [Device(machine, world) for machine in machines]:
        device.start_ready()
    clock.run()
    meetings.check_complete()
    for machine in machines:
        _check_ended(machine)
    return Timeline(classes=tuple([machine.timeline() for machine in machines]))


class _Starter:
    """Starts the parts of devices in collectives."""

    def __init__(self, places: list[Place], system: System, queues: int) -> None:
        self._places = places
        self._system = system
        self._everyone = system.device_count
        self._planner = Planner(system, queues)
        self._width = ceil(system.active_chunks_per_dimension / queues)

    def __call__(self, device: Device, index: int, task: CollectiveTask, count: int) -> None:
        place = device.machine.places[index]
        member = Member(
            device=device.number,
            alarms=device.alarms,
            post=device.world.post,
            trees=device.trees,
            reduce_ps=self._reduce_ps,
        )
        tag = ("collective", place, count)
        plan = self._plan(task, place)
        Streams(plan, self._width, member, tag, device.ender(index)).start()

    def _reduce_ps(self, size_bytes: int) -> int:
        return reduce_ns(self._system, size_bytes) * _PS_PER_NS

    def _plan(self, task: CollectiveTask, place: int) -> Plan:
        kind = collective_kind(task)
        try:
            group = None if place == EVERYONE else self._places[place]
            if group is None or isinstance(group, Channel) or len(group) == self._everyone:
                return self._planner.everyone(kind, task.size_bytes, task.involved_dimensions)
            return self._planner.group(kind, task.size_bytes, group)
        except SimulationError as error:
            raise SimulationError(error.message, place=task_text(task), mend=error.mend) from error


def _check_ended(machine: Machine) -> None:
    if NEVER in machine.end_ps:
        task = machine.tasks[machine.end_ps.index(NEVER)]
        who = devices_text(machine.devices)
        raise SimulationError(f"{who} never end task {task.id} ({task.name})")
