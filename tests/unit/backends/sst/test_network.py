from __future__ import annotations

import ast

import pytest

from hespas.backends.sst.network import network_text
from hespas.errors import HespasError
from hespas.hardware.system import NetworkDimension, System, Topology, bare_system


def system(*dimensions: tuple[Topology, int, float]) -> System:
    made = [
        NetworkDimension(
            topology=topology, npus_count=count, bandwidth_bytes_per_s=rate, latency_s=5e-7
        )
        for topology, count, rate in dimensions
    ]
    return bare_system("s", dimensions=tuple(made))


def test_a_switch_is_one_router() -> None:
    text = network_text(system((Topology.SWITCH, 8, 50e9)), prefix="rank")
    ast.parse(text)
    assert "topology = topoSingle()" in text
    assert "topology.num_ports = 8" in text
    assert 'router.link_bw = "50000000000B/s"' in text
    assert 'topology.link_latency = "500ns"' in text
    assert "SIRIUSTrace traceprefix=rank" in text


def test_rings_are_a_torus() -> None:
    text = network_text(system((Topology.RING, 4, 50e9), (Topology.RING, 2, 50e9)), prefix="rank")
    assert 'topology.shape = "4x2"' in text
    assert 'topology.width = "1x1"' in text


REFUSED = [
    ((Topology.RING, 4, 50e9), (Topology.RING, 2, 25e9)),
    ((Topology.SWITCH, 4, 50e9), (Topology.SWITCH, 2, 50e9)),
    ((Topology.SWITCH, 1, 50e9),),
    ((Topology.FULLY_CONNECTED, 4, 50e9),),
]


@pytest.mark.parametrize("dimensions", REFUSED)
def test_other_networks_are_refused(dimensions: tuple[tuple[Topology, int, float], ...]) -> None:
    with pytest.raises(HespasError):
        network_text(system(*dimensions), prefix="rank")
