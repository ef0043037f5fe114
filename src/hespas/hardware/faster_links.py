"""A system whose links are faster or slower than its own, for asking what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from hespas.base.units import format_quantity
from hespas.errors import HardwareError, option
from hespas.hardware.interconnect import (
    Dimension,
    Dimensions,
    Dragonfly,
    Fabric,
    Interconnect,
    interconnect_of,
)
from hespas.hardware.links import Link, LinkParameters, MeasuredCollective
from hespas.hardware.machine_links import Graph
from hespas.hardware.system import LinkBandwidth, NetworkDimension, System

LEAST_LATENCY_S = 1e-9
"""No latency is made smaller: ASTRA-sim counts ns, and aborts where a message takes no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFactors:
    """Factors on what links do.

    ``bandwidth`` multiplies bandwidths, those of measured collectives among them; ``latency``
    every time that doesn't depend on the size: latencies, overheads of messages, delays of
    endpoints. Raises `HardwareError` for a bandwidth that is not above 0, and a latency below 0.
    """

    bandwidth: float = 1.0
    latency: float = 1.0

    def __post_init__(self) -> None:
        if not (self.bandwidth > 0 and self.latency >= 0):
            raise HardwareError(f"these factors make no link: {self}", hint="give positive ones")

    def latency_s(self, latency_s: float) -> float:
        """Return a latency times the factor, but not less than the least there is."""
        return max(latency_s * self.latency, min(latency_s, LEAST_LATENCY_S))


def with_links(system: System, factors: LinkFactors, *, dimension: int | None = None) -> System:
    """Return a system whose links differ by factors: all of them, or those along one dimension.

    >>> from hespas.hardware.presets import load_system
    >>> system = load_system("A100_SXM_40GB_4GPU")
    >>> twice = with_links(system, LinkFactors(bandwidth=2.0))
    >>> twice.dimensions[0].bandwidth_bytes_per_s / system.dimensions[0].bandwidth_bytes_per_s
    2.0
    """
    own = system.interconnect
    is_all = dimension is None
    dimensions = tuple(
        [
            _dimension_of_astra_sim(each, factors) if is_all or at == dimension else each
            for at, each in enumerate(system.dimensions)
        ]
    )
    return replace(
        system,
        dimensions=dimensions,
        described=None if system.described is None else dimensions,
        endpoint_delay_s=factors.latency_s(system.endpoint_delay_s)
        if is_all
        else system.endpoint_delay_s,
        interconnect=None if own is None else _interconnect(own, factors, dimension),
    )  # fmt: skip


def with_link_bandwidths(system: System, changes: Sequence[LinkBandwidth]) -> System:
    """Return a system whose links have other bandwidths, as it says in its assumptions.

    A system that has been changed so before is returned as it is. Raises `HardwareError` for
    dimensions that the system doesn't have, or that have one device.

    >>> from hespas.hardware.sized import find_system
    >>> slow = with_link_bandwidths(
    ...     find_system("16xH100_80GB"), [LinkBandwidth(dimension=1, factor=0.5)]
    ... )
    >>> slow.assumptions[-1]
    'links along dimension 1 (2 devices): 25 GB/s each, x0.5 of 50 GB/s'
    """
    wanted = tuple(changes)
    if not wanted or wanted == system.changed_links:
        return system
    for change in wanted:
        system = _with_link_bandwidth(system, change)
    return replace(system, changed_links=wanted)


