"""Imperfections of a cluster: devices, links, jitter, several programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from enum import Enum
from math import exp
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from hespas.base.decode import decode, read_document
from hespas.base.figures import MOST_DEVICES, MOST_DIGITS, CountOrZero, NotNegative, Positive, Text
from hespas.base.frozen import frozen
from hespas.base.units import format_time
from hespas.errors import ConfigError, HardwareError, option


class Distribution(Enum):
    """The distribution of factors on durations; ``sigma`` is its width."""

    LOGNORMAL = "lognormal"
    UNIFORM = "uniform"
    EXPONENTIAL = "exponential"


class Jitter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seeded random factors on each device's computations.

    Log-normal factors have a mean of 1 and the deviation ``sigma`` of their logarithm; uniform ones
    lie within ``sigma`` around 1; exponential ones are 1 plus ``sigma`` on average.
    """

    seed: int
    sigma: Annotated[float, Meta(gt=0, lt=1)]
    distribution: Distribution = Distribution.LOGNORMAL

    def factors(self, device: int) -> Iterator[float]:
        """Yield the factors of a device's computations."""
        from random import Random  # noqa: PLC0415 - few clusters have jitter

        random = Random(f"{self.seed} {device}")  # noqa: S311 - no secret
        sigma = self.sigma
        while True:
            match self.distribution:
                case Distribution.LOGNORMAL:
                    yield exp(random.gauss(-sigma * sigma / 2, sigma))
                case Distribution.UNIFORM:
                    yield 1 + random.uniform(-sigma, sigma)
                case Distribution.EXPONENTIAL:
                    yield 1 + random.expovariate(1 / sigma)


