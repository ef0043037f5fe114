"""Read how devices are wired from NCCL's or hwloc's files.

`read_machine_links` reads NCCL's topology (``NCCL_TOPO_DUMP_FILE``) and hwloc's
(``lstopo machine.xml``). Devices that all have NVLinks are connected by these alone, others by PCIe
through bridges and sockets. What such a file does not say, the bandwidth of one NVLink and of the
link between sockets, is a `MachineFile`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from hespas.base.decode import read_text
from hespas.base.figures import NotNegative, Positive, Text
from hespas.base.frozen import frozen
from hespas.errors import HardwareError, UnsupportedError

if TYPE_CHECKING:
    from xml.etree import ElementTree


@dataclass(frozen=True, slots=True)
class Edge:
    """A link from one node to another, by name."""

    source: str
    target: str
    bandwidth_bytes_per_s: float
    latency_s: float

    @property
    def reversed(self) -> Edge:
        """The same link in the other direction."""
        return replace(self, source=self.target, target=self.source)


@frozen
class Graph:
    """Devices and switches by name, and links between them.

    Devices are numbered as listed. A message takes a path of fewest links; of several, always the
    same for the same two ends, by a hash of both and of ``seed``.
    """

    devices: tuple[str, ...]
    switches: tuple[str, ...]
    edges: tuple[Edge, ...]
    seed: int = 0

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return len(self.devices)


class LinkFigures(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link in one direction; the file has other latencies."""

    bandwidth_bytes_per_s: Positive
    latency_s: NotNegative | None = None


class MachineFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of NCCL or hwloc (XML), or of infragraph.

    ``link_latency_s`` is the latency of links for which the file has none. Files of XML need the
    bandwidths of one NVLink, and of the link from one socket to another, in one direction. Files of
    infragraph may have ``links`` by name, and ``leave_out_links``, which carry no messages.
    """

    file: Text
    link_latency_s: NotNegative | None = None
    nvlink_bandwidth_bytes_per_s: Positive | None = None
    socket_bandwidth_bytes_per_s: Positive | None = None
    links: dict[Text, LinkFigures] = {}
    leave_out_links: tuple[Text, ...] = ()


_NVSWITCH = "nvswitch"
_SWITCH_CLASS = "0x068000"
_GPU_CLASS = "0x03"
_ACCELERATORS = ("0302", "1200")
"""PCI classes: 3D controllers and processing accelerators."""

_COPROCESSOR = frozenset({"5", "Co-Processor"})
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?) ?GT/s.*")
_WIDTH = re.compile(r"[1-9][0-9]?")
_MOST_NVLINKS = re.compile(r"[1-9][0-9]{0,2}")
_USEFUL = ((5.0, 8 / 10), (32.0, 128 / 130), (64.0, 236 / 256))
"""The part of PCIe's bits that is data, up to a rate in GT/s.