def _with_link_bandwidth(system: System, change: LinkBandwidth) -> System:
    fabric, at = interconnect_of(system).fabric, change.dimension
    where = f"{option('link_bandwidth')} {change}"
    if not isinstance(fabric, Dimensions):
        raise HardwareError(
            f"the network of {system.name} has no dimensions",
            location=where,
            hint=f"give the links in its description, or in a file with {option('imperfect')}",
        )
    sizes = [dimension.size for dimension in fabric.dimensions]
    if at >= len(sizes) or sizes[at] == 1:
        has = "has one device, so that it has no links" if at < len(sizes) else "is not there"
        known = ", ".join(f"{n} ({size} devices)" for n, size in enumerate(sizes) if size > 1)
        raise HardwareError(
            f"dimension {at} of {system.name} {has}",
            location=where,
            hint=f"give one of these: {known}" if known else "drop it",
        )
    before = fabric.dimensions[at].parameters.bandwidth_bytes_per_s
    after = change.bytes_per_s or before * change.factor
    note = (
        f"links along dimension {at} ({sizes[at]} devices): {format_quantity(after, 'B/s')} each, "
        f"x{after / before:.4g} of {format_quantity(before, 'B/s')}"
    )
    described = system.dimensions[at : at + 1]
    changed = with_links(system, LinkFactors(bandwidth=after / before), dimension=at)
    if change.bytes_per_s is not None and described:
        exact = replace(described[0], bandwidth_bytes_per_s=after)
        dimensions = (*changed.dimensions[:at], exact, *changed.dimensions[at + 1 :])
        is_described = changed.described is not None
        changed = replace(
            changed, dimensions=dimensions, described=dimensions if is_described else None
        )
    return replace(changed, assumptions=(*system.assumptions, note))


def _dimension_of_astra_sim(given: NetworkDimension, factors: LinkFactors) -> NetworkDimension:
    return replace(
        given,
        bandwidth_bytes_per_s=given.bandwidth_bytes_per_s * factors.bandwidth,
        latency_s=factors.latency_s(given.latency_s),
    )


def _interconnect(given: Interconnect, factors: LinkFactors, at: int | None) -> Interconnect:
    delay_s = given.endpoint_delay_s
    return replace(
        given,
        fabric=_fabric(given.fabric, factors, at),
        endpoint_delay_s=factors.latency_s(delay_s) if at is None else delay_s,
    )


def _fabric(fabric: Fabric, factors: LinkFactors, at: int | None) -> Fabric:
    match fabric:
        case Dimensions(dimensions=dimensions):
            changed = [
                _dimension(each, factors) if at in {None, number} else each
                for number, each in enumerate(dimensions)
            ]
            return Dimensions(dimensions=tuple(changed))
        case Dragonfly():
            return replace(
                fabric,
                device_link=_parameters(fabric.device_link, factors),
                local_link=_parameters(fabric.local_link, factors),
                global_link=_parameters(fabric.global_link, factors),
            )
        case Graph(edges=edges):
            changed_edges = [
                replace(
                    edge,
                    bandwidth_bytes_per_s=edge.bandwidth_bytes_per_s * factors.bandwidth,
                    latency_s=factors.latency_s(edge.latency_s),
                )
                for edge in edges
            ]
            return replace(fabric, edges=tuple(changed_edges))


def _dimension(given: Dimension, factors: LinkFactors) -> Dimension:
    measured = given.measured
    return replace(
        given,
        parameters=_parameters(given.parameters, factors),
        measured=None if measured is None else _measured(measured, factors),
    )


def _parameters(given: LinkParameters, factors: LinkFactors) -> LinkParameters:
    return msgspec.structs.replace(
        given,
        bandwidth_bytes_per_s=given.bandwidth_bytes_per_s * factors.bandwidth,
        latency_s=factors.latency_s(given.latency_s),
        step_overhead_s=given.step_overhead_s * factors.latency,
        protocols=tuple([
            msgspec.structs.replace(each, overhead_s=each.overhead_s * factors.latency)
            for each in given.protocols
        ]),
    )  # fmt: skip


def _measured(link: Link, factors: LinkFactors) -> Link:
    def by_group(
        tables: Mapping[int, tuple[MeasuredCollective, ...]],
    ) -> Mapping[int, tuple[MeasuredCollective, ...]]:
        return MappingProxyType({
            members: tuple([_fit(each, factors) for each in fits])
            for members, fits in tables.items()
        })  # fmt: skip

    collectives = {kind: by_group(tables) for kind, tables in link.collectives.items()}
    return replace(link, collectives=MappingProxyType(collectives))


def _fit(given: MeasuredCollective, factors: LinkFactors) -> MeasuredCollective:
    return msgspec.structs.replace(
        given,
        bandwidth_bytes_per_s=given.bandwidth_bytes_per_s * factors.bandwidth,
        latency_s=factors.latency_s(given.latency_s),
    )
