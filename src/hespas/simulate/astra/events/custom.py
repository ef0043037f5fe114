"""Collectives whose messages are written out in Chakra files, one per member, or in XML.

Source: ASTRA-sim's custom collectives. ``<kind>-implementation-custom`` in system.json gives the
prefix of ``<prefix>.<position>.et``, relative to the working directory, for all collectives of a
kind; ``per-node-custom-implementation`` a YAML map from ids of tasks to prefixes, which goes first.
What ends in ``.xml`` is an algorithm of MSCCL instead, which is verified before it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hespas.base.config_files import read_yaml
from hespas.errors import AlgorithmError, ConfigError, SimulationError
from hespas.hardware.system import System
from hespas.program.collectives import CollectiveKind
from hespas.simulate.astra.events.algorithms import DeviceContext
from hespas.simulate.astra.plan import PER_NODE, custom_option
from hespas.simulate.matching import TAG_LIMIT
from hespas.tasks.chakra.nodes import ParsedNode
from hespas.tasks.chakra.reader import read_messages
from hespas.tasks.graph import ComputeTask, ReceiveTask, SendTask

if TYPE_CHECKING:
    from hespas.collectives.program import Program

log = logging.getLogger("hespas")

_XML = ".xml"


class CustomCollectives:
    """The written out collectives of one system; each file is read, and verified, once.

    Raises `ConfigError` for a map that isn't one from ids to prefixes.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._per_node = _read_map(system.options.get(PER_NODE))
        self._read = cache(read_messages)
        self._algorithm = cache(_read_algorithm)
        self._graphs = cache(self._xml_graphs)
        self._warn = cache(_warn_of_graphs)

    def prefix(self, task_id: int, kind: CollectiveKind) -> str | None:
        """Return the prefix of the files for a task; None if it isn't written out."""
        given = self._system.options.get(custom_option(kind))
        named = cast("Sequence[str]", given)[0] if given else None
        return self._per_node.get(task_id, named)

    def nodes(
        self,
        prefix: str,
        device: int,
        members: Sequence[int],
        *,
        kind: CollectiveKind,
        size_bytes: int,
    ) -> Sequence[ParsedNode]:
        """Return what a device does.

        Raises `TraceError` for a file that is bad or absent, `AlgorithmError` for an algorithm
        that doesn't compute the collective, and `SimulationError` for a group that isn't in
        ascending order, in which ASTRA-sim takes one member for another. A Chakra graph that
        does something else runs as it is, as in ASTRA-sim, with a warning.
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

        algorithm = self._algorithm(path)
        return collective_graphs(
            Path(path), algorithm, kind=kind, members=members, size_bytes=size_bytes
        )


def _read_algorithm(path: str) -> Program:
    # numpy comes with it, which few runs need.
    from hespas.collectives.msccl_xml import read_verified  # noqa: PLC0415

    return read_verified(Path(path))


def _warn_of_graphs(prefix: str, kind: CollectiveKind, members: int) -> None:
    """Warn of graphs that don't compute what they are used for."""
    from hespas.collectives.chakra_verify import verify_graphs  # noqa: PLC0415 (as above)

    graphs = [read_messages(Path(f"{prefix}.{position}.et")) for position in range(members)]
    try:
        verify_graphs(graphs, kind, name=prefix)
    except AlgorithmError as error:
        log.warning("%s is no %s, and runs as it is: %s", prefix, kind.option, error)


def _read_map(given: object) -> Mapping[int, str]:
    if not given:
        return {}
    path = Path(str(given))
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise ConfigError("$ is not a map from ids to prefixes", location=str(path))
    entries = cast("dict[object, object]", data)
    for key, value in entries.items():
        if not isinstance(key, int) or not isinstance(value, str):
            raise ConfigError(f"{key!r}: {value!r} is not an id and a prefix", location=str(path))
    return cast("dict[int, str]", entries)


class CustomRun:
    """One member's messages and computations; no slots, no waits at endpoints.

    ``members`` are the devices that the files' peers stand for; ``done`` is called when all
    nodes have ended. Raises `SimulationError` for a peer that isn't one of them.
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
        self._left = len(nodes)
        self._missing = {number: len(node.task.depends_on) for number, node in self._nodes.items()}
        self._children: dict[int, list[int]] = {number: [] for number in self._nodes}
        for number in sorted(self._nodes):
            for dependency in self._nodes[number].task.depends_on:
                self._children[dependency].append(number)

    def start(self) -> None:
        """Start what depends on nothing."""
        for number in sorted(self._nodes):
            if not self._nodes[number].task.depends_on:
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
        self._left -= 1
        for child in self._children[number]:
            self._missing[child] -= 1
            if not self._missing[child]:
                self._start(child)
        if not self._left:
            self._done()