Source: PCI Express Base Specification, 6.0: 8b/10b and 128b/130b, and packets of 236 in 256 bytes.
"""


@dataclass(slots=True, kw_only=True)
class _Machine:
    """A PCIe tree of devices, and their NVLinks."""

    location: str
    order: dict[str, int] = field(default_factory=dict[str, int])
    above: dict[str, tuple[str, float | None]] = field(
        default_factory=dict[str, tuple[str, float | None]]
    )
    sockets: list[str] = field(default_factory=list[str])
    nvlinks: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(sorted(self.order, key=lambda name: (self.order[name], name)))

    def error(self, message: str, hint: str) -> HardwareError:
        return HardwareError(message, location=self.location, hint=hint)


def read_machine_links(path: Path, figures: MachineFile) -> Graph:
    """Return the network of a machine's devices.

    Raises `ConfigError` for a file that cannot be read, `HardwareError` for one that is not a
    topology or does not say enough, and for a figure that has no effect on it.
    """
    machine = _Machine(location=str(path))
    if figures.link_latency_s is None:
        raise machine.error("it says no latency", "give link_latency_s, that of each link")
    if figures.links or figures.leave_out_links:
        name = "links" if figures.links else "leave_out_links"
        raise machine.error(f"{name} has no effect on what NCCL and hwloc write", "drop it")
    root = _root(path)
    match root.tag:
        case "system":
            _read_nccl(root, machine)
        case "topology":
            _read_hwloc(root, machine)
        case _:
            raise machine.error(
                f"its root is <{root.tag}>", "give what NCCL or lstopo wrote: <system>, <topology>"
            )
    if not machine.order:
        raise machine.error("it has no device", "write it on a machine with GPUs")
    rates = _nvlink_rates(machine, figures) if machine.nvlinks else _pcie_rates(machine, figures)
    edges = [Edge(*ends, rate, figures.link_latency_s) for ends, rate in rates.items()]
    ends = dict.fromkeys(source for source, _ in rates)
    switches = tuple([name for name in ends if name not in machine.order])
    return Graph(devices=machine.devices, switches=switches, edges=tuple(edges))


def _root(path: Path) -> ElementTree.Element:
    from xml.etree import ElementTree  # noqa: PLC0415 - few machines are described so

    text = read_text(path)
    if "<!ENTITY" in text:
        raise HardwareError("it declares entities", location=str(path), hint="delete them")
    try:
        return ElementTree.fromstring(text)  # noqa: S314 - it declares no entities
    except (ElementTree.ParseError, ValueError) as error:
        message = f"it is malformed: {error}"
        raise HardwareError(message, location=str(path), hint="write it again") from None


def _read_nccl(root: ElementTree.Element, machine: _Machine) -> None:
    """Read ``<cpu>`` of nested ``<pci>`` with ``<gpu>`` and ``<nvlink>``."""
    for number, cpu in enumerate(root.iterfind("cpu")):
        socket = f"socket{cpu.get('numaid', number)}"
        if socket in machine.sockets:
            raise machine.error(f"{socket} is there twice", "give the topology of one machine")
        machine.sockets.append(socket)
        pending = [(socket, child) for child in cpu.iterfind("pci")]
        while pending:
            parent, pci = pending.pop()
            name = _bus_name(pci.get("busid"), machine)
            machine.above[name] = (parent, _nccl_bandwidth(pci))
            pending += [(name, child) for child in pci.iterfind("pci")]
            for gpu in pci.iterfind("gpu"):
                machine.order[name] = _number(gpu, "dev", machine)
                _read_nvlinks(name, gpu, machine)


def _bus_name(name: str | None, machine: _Machine) -> str:
    if not name or name in machine.above:
        message = f"bus {name} is there twice" if name else "a <pci> has no busid"
        raise machine.error(message, "give the topology of one machine")
    return name


def _number(element: ElementTree.Element, name: str, machine: _Machine) -> int:
    text = element.get(name, "")
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise machine.error(f"{name} of a <{element.tag}> is {text!r}", "write it again")
    return int(text)


def _read_nvlinks(name: str, gpu: ElementTree.Element, machine: _Machine) -> None:
    for link in gpu.iterfind("nvlink"):
        target, kind, count = (link.get(key, "") for key in ("target", "tclass", "count"))
        if not _MOST_NVLINKS.fullmatch(count):
            raise machine.error(f"count of an <nvlink> of {name} is {count!r}", "write it again")
        if kind != _SWITCH_CLASS and not kind.startswith(_GPU_CLASS):
            raise UnsupportedError(
                f"an NVLink of {name} goes to a device of class {kind or 'unknown'}",
                location=machine.location,
                hint="describe the machine as a graph",
            )
        machine.nvlinks.append((name, _NVSWITCH if kind == _SWITCH_CLASS else target, int(count)))


def _nccl_bandwidth(pci: ElementTree.Element) -> float | None:
    """Return bytes/s in one direction, if the file says."""
    speed = _SPEED.fullmatch(pci.get("link_speed", ""))
    width = _WIDTH.fullmatch(pci.get("link_width", ""))
    if speed is None or width is None:
        return None
    rate = float(speed[1])
    useful = next((part for highest_rate, part in _USEFUL if rate <= highest_rate), 0.0)
    return rate * 1e9 * int(width[0]) * useful / 8 or None


def _read_hwloc(root: ElementTree.Element, machine: _Machine) -> None:
    """Read nested ``<object>``: packages, bridges and PCI devices."""
    if any("NVLink" in element.get("name", "") for element in root):
        raise UnsupportedError(
            "the machine has NVLinks, of which hwloc says too little",
            location=machine.location,
            hint="give the topology that NCCL writes (NCCL_TOPO_DUMP_FILE)",
        )
    pending = [("", child) for child in root.iterfind("object")]
    while pending:
        parent, element = pending.pop()
        name = parent
        match element.get("type"):
            case "Machine" | "Package":
                name = f"socket{len(machine.sockets)}"
                machine.sockets.append(name)
            case "Bridge" if element.get("bridge_type", "").startswith("1"):
                name = _add_hwloc(element, parent, machine)
            case "PCIDev" if _is_accelerator(element):
                name = _add_hwloc(element, parent, machine)
                machine.order[name] = 0
            case _:
                pass
        pending += [(name, child) for child in element.iterfind("object")]


def _add_hwloc(element: ElementTree.Element, parent: str, machine: _Machine) -> str:
    name = _bus_name(element.get("pci_busid"), machine)
    machine.above[name] = (parent, _hwloc_bandwidth(element, machine))
    return name


def _is_accelerator(element: ElementTree.Element) -> bool:
    kinds = {child.get("osdev_type") for child in element.iterfind("object")}
    return element.get("pci_type", "").startswith(_ACCELERATORS) or bool(kinds & _COPROCESSOR)


def _hwloc_bandwidth(element: ElementTree.Element, machine: _Machine) -> float | None:
    """Return bytes/s in one direction; hwloc's 0 is unknown."""
    text = element.get("pci_link_speed", "0")
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,9})?", text):
        raise machine.error(f"pci_link_speed is {text!r}", "write it again")
    return float(text) * 1e9 or None