class LinkOverride(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link that differs from the others of its kind.

    Its bandwidth is ``bandwidth_bytes_per_s``, or its kind's, times ``bandwidth_scale``; a scale of
    0 makes it a dead link. Its latency is ``extra_latency_s`` longer.
    """

    link: Text
    bandwidth_scale: NotNegative = 1.0
    bandwidth_bytes_per_s: Positive | None = None
    extra_latency_s: NotNegative = 0.0

    @property
    def is_dead(self) -> bool:
        """Whether messages go around it."""
        return self.bandwidth_scale == 0


@frozen
class ProgramOf:
    """Devices that run traces of their own."""

    traces: Path
    devices: tuple[int, ...]


@frozen
class Cluster:
    """The imperfections of a cluster.

    ``compute_scales`` multiplies the durations of a device's computations, ``delays_s`` is when it
    starts; devices without an entry have 1 and 0. ``source`` names the file in errors.
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
        """Whether a device differs from the others."""
        return bool(self.compute_scales or self.delays_s or self.jitter is not None)

    @property
    def assumption(self) -> str:
        """What is not perfect, for the list of assumptions.

        >>> Cluster(source="c.yml", compute_scales={3: 1.3}, delays_s={0: 0.002}).assumption
        'imperfections: c.yml: 1 slow device (x1.3), 1 late device (2 ms)'
        """
        scales = self.compute_scales.values()
        groups = (
            ("slow device", [f"x{scale:.4g}" for scale in sorted(scales) if scale > 1]),
            ("fast device", [f"x{scale:.4g}" for scale in sorted(scales) if scale < 1]),
            ("late device", [format_time(delay) for delay in sorted(self.delays_s.values())]),
        )
        parts = [
            f"{_count_text(len(figures), name)} ({_range(figures)})"
            for name, figures in groups
            if figures
        ]
        dead = sum(link.is_dead for link in self.links)
        if dead < len(self.links):
            parts.append(_count_text(len(self.links) - dead, "changed link"))
        if dead:
            parts.append(f"{_count_text(dead, 'dead link')}, around which messages go")
        if self.jitter is not None:
            jitter = self.jitter
            parts.append(
                f"jitter {100 * jitter.sigma:.4g} % ({jitter.distribution.value}, "
                f"seed {jitter.seed})"
            )
        if self.programs:
            parts.append(_count_text(len(self.programs), "program"))
        return f"imperfections: {self.source}: {', '.join(parts) or 'none'}"


def _count_text(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def _range(figures: Sequence[str]) -> str:
    """Return the first and last figure, once if equal."""
    return " to ".join(dict.fromkeys((figures[0], figures[-1])))


# The file's entries name node types, sets of devices and paths relative to the file; a `Cluster`
# has factors and delays by device.


class _NodeType(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    compute_scale: Positive


class _Devices(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    devices: CountOrZero | Text | list[CountOrZero]
    compute_scale: Positive = 1.0
    delay_s: NotNegative = 0.0
    node_type: Text | None = None


class _Program(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    traces: Text
    devices: CountOrZero | Text | list[CountOrZero]


class _ClusterFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    node_types: dict[str, _NodeType] = {}
    devices: list[_Devices] = []
    links: tuple[LinkOverride, ...] = ()
    jitter: Jitter | None = None
    programs: list[_Program] = []


def read_cluster(name: str | Path) -> Cluster:
    """Return the cluster that a YAML or JSON file describes."""
    path, location = Path(name), str(name)
    data = read_document(path)
    file = decode(data, _ClusterFile, location=location)
    if not (file.devices or file.links or file.jitter or file.programs):
        raise ConfigError(
            "the file describes nothing of the cluster",
            location=location,
            hint=f"describe devices, links, jitter or programs, or leave {option('imperfect')} out",
        )
    scales: dict[int, float] = {}
    delays: dict[int, float] = {}
    for entry in file.devices:
        scale = entry.compute_scale
        if entry.node_type is not None:
            if entry.node_type not in file.node_types:
                raise HardwareError(
                    f"there is no node type {entry.node_type!r}",
                    location=location,
                    hint=f"node types: {', '.join(sorted(file.node_types)) or 'none'}",
                )
            scale *= file.node_types[entry.node_type].compute_scale
        for device in _numbers(entry.devices, location):
            scales[device] = scales.get(device, 1.0) * scale
            delays[device] = delays.get(device, 0.0) + entry.delay_s
    _refuse_no_effect(file, location)
    return Cluster(
        source=location,
        compute_scales={device: scale for device, scale in scales.items() if scale != 1.0},
        delays_s={device: delay for device, delay in delays.items() if delay},
        links=file.links,
        jitter=file.jitter,
        programs=tuple([
            ProgramOf(
                traces=Path(path).parent / entry.traces, devices=_numbers(entry.devices, location)
            )
            for entry in file.programs
        ]),
    )  # fmt: skip


def _refuse_no_effect(file: _ClusterFile, location: str) -> None:
    """Refuse entries that change nothing, and node types of no device."""
    for index, entry in enumerate(file.devices):
        if entry.node_type is None and entry.compute_scale == 1 and not entry.delay_s:
            raise ConfigError(
                f"$.devices[{index}] changes nothing",
                location=location,
                hint="give compute_scale, delay_s or node_type",
            )
    for index, link in enumerate(file.links):
        if link == LinkOverride(link=link.link):
            raise ConfigError(
                f"$.links[{index}] changes nothing",
                location=location,
                hint="give bandwidth_scale, bandwidth_bytes_per_s or extra_latency_s",
            )
    used = {entry.node_type for entry in file.devices}
    unused = next((name for name in file.node_types if name not in used), None)
    if unused is not None:
        message, hint = f"no device has the node type {unused!r}", "name it in devices, or drop it"
        raise ConfigError(message, location=location, hint=hint)


def _numbers(entry: int | str | list[int], location: str) -> tuple[int, ...]:
    """Return devices of ``3``, ``[0, 1]`` or ``"0-3, 7"``, ascending."""
    if isinstance(entry, int):
        return (entry,)
    if isinstance(entry, list):
        if not entry:
            raise ConfigError("a list of devices is empty", location=location, hint="name devices")
        return tuple(sorted(set(entry)))
    devices: set[int] = set()
    for part in entry.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            message = f"the devices are {entry!r}"
            raise ConfigError(message, location=location, hint='write them as "0-3, 7"')
        for number in (first, last or first):
            if len(number) > MOST_DIGITS or int(number) >= MOST_DEVICES:
                message = f"the devices are {entry[:60]!r}"
                hint = f"give numbers below {MOST_DEVICES}"
                raise ConfigError(message, location=location, hint=hint)
        if int(last or first) < int(first):
            message = f"the devices are {entry!r}, and {part.strip()} is none"
            hint = f'write "{last}-{first}"'
            raise ConfigError(message, location=location, hint=hint)
        devices.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(devices))
