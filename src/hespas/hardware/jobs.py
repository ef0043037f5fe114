"""Divide a network's devices among several jobs."""

from __future__ import annotations

from enum import Enum

from hespas.base.frozen import frozen
from hespas.errors import HardwareError, option
from hespas.hardware.interconnect import Dimensions, Dragonfly, Interconnect


class Placement(Enum):
    """How devices are dealt to jobs.

    ``PACKED``: a block of neighbours each. ``SCATTERED``: node by node. ``RAIL``: device by device,
    so that as many jobs as a node has devices get a rail each.
    """

    PACKED = "packed"
    SCATTERED = "scattered"
    RAIL = "rail"


@frozen
class Jobs:
    """``count`` equal jobs that share all devices of a network."""

    count: int = 1
    placement: Placement = Placement.PACKED

    def devices(self, network: Interconnect) -> tuple[tuple[int, ...], ...]:
        """Return the devices of each job, else raise `HardwareError`.

        >>> from hespas.hardware.interconnect import switched
        >>> network = switched(6, bandwidth_bytes_per_s=1e9, latency_s=0.0)
        >>> Jobs(count=3).devices(network)
        ((0, 1), (2, 3), (4, 5))
        >>> Jobs(count=3, placement=Placement.RAIL).devices(network)
        ((0, 3), (1, 4), (2, 5))
        """
        total = network.device_count
        block = self._block(network)
        if total % self.count or total % (block * self.count):
            blocks = total // block if total % self.count == 0 else total
            noun = f"nodes of {block} devices" if blocks < total else "devices"
            raise HardwareError(
                f"{self.count} jobs do not share {blocks} {noun} evenly",
                location=network.name,
                hint=f"give {option('jobs')} a divisor of {blocks}",
            )
        return tuple(
            tuple(device for device in range(total) if device // block % self.count == job)
            for job in range(self.count)
        )

    def _block(self, network: Interconnect) -> int:
        """Return the size of a job's blocks of neighbours."""
        match self.placement:
            case Placement.PACKED:
                return max(1, network.device_count // self.count)
            case Placement.SCATTERED:
                return _node_size(network)
            case Placement.RAIL:
                return 1


def _node_size(network: Interconnect) -> int:
    match network.fabric:
        case Dimensions(dimensions=(node, _, *_)):
            return node.size
        case Dragonfly() as fabric:
            return fabric.devices_per_router
        case _:
            return 1


ALONE = Jobs()
"""One job has the whole network."""
