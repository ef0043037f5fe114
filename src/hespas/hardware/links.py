"""Links by name: what a wire does by itself, and what collectives over it were measured to take.

A link preset is a file ``hespas/configs/links/<NAME>.json``; its keys are in
docs/reference/network-models.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from hespas.config.decode import decode
from hespas.config.files import read_json
from hespas.config.suggest import suggestion
from hespas.errors import HardwareError
from hespas.hardware.link_wire import LinkWire, MeasuredWire, ParametersWire, ProtocolWire

LINKS_DIRECTORY = Path(__file__).resolve().parent.parent / "configs" / "links"


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How messages of up to ``up_to_bytes`` (None: of any size) cross a link.

    Each takes ``overhead_s`` more, such as the handshake of a rendezvous, and gets
    ``bandwidth_fraction`` of the bandwidth, as one that sends a flag with every datum does. One
    that ``waits_for_receiver`` leaves only when its receive has been posted.
    """

    name: str
    up_to_bytes: int | None
    overhead_s: float = 0.0
    bandwidth_fraction: float = 1.0
    waits_for_receiver: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkParameters:
    """One direction of a wire.

    ``latency_s`` is that of a hop. ``step_overhead_s`` is what each message takes of its sender's
    time, one after the other. ``protocols`` are ordered by size, the last for any size; none
    means that all messages are alike. ``reduces_in_switch`` tells that the switches can reduce
    (SHARP, NVLS). ``pipeline_bytes`` is the piece in which trees hand data on (None: all of it).
    """

    bandwidth_bytes_per_s: float
    latency_s: float
    step_overhead_s: float = 0.0
    protocols: tuple[Protocol, ...] = ()
    reduces_in_switch: bool = False
    pipeline_bytes: int | None = None

    def protocol(self, size_bytes: int) -> Protocol | None:
        """Return the protocol of a message; None where the link tells none."""
        limits = [one.up_to_bytes for one in self.protocols if one.up_to_bytes is not None]
        return self.protocols[bisect_left(limits, size_bytes)] if self.protocols else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCollective:
    """A fit to measurements: ``latency_s + size / bandwidth_bytes_per_s`` up to ``up_to_bytes``.

    The size is the whole buffer: what one rank ends with for an all-gather, what it begins with
    for the others. ``up_to_bytes`` is None for the last fit, which holds for any larger size.
    """

    algorithm: str
    protocol: str
    up_to_bytes: int | None
    latency_s: float
    bandwidth_bytes_per_s: float

    def time_s(self, size_bytes: int) -> float:
        """Return how long the collective takes on an idle network."""
        return self.latency_s + size_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link preset.

    ``parameters`` is None where the preset holds only measurements. ``collectives`` gives, by
    kind (all_reduce, all_gather, reduce_scatter, all_to_all, send_recv) and by group size, the
    fits in order of size.
    """

    name: str
    source: str
    parameters: LinkParameters | None = None
    collectives: Mapping[str, Mapping[int, tuple[MeasuredCollective, ...]]] = field(
        default_factory=dict[str, Mapping[int, tuple[MeasuredCollective, ...]]]
    )

    def measured(self, kind: str, group_size: int, size_bytes: int) -> MeasuredCollective | None:
        """Return the fit for a collective; None where this kind and group size have none."""
        fits = self.collectives.get(kind, {}).get(group_size)
        if fits is None:
            return None
        limits = [fit.up_to_bytes for fit in fits if fit.up_to_bytes is not None]
        return fits[bisect_left(limits, size_bytes)]


def link_names() -> tuple[str, ...]:
    """Return the names of the link presets, sorted."""
    return tuple(sorted(path.stem for path in LINKS_DIRECTORY.glob("*.json")))


def load_link(name_or_path: str | Path) -> Link:
    """Return a link: a preset by its name, or a file by its path.

    Raises `HardwareError` for a name that no preset has and for figures that contradict each
    other, `ConfigError` for what a file may not hold.
    """
    known = link_names()
    if isinstance(name_or_path, str) and name_or_path in known:
        return read_link(LINKS_DIRECTORY / f"{name_or_path}.json")
    path = Path(name_or_path)
    if isinstance(name_or_path, str) and "/" not in name_or_path and not path.is_file():
        message = f"no link preset or file is named {name_or_path!r}"
        raise HardwareError(message, hint=suggestion(name_or_path, known))
    return read_link(path)


def read_link(path: Path) -> Link:
    """Return the link that a file describes. Raises as `load_link` does."""
    location = str(path)
    wire = decode(read_json(path), LinkWire, location=location)
    tables = {
        kind: MappingProxyType({
            _group_size(size, location): _fits(fits, f"{location}: {kind} of {size}")
            for size, fits in by_size.items()
        })
        for kind, by_size in wire.collectives.items()
    }  # fmt: skip
    if wire.link is None and not any(tables.values()):
        raise HardwareError("the link has neither parameters nor measurements", location=location)
    return Link(
        name=wire.name,
        source=wire.source,
        parameters=None if wire.link is None else link_parameters(wire.link, location),
        collectives=MappingProxyType(tables),
    )


def link_parameters(wire: ParametersWire, location: str) -> LinkParameters:
    """Return the parameters that a file gives. Raises `HardwareError` for unordered protocols."""
    _check_limits([one.up_to_bytes for one in wire.protocols], f"{location}: protocols")
    return LinkParameters(
        bandwidth_bytes_per_s=wire.bandwidth_bytes_per_s,
        latency_s=wire.latency_s,
        step_overhead_s=wire.step_overhead_s,
        protocols=tuple([_protocol(one) for one in wire.protocols]),
        reduces_in_switch=wire.reduces_in_switch,
        pipeline_bytes=wire.pipeline_bytes,
    )


def _protocol(wire: ProtocolWire) -> Protocol:
    return Protocol(
        name=wire.name,
        up_to_bytes=wire.up_to_bytes,
        overhead_s=wire.overhead_s,
        bandwidth_fraction=wire.bandwidth_fraction,
        waits_for_receiver=wire.waits_for_receiver,
    )


def _group_size(text: str, location: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise HardwareError(f"the group size is {text!r}", location=location, hint="give 2 or more")
    return int(text)


def _fits(wires: list[MeasuredWire], location: str) -> tuple[MeasuredCollective, ...]:
    _check_limits([wire.up_to_bytes for wire in wires], location)
    if not wires:
        raise HardwareError("there is no fit", location=location, hint="add one, or drop the size")
    return tuple([
        MeasuredCollective(
            algorithm=wire.algorithm,
            protocol=wire.protocol,
            up_to_bytes=wire.up_to_bytes,
            latency_s=wire.latency_s,
            bandwidth_bytes_per_s=wire.bandwidth_bytes_per_s,
        )
        for wire in wires
    ])  # fmt: skip


def _check_limits(limits: list[int | None], location: str) -> None:
    """Raise `HardwareError` unless sizes ascend and the last, and only it, is None."""
    sizes = [limit for limit in limits if limit is not None]
    is_ordered = all(one < other for one, other in pairwise(sizes))
    if limits and (limits[-1] is not None or len(sizes) != len(limits) - 1 or not is_ordered):
        hint = "let up_to_bytes ascend, and give null for the last"
        raise HardwareError(f"up_to_bytes is {limits}", location=location, hint=hint)
