"""A network some links of which differ from the others, or are dead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hespas.errors import HardwareError
from hespas.hardware.cluster import Cluster, LinkOverride
from hespas.simulate.flow.topology import Integers, Links, Reals, Routes, Topology


class OverriddenTopology:
    """Another topology, with the bandwidths and latencies of a cluster's ``links``.

    Messages go around links without bandwidth, which are dead, on a way of fewest moves. Raises
    `HardwareError` for a link that isn't there, and where no way is left.
    """

    def __init__(self, topology: Topology, cluster: Cluster) -> None:
        self._topology = topology
        self._overrides: dict[int, LinkOverride] = {}
        for override in cluster.links:
            link = topology.link_named(override.link)
            if link is None:
                hint = f"links are named as {topology.name(0)}"
                message = f"there is no link {override.link!r}"
                raise HardwareError(message, location=cluster.source, hint=hint)
            self._overrides[link] = override
        self._source = cluster.source
        self._dead = frozenset(link for link, each in self._overrides.items() if each.is_dead)
        self._detours: dict[tuple[int, int], Links] = {}

    def routes(
        self, sources: Sequence[int] | Integers, targets: Sequence[int] | Integers
    ) -> Routes:
        """Return the routes of messages from sources to targets, one by one."""
        routes = self._around(self._topology.routes(sources, targets), sources, targets)
        latency_ns = routes.latency_ns.copy()
        for link, override in self._overrides.items():
            np.add.at(
                latency_ns, routes.message[routes.link == link], override.extra_latency_s * 1e9
            )
        return replace(routes, latency_ns=latency_ns)

    def _around(
        self,
        routes: Routes,
        sources: Sequence[int] | Integers,
        targets: Sequence[int] | Integers,
    ) -> Routes:
        """Return routes of which none crosses a dead link."""
        crossing = np.isin(routes.link, list(self._dead))
        if not crossing.any():
            return routes
        moved: list[int] = np.unique(routes.message[crossing]).tolist()
        ways = [self._detour(int(sources[at]), int(targets[at])) for at in moved]
        stays = ~np.isin(routes.message, moved)
        latency_ns, dimensions = routes.latency_ns.copy(), routes.dimensions.copy()
        for at, way in zip(moved, ways, strict=True):
            latency_ns[at] = sum(self._topology.latency_ns(link) for link in way)
            crossed = {self._topology.dimension(link) for link in way} - {None}
            dimensions[at] = sum(1 << each for each in crossed if each is not None)
        links = np.array([link for way in ways for link in way], dtype=np.int64)
        return Routes(
            message=np.concatenate([
                routes.message[stays], np.repeat(moved, [len(way) for way in ways])
            ]),
            link=np.concatenate([routes.link[stays], links]),
            latency_ns=latency_ns,
            dimensions=dimensions,
        )  # fmt: skip

    def _detour(self, source: int, target: int) -> Links:
        if (source, target) not in self._detours:
            way = self._topology.detour(source, target, self._dead)
            if way is None:
                dead = ", ".join(self.name(link) for link in sorted(self._dead)[:3])
                raise HardwareError(
                    f"every way from device {source} to device {target} crosses a dead link: "
                    f"{dead} has a bandwidth_scale of 0",
                    location=self._source,
                    hint="give it some bandwidth, or leave its device out",
                )
            self._detours[source, target] = way
        return self._detours[source, target]

    def bytes_per_ns(self, links: Sequence[int] | Integers) -> Reals:
        """Return the bandwidth of links."""
        numbers = np.asarray(links, dtype=np.int64)
        result = self._topology.bytes_per_ns(numbers).copy()
        for link, override in self._overrides.items():
            here = numbers == link
            if override.bandwidth_bytes_per_s is not None:
                result[here] = override.bandwidth_bytes_per_s / 1e9
            result[here] *= override.bandwidth_scale
        return result

    def name(self, link: int) -> str:
        """Return what people call a link."""
        return self._topology.name(link)

    def link_named(self, name: str) -> int | None:
        """Return the number of a link; None if none has that name."""
        return self._topology.link_named(name)

    def latency_ns(self, link: int) -> float:
        """Return the latency of a link as it is without the override."""
        return self._topology.latency_ns(link)

    def dimension(self, link: int) -> int | None:
        """Return the dimension that a link lies along; None where there are none."""
        return self._topology.dimension(link)

    def detour(self, source: int, target: int, dead: frozenset[int]) -> Links | None:
        """Return the links of a way without dead links; None if there is no way."""
        return self._topology.detour(source, target, dead | self._dead)
