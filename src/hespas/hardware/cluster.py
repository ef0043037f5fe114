"""What is not perfect about a cluster: slow devices, bad links, jitter, several programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from hespas.config.decode import decode
from hespas.config.files import read_json, read_yaml
from hespas.errors import ConfigError, HardwareError
from hespas.hardware.cluster_wire import ClusterWire, DevicesWire, JitterWire


class Distribution(Enum):
    """How the factors on durations are distributed; ``sigma`` is their width."""

    LOGNORMAL = "lognormal"
    UNIFORM = "uniform"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """Every computation of every device takes a factor of its own longer, drawn with ``seed``.

    Log-normal factors have a mean of 1 and the deviation ``sigma`` of their logarithm; uniform
    ones lie within ``sigma`` around 1; exponential ones are 1 and ``sigma`` more on average.
    """

    seed: int
    sigma: float
    distribution: Distribution = Distribution.LOGNORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOverride:
    """A link that is not like the others of its kind.

    Its bandwidth is ``bandwidth_bytes_per_s``, if given, times ``bandwidth_scale``; its latency
    ``extra_latency_s`` longer.
    """

    link: str
    bandwidth_scale: float = 1.0
    bandwidth_bytes_per_s: float | None = None
    extra_latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOf:
    """Devices that run traces of their own."""

    traces: Path
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The imperfections of a cluster.

    ``compute_scales`` multiplies the durations of a device's computations, ``delays_s`` is when
    it starts; devices that aren't there have 1 and 0. ``source`` names the file in errors.
    """

    source: str = "cluster"
    compute_scales: Mapping[int, float] = field(default_factory=dict[int, float])
    delays_s: Mapping[int, float] = field(default_factory=dict[int, float])
    links: tuple[LinkOverride, ...] = ()
    jitter: Jitter | None = None
    programs: tuple[ProgramOf, ...] = ()

    def __post_init__(self) -> None:
        for device, scale in self.compute_scales.items():
            if not scale > 0:
                message = f"compute_scale of device {device} is {scale}"
                raise HardwareError(message, location=self.source, hint="give a positive number")

    @property
    def changes_devices(self) -> bool:
        """Whether some device is not like the others."""
        return bool(self.compute_scales or self.delays_s or self.jitter is not None)


def read_cluster(path: Path) -> Cluster:
    """Return the cluster that a YAML or JSON file describes.

    Raises `ConfigError` for what the file may not hold, `HardwareError` for devices and node
    types that don't exist.
    """
    location = str(path)
    data = read_json(path) if path.suffix == ".json" else read_yaml(path)
    wire = decode(data, ClusterWire, location=location)
    if not (wire.devices or wire.links or wire.jitter or wire.programs):
        raise ConfigError(
            "nothing of the cluster is described",
            location=location,
            hint="describe devices, links, jitter or programs, or drop --cluster",
        )
    scales: dict[int, float] = {}
    delays: dict[int, float] = {}
    for entry in wire.devices:
        scale = entry.compute_scale * _scale_of_type(entry, wire, location)
        for device in _numbers(entry.devices, location):
            scales[device] = scales.get(device, 1.0) * scale
            delays[device] = delays.get(device, 0.0) + entry.delay_s
    return Cluster(
        source=location,
        compute_scales={device: scale for device, scale in scales.items() if scale != 1.0},
        delays_s={device: delay for device, delay in delays.items() if delay},
        links=tuple([
            LinkOverride(
                link=entry.link,
                bandwidth_scale=entry.bandwidth_scale,
                bandwidth_bytes_per_s=entry.bandwidth_bytes_per_s,
                extra_latency_s=entry.extra_latency_s,
            )
            for entry in wire.links
        ]),
        jitter=_jitter(wire.jitter),
        programs=tuple([
            ProgramOf(
                traces=path.parent / entry.traces, devices=_numbers(entry.devices, location)
            )
            for entry in wire.programs
        ]),
    )  # fmt: skip


def _scale_of_type(entry: DevicesWire, wire: ClusterWire, location: str) -> float:
    if entry.node_type is None:
        return 1.0
    if entry.node_type not in wire.node_types:
        hint = f"known: {', '.join(sorted(wire.node_types)) or 'none'}"
        message = f"there is no node type {entry.node_type!r}"
        raise HardwareError(message, location=location, hint=hint)
    return wire.node_types[entry.node_type].compute_scale


def _jitter(wire: JitterWire | None) -> Jitter | None:
    if wire is None:
        return None
    return Jitter(seed=wire.seed, sigma=wire.sigma, distribution=Distribution(wire.distribution))


def _numbers(given: int | str | list[int], location: str) -> tuple[int, ...]:
    """Return the devices of ``3``, ``[0, 1]`` or ``"0-3, 7"``, each once, ascending."""
    if isinstance(given, int):
        return (given,)
    if isinstance(given, list):
        return tuple(sorted(set(given)))
    found: set[int] = set()
    for part in given.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            message = f"the devices are {given!r}"
            raise ConfigError(message, location=location, hint='write them as "0-3, 7"')
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))
