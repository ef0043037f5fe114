"""Scale the links of a system."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar, cast

import msgspec

from hespas.base.frozen import frozen
from hespas.base.units import format_quantity
from hespas.errors import HardwareError, option
from hespas.hardware.interconnect import Dimension, Dimensions
from hespas.hardware.system import LinkBandwidth, System, interconnect_of

_T = TypeVar("_T")

LEAST_LATENCY_S = 1e-9
"""No latency is made smaller: ASTRA-sim counts ns, and aborts where a message takes no time."""


@frozen
class LinkFactors:
    """Factors on links' bandwidths and latencies.

    ``bandwidth`` multiplies bandwidths, those of measured collectives among them; ``latency`` every
    time that doesn't depend on the size: latencies, overheads of messages, delays of endpoints.
    """

    bandwidth: float = 1.0
    latency: float = 1.0

    def __post_init__(self) -> None:
        if not (self.bandwidth > 0 and self.latency >= 0):
            raise HardwareError(f"these factors make no link: {self}", hint="give positive ones")

    def latency_s(self, latency_s: float) -> float:
        """Scale a latency, down to the least possible."""
        return max(latency_s * self.latency, min(latency_s, LEAST_LATENCY_S))


def with_links(system: System, factors: LinkFactors, *, dimension: int | None = None) -> System:
    """Return a system with scaled links, optionally of one dimension.

    >>> from hespas.hardware.presets import load_system
    >>> system = load_system("A100_SXM_40GB_4GPU")
    >>> twice = with_links(system, LinkFactors(bandwidth=2.0))
    >>> twice.dimensions[0].bandwidth_bytes_per_s / system.dimensions[0].bandwidth_bytes_per_s
    2.0
    """

    def scaled(dimensions: tuple[Dimension, ...]) -> tuple[Dimension, ...]:
        return tuple([
            _scaled(entry, factors) if dimension in {None, number} else entry
            for number, entry in enumerate(dimensions)
        ])  # fmt: skip

    changed = system.with_dimensions(scaled)
    if dimension is not None:
        return changed
    interconnect = changed.interconnect
    if interconnect is not None:
        fabric, delay_s = interconnect.fabric, interconnect.endpoint_delay_s
        interconnect = replace(
            interconnect,
            fabric=fabric if isinstance(fabric, Dimensions) else _scaled(fabric, factors),
            endpoint_delay_s=factors.latency_s(delay_s),
        )
    delay_s = factors.latency_s(system.endpoint_delay_s)
    return replace(changed, endpoint_delay_s=delay_s, interconnect=interconnect)


def _scaled(value: _T, factors: LinkFactors) -> _T:
    """Return a description with all its rates and latencies scaled."""
    scaled: object = value
    if isinstance(value, tuple):
        scaled = tuple([_scaled(entry, factors) for entry in cast("tuple[object, ...]", value)])
    elif isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value).items()
        scaled = MappingProxyType({key: _scaled(entry, factors) for key, entry in entries})
    elif isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        scaled = msgspec.structs.replace(value, **_changes(value, names, factors))
    elif is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        scaled = replace(value, **_changes(value, names, factors))
    return cast("_T", scaled)


def _changes(value: object, names: Iterable[str], factors: LinkFactors) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for name in names:
        figure: Any = getattr(value, name)
        match name:
            case "bandwidth_bytes_per_s":
                changes[name] = figure * factors.bandwidth
            case "latency_s":
                changes[name] = factors.latency_s(figure)
            case "step_overhead_s" | "overhead_s":
                changes[name] = figure * factors.latency
            case _:
                changes[name] = _scaled(figure, factors)
    return changes


def with_link_bandwidths(system: System, changes: Sequence[LinkBandwidth]) -> System:
    """Change a system's link bandwidths, with notes.

    A system with the same changes is returned as it is. Raises `HardwareError` for
    dimensions that the system doesn't have, or that have one device.

    >>> from hespas.hardware.sized import find_system
    >>> slow = with_link_bandwidths(
    ...     find_system("16xH100_80GB"), [LinkBandwidth(dimension=1, factor=0.5)]
    ... )
    >>> slow.assumptions[-1]
    'links along dimension 1 (2 devices): 25 GB/s each, x0.5 of 50 GB/s'
    """
    changed_links = tuple(changes)
    if not changed_links or changed_links == system.changed_links:
        return system
    for change in changed_links:
        system = _with_link_bandwidth(system, change)
    return replace(system, changed_links=changed_links)


def _with_link_bandwidth(system: System, change: LinkBandwidth) -> System:
    dimensions, number = interconnect_of(system).dimensions, change.dimension
    location = f"{option('link_bandwidth')} {change}"
    if not dimensions:
        raise HardwareError(
            f"the network of {system.name} has no dimensions",
            location=location,
            hint=f"give the links in its description, or in a file with {option('imperfect')}",
        )
    sizes = [dimension.size for dimension in dimensions]
    if number >= len(sizes) or sizes[number] == 1:
        is_there = number < len(sizes)
        reason = "has one device, so that it has no links" if is_there else "is not there"
        linked = ", ".join(f"{n} ({size} devices)" for n, size in enumerate(sizes) if size > 1)
        raise HardwareError(
            f"dimension {number} of {system.name} {reason}",
            location=location,
            hint=f"give one of these: {linked}" if linked else "drop it",
        )
    old_bytes_per_s = dimensions[number].bandwidth_bytes_per_s
    new_bytes_per_s = change.bytes_per_s or old_bytes_per_s * change.factor
    note = (
        f"links along dimension {number} ({sizes[number]} devices): "
        f"{format_quantity(new_bytes_per_s, 'B/s')} each, "
        f"x{new_bytes_per_s / old_bytes_per_s:.4g} of {format_quantity(old_bytes_per_s, 'B/s')}"
    )

    def exact(dimensions: tuple[Dimension, ...]) -> tuple[Dimension, ...]:
        changed = list(dimensions)
        for dimension in dimensions[number : number + 1]:
            link = msgspec.structs.replace(
                dimension.parameters, bandwidth_bytes_per_s=new_bytes_per_s
            )
            changed[number] = replace(dimension, parameters=link)
        return tuple(changed)

    scaled = with_links(
        system, LinkFactors(bandwidth=new_bytes_per_s / old_bytes_per_s), dimension=number
    )
    if change.bytes_per_s is not None:
        scaled = scaled.with_dimensions(exact)
    return replace(scaled, assumptions=(*system.assumptions, note))
