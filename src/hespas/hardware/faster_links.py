"""A system whose links are faster than its own, for asking what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from hespas.errors import HardwareError
from hespas.hardware.graph import Graph
from hespas.hardware.interconnect import Dimension, Dimensions, Dragonfly, Fabric, Interconnect
from hespas.hardware.links import Link, LinkParameters, MeasuredCollective
from hespas.hardware.system import NetworkDimension, System

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
