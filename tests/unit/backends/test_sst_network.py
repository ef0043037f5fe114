from __future__ import annotations

import ast
import re

import pytest

from hespas.backends.sst import network_text
from hespas.errors import HespasError
from hespas.hardware.interconnect import Shape, dimension_of
from hespas.hardware.presets import load_system
from hespas.hardware.system import System, bare_system


def system(*dimensions: tuple[Shape, int, float]) -> System:
    made = [dimension_of(topology, count, rate, 5e-7) for topology, count, rate in dimensions]
    return bare_system("s", dimensions=tuple(made))


def test_a_switch_is_one_router() -> None:
    text = network_text(system((Shape.SWITCH, 8, 50e9)))
    ast.parse(text)
    assert "topology = topoSingle()" in text
    assert "topology.num_ports = 8" in text
    assert 'router.link_bw = "50000000000B/s"' in text
    assert 'topology.link_latency = "500ns"' in text
    assert "SIRIUSTrace traceprefix=rank" in text


def test_rings_are_a_torus() -> None:
    text = network_text(system((Shape.RING, 4, 50e9), (Shape.RING, 2, 50e9)))
    assert 'topology.shape = "4x2"' in text
    assert 'topology.width = "1x1"' in text


@pytest.mark.parametrize("preset", ["H100_80GB_8GPU", "A100_SXM_40GB_8GPU", "B200_180GB_8GPU"])
def test_a_link_is_not_held_back_by_its_buffers(preset: str) -> None:
    """A link carries no more than a buffer in a round trip, the time until a credit is back."""
    text = network_text(load_system(preset))
    (link,) = load_system(preset).dimensions
    sizes = [float(size) for size in re.findall(r'put_buf_size = "(.+)B"', text)]
    assert len(sizes) == 4
    assert min(sizes) > link.bandwidth_bytes_per_s * 2 * link.latency_s


def test_buffers_grow_with_what_a_link_carries_meanwhile() -> None:
    slow = dimension_of(Shape.SWITCH, 4, 100e9, 1e-3)
    text = network_text(bare_system("far", dimensions=(slow,)))
    assert min(map(float, re.findall(r'put_buf_size = "(.+)B"', text))) > 100e9 * 2e-3


def test_figures_are_those_of_the_dimension_that_has_devices() -> None:
    text = network_text(system((Shape.RING, 1, 1e9), (Shape.SWITCH, 8, 50e9)))
    assert 'router.link_bw = "50000000000B/s"' in text


REFUSED = [
    ((Shape.RING, 4, 50e9), (Shape.RING, 2, 25e9)),
    ((Shape.SWITCH, 4, 50e9), (Shape.SWITCH, 2, 50e9)),
    ((Shape.SWITCH, 1, 50e9),),
    ((Shape.FULLY_CONNECTED, 4, 50e9),),
]


@pytest.mark.parametrize("dimensions", REFUSED)
def test_other_networks_are_refused(dimensions: tuple[tuple[Shape, int, float], ...]) -> None:
    with pytest.raises(HespasError):
        network_text(system(*dimensions))
