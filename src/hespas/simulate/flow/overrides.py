"""A wiring with some links that are not like the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hespas.errors import HardwareError
from hespas.hardware.cluster import Cluster, LinkOverride
from hespas.simulate.flow.ways import Ways, Wiring

if TYPE_CHECKING:
    from hespas.simulate.flow.ways import Integers, Reals


class OverriddenWiring:
    """Another wiring, with the bandwidths and latencies of a cluster's ``links``.

    Raises `HardwareError` for a link that isn't there.
    """

    def __init__(self, wiring: Wiring, cluster: Cluster) -> None:
        self._wiring = wiring
        self._of_link: dict[int, LinkOverride] = {}
        for one in cluster.links:
            link = wiring.link_named(one.link)
            if link is None:
                hint = f"links are named as {wiring.name(0)}"
                message = f"there is no link {one.link!r}"
                raise HardwareError(message, location=cluster.source, hint=hint)
            self._of_link[link] = one

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return self._wiring.device_count

    def routes(self, sources: Sequence[int] | Integers, targets: Sequence[int] | Integers) -> Ways:
        """Return the ways of messages from sources to targets, one by one."""
        import numpy as np  # noqa: PLC0415 - numpy takes 60 ms to import

        ways = self._wiring.routes(sources, targets)
        latency_ns = ways.latency_ns.copy()
        for link, one in self._of_link.items():
            np.add.at(latency_ns, ways.message[ways.link == link], one.extra_latency_s * 1e9)
        return Ways(message=ways.message, link=ways.link, latency_ns=latency_ns, kinds=ways.kinds)

    def bytes_per_ns(self, links: Sequence[int] | Integers) -> Reals:
        """Return the bandwidth of links."""
        import numpy as np  # noqa: PLC0415 - as above

        numbers = np.asarray(links, dtype=np.int64)
        result = self._wiring.bytes_per_ns(numbers).copy()
        for link, one in self._of_link.items():
            here = numbers == link
            if one.bandwidth_bytes_per_s is not None:
                result[here] = one.bandwidth_bytes_per_s / 1e9
            result[here] *= one.bandwidth_scale
        return result

    def name(self, link: int) -> str:
        """Return what people call a link."""
        return self._wiring.name(link)

    def link_named(self, name: str) -> int | None:
        """Return the number of a link; None if none has that name."""
        return self._wiring.link_named(name)