_Rates = dict[tuple[str, str], float]
"""The bandwidth of a link, by the nodes that it goes from and to."""


def _nvlink_rates(machine: _Machine, figures: MachineFile) -> _Rates:
    """Return NVLinks, added up between each two nodes."""
    if figures.nvlink_bandwidth_bytes_per_s is None:
        hint = "give nvlink_bandwidth_bytes_per_s, of one link in one direction"
        raise machine.error("it does not say how fast an NVLink is", hint)
    if figures.socket_bandwidth_bytes_per_s is not None:
        raise machine.error("socket_bandwidth_bytes_per_s has no effect on NVLinks", "drop it")
    linked = {source for source, _, _ in machine.nvlinks}
    for name in machine.devices:
        if name not in linked:
            raise machine.error(f"{name} has no NVLink, others have", "describe it as a graph")
    rates: _Rates = {}
    for source, target, count in machine.nvlinks:
        if target != _NVSWITCH and target not in machine.order:
            raise machine.error(f"an NVLink of {source} goes to {target}", "name a device of it")
        rate = count * figures.nvlink_bandwidth_bytes_per_s
        rates[source, target] = rates.get((source, target), 0.0) + rate
        if target == _NVSWITCH:
            rates[target, source] = rates[source, target]
    return rates


def _pcie_rates(machine: _Machine, figures: MachineFile) -> _Rates:
    if figures.nvlink_bandwidth_bytes_per_s is not None:
        raise machine.error("nvlink_bandwidth_bytes_per_s has no effect: no NVLinks", "drop it")
    needed = dict.fromkeys(name for device in machine.devices for name in _path(device, machine))
    rates: _Rates = {}
    for name in needed:
        if name in machine.above:
            parent, bandwidth = machine.above[name]
            if bandwidth is None:
                hint = "add the speed of its link to the file"
                raise machine.error(f"it does not say how fast the link of {name} is", hint)
            rates[name, parent] = rates[parent, name] = bandwidth
    sockets = [name for name in needed if name in machine.sockets]
    socket_rate = figures.socket_bandwidth_bytes_per_s
    if len(sockets) > 1 and socket_rate is None:
        hint = "give socket_bandwidth_bytes_per_s"
        raise machine.error("it does not say how fast sockets are connected", hint)
    if len(sockets) <= 1 and socket_rate is not None:
        raise machine.error("it has one socket", "drop socket_bandwidth_bytes_per_s")
    return rates | dict.fromkeys(permutations(sockets, 2), socket_rate or 0.0)


def _path(device: str, machine: _Machine) -> Iterator[str]:
    """Yield a device and all above it, its socket last."""
    name = device
    while name:
        yield name
        name = machine.above[name][0] if name in machine.above else ""
