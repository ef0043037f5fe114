from __future__ import annotations

import pytest

from hespas.errors import HardwareError
from hespas.hardware.interconnect import Dimensions as Fabric
from hespas.hardware.interconnect import Interconnect, Shape, dimension_of, switched
from hespas.hardware.jobs import ALONE, Jobs, Placement

NODES = Interconnect(
    name="4 nodes of 2",
    fabric=Fabric(
        dimensions=(
            dimension_of(Shape.SWITCH, 2, 1e9, 0.0),
            dimension_of(Shape.SWITCH, 4, 1e9, 0.0),
        )
    ),
)


@pytest.mark.parametrize(
    ("placement", "first"),
    [
        (Placement.PACKED, (0, 1, 2, 3)),
        (Placement.SCATTERED, (0, 1, 4, 5)),
        (Placement.RAIL, (0, 2, 4, 6)),
    ],
)
def test_devices_are_dealt_by_blocks(placement: Placement, first: tuple[int, ...]) -> None:
    jobs = Jobs(count=2, placement=placement).devices(NODES)
    assert jobs[0] == first
    assert sorted(device for own in jobs for device in own) == list(range(8))


def test_one_job_has_all_devices() -> None:
    assert ALONE.devices(NODES) == (tuple(range(8)),)


def test_blocks_that_do_not_divide_the_devices_are_refused() -> None:
    network = switched(6, bandwidth_bytes_per_s=1e9, latency_s=0.0)
    with pytest.raises(HardwareError, match="4 jobs do not share 6 devices evenly"):
        Jobs(count=4).devices(network)
    with pytest.raises(HardwareError, match="8 jobs do not share 4 nodes of 2 devices"):
        Jobs(count=8, placement=Placement.SCATTERED).devices(NODES)
    with pytest.raises(HardwareError, match="3 jobs do not share 8 devices evenly"):
        Jobs(count=3, placement=Placement.SCATTERED).devices(NODES)
