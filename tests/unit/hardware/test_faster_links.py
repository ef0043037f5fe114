"""Links of other bandwidths than a system's own."""

from __future__ import annotations

import pytest

from hespas.errors import ConfigError, HardwareError
from hespas.hardware.faster_links import with_link_bandwidths
from hespas.hardware.interconnect import Dimensions, Interconnect
from hespas.hardware.machine_links import Edge, Graph
from hespas.hardware.sized import find_system
from hespas.hardware.system import (
    LinkBandwidth,
    System,
    bare_system,
    interconnect_of,
    parse_link_bandwidths,
)


def bandwidths(system: System) -> tuple[list[float], list[float]]:
    """Return the bandwidths along each dimension in ASTRA-sim's model and in hespas' own."""
    fabric = interconnect_of(system).fabric
    assert isinstance(fabric, Dimensions)
    return (
        [each.bandwidth_bytes_per_s for each in system.dimensions],
        [each.parameters.bandwidth_bytes_per_s for each in fabric.dimensions],
    )


@pytest.mark.parametrize("name", ["16xH100_80GB", "16xA100_SXM_40GB", "576xGB200_186GB"])
def test_a_factor_multiplies_and_a_rate_replaces_in_both_models(name: str) -> None:
    system = find_system(name)
    halved = with_link_bandwidths(system, parse_link_bandwidths(["1=x0.5"]))
    for before, after in zip(bandwidths(system), bandwidths(halved), strict=True):
        assert after == pytest.approx([before[0], before[1] / 2])
    given = with_link_bandwidths(system, parse_link_bandwidths(["0=100GB/s", "1=30GB/s"]))
    for after in bandwidths(given):
        assert after == pytest.approx([100e9, 30e9])
    assert with_link_bandwidths(given, given.changed_links) is given
    assert given.assumptions[:1] == system.assumptions
    assert "dimension 1 " in given.assumptions[-1]
    assert "30 GB/s" in given.assumptions[-1]


def test_measured_collectives_follow_their_links() -> None:
    system = find_system("8xH100_80GB")
    halved = with_link_bandwidths(system, [LinkBandwidth(dimension=0, factor=0.5)])
    times: list[float] = []
    for each in (system, halved):
        fabric = interconnect_of(each).fabric
        assert isinstance(fabric, Dimensions)
        link = fabric.dimensions[0].measured
        assert link is not None
        fit = link.measured("all_reduce", 8, 1 << 30)
        assert fit is not None
        times.append(fit.time_s(1 << 30) - fit.latency_s)
    assert times[1] == pytest.approx(2 * times[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node=x0.5", "'node=x0.5'; write DIM=xFACTOR or DIM=RATE"),
        ("0", "'0'; write DIM=xFACTOR"),
        ("-1=x2", "'-1=x2'; write DIM=xFACTOR"),
        ("0=x0", "give a factor from 1e-06 to 1e+06; dead links are for a file"),
        ("0=x-1", "give a factor from 1e-06 to 1e+06"),
        ("0=xnan", "give a factor from 1e-06 to 1e+06"),
        ("0=x1e7", "give a factor from 1e-06 to 1e+06"),
        ("0=50", "50 without a unit is 50 B/s; give 50GB/s"),
        ("0=-1GB/s", "give a positive number of B/s"),
        ("0=400Gb/s", "not a quantity in B/s"),
    ],
)
def test_what_is_no_bandwidth_of_links(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_link_bandwidths([text])
    assert message in str(caught.value)


def test_a_dimension_is_given_once() -> None:
    with pytest.raises(ConfigError, match="given twice for 0"):
        parse_link_bandwidths(["0=x2", "0=x3"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("16xH100_80GB", "2=x2", "is not there; give one of these: 0 (8 devices), 1 (2 devices)"),
        ("1xH100_80GB", "0=x2", "has one device, so that it has no links; drop it"),
    ],
)
def test_a_dimension_without_links(name: str, text: str, message: str) -> None:
    with pytest.raises(HardwareError) as caught:
        with_link_bandwidths(find_system(name), parse_link_bandwidths([text]))
    assert message in str(caught.value)


def test_a_graph_has_no_dimensions() -> None:
    edge = Edge(source="a", target="b", bandwidth_bytes_per_s=1e9, latency_s=0.0)
    graph = Graph(devices=("a", "b"), switches=(), edges=(edge,))
    system = bare_system("own", interconnect=Interconnect(name="own", fabric=graph))
    with pytest.raises(HardwareError, match="has no dimensions"):
        with_link_bandwidths(system, [LinkBandwidth(dimension=0, factor=2.0)])
