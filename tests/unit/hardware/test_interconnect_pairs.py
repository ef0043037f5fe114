"""Devices that are connected in pairs share their links among the others; a network is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hespas.errors import HardwareError
from hespas.hardware.faster_links import LinkFactors, with_links
from hespas.hardware.interconnect import Dimensions, Shape, dimension_of
from hespas.hardware.presets import load_system, system_names
from hespas.hardware.sized import find_system
from hespas.hardware.system import System, interconnect_of
from hespas.simulate.flow.simulate import simulate_flow
from small_jobs import all_reduce, graph

PAIRED = ("A100_SXM_40GB_4GPU", "A100_SXM_80GB_4GPU", "B200_180GB_4GPU", "H100_80GB_4GPU")


@pytest.mark.parametrize("name", PAIRED)
def test_a_pair_has_its_share_of_a_device_s_links(name: str) -> None:
    system = load_system(name)
    fabric = interconnect_of(system).fabric
    assert isinstance(fabric, Dimensions)
    (own,) = fabric.dimensions
    assert own.shape is Shape.FULLY_CONNECTED
    assert own.measured is not None
    assert own.measured.parameters is not None
    whole = own.measured.parameters.bandwidth_bytes_per_s
    assert own.parameters.bandwidth_bytes_per_s == pytest.approx(whole / 3)
    # As the files for ASTRA-sim have it.
    given = system.dimensions[0].bandwidth_bytes_per_s
    assert own.parameters.bandwidth_bytes_per_s == pytest.approx(given, rel=0.08)


def test_a_preset_has_one_network() -> None:
    for name in system_names():
        system = load_system(name)
        if system.interconnect is None:
            continue
        changed = tuple(
            dimension_of(each.shape, each.size, 1e9, each.latency_s) for each in system.dimensions
        )
        with pytest.raises(HardwareError, match=f"{name}: the dimensions are changed, and inter"):
            replace(system, dimensions=changed)
        alone = replace(system, dimensions=changed, interconnect=None)
        assert alone.dimensions == changed


@pytest.mark.parametrize("name", ["32xH100_80GB", "16384xH100_80GB", "256xTPUv5e", "2x256xTPUv5e"])
def test_what_changes_both_is_one_network(name: str) -> None:
    system: System = find_system(name)
    faster = with_links(system, LinkFactors(bandwidth=2.0))
    assert faster.interconnect != system.interconnect
    assert [each.size for each in faster.dimensions] == [each.size for each in system.dimensions]


SIZE = 10**9


def time_s(system: str, *, groups: tuple[tuple[int, ...], ...]) -> float:
    job = graph(4, [all_reduce(1, size=SIZE, table=0)], groups)
    return simulate_flow(job, load_system(system)).finish_ps / 1e12


def test_two_of_four_have_the_links_between_them_alone() -> None:
    """A ring of two moves the whole buffer once; 6 of a device's 18 links go to each other one."""
    pairs = ((0, 1), (2, 3))
    assert time_s("H100_80GB_4GPU", groups=pairs) == pytest.approx(SIZE / 150e9, rel=0.01)


def test_all_four_take_what_was_measured() -> None:
    """With switches or without: all links of a device carry a ring of all."""
    everyone = ((0, 1, 2, 3),)
    switched = graph(8, [all_reduce(1, size=SIZE, table=0)], ((0, 1, 2, 3), (4, 5, 6, 7)))
    measured_s = simulate_flow(switched, load_system("H100_80GB_8GPU")).finish_ps / 1e12
    assert time_s("H100_80GB_4GPU", groups=everyone) == pytest.approx(measured_s)
