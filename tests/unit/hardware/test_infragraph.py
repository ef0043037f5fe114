"""Infrastructures in infragraph's form, expanded as its package 3.1.0 expands them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from hespas.errors import HespasError
from hespas.hardware.interconnect_file import read_interconnect
from hespas.hardware.machine_links import Graph

TEXT = """
name: two servers
devices:
- name: card
  components:
  - {name: plug, count: 1, choice: custom, custom: {type: connector}}
  - {name: port, count: 2, choice: port}
  links: [{name: lanes}]
  edges: [{ep1: {component: plug}, ep2: {component: port}, scheme: many2many, link: lanes}]
- name: server
  components:
  - {name: cpu, count: 1, choice: cpu}
  - {name: memory, count: 2, choice: memory}
  - {name: gpu, count: 4, choice: xpu}
  - {name: switch, count: 2, choice: switch}
  - {name: card, count: 2, choice: device, device: {}}
  links:
  - {name: nvlink, physical: {bandwidth: {gigabytes_per_second: 150}, latency: {choice: us, us: 1}}}
  - {name: pcie, physical: {bandwidth: {gigatransfers_per_second: 16}}}
  edges:
  - {ep1: {component: gpu}, ep2: {component: 'switch[:]'}, scheme: many2many, link: nvlink}
  - {ep1: {component: 'gpu[0:2]'}, ep2: {component: 'card[0].plug'}, scheme: many2many, link: pcie}
  - {ep1: {component: 'gpu[-2:]'}, ep2: {device: 'card[1]', component: plug}, scheme: many2many,
     link: pcie}
  - {ep1: {component: cpu}, ep2: {component: memory}, scheme: many2many, link: pcie}
  - {ep1: {component: cpu}, ep2: {component: 'gpu[::2]'}, scheme: many2many, link: pcie}
- name: rack
  components: [{name: asic, count: 1, choice: switch}]
links: [{name: cable, physical: {bandwidth: {gigabits_per_second: 100}, latency: {ns: 500}}}]
instances:
- {name: host, device: server, count: 2}
- {name: top, device: rack, count: 1}
edges:
- {ep1: {instance: host, component: 'card[:].port[0]'}, ep2: {instance: 'top[0]', component: asic},
   scheme: many2many, link: cable}
"""
FIGURES = {
    "link_latency_s": 2e-6,
    "links": {
        "lanes": {"bandwidth_bytes_per_s": 50e9, "latency_s": 0},
        "pcie": {"bandwidth_bytes_per_s": 31.5e9},
    },
}


def wired(
    directory: Path, text: str = TEXT, figures: Mapping[str, object] = FIGURES, name: str = "a.yml"
) -> Graph:
    (directory / name).write_text(text)
    network = directory / "network.json"
    network.write_text(json.dumps({"machine": {"file": name, **figures}}))
    fabric = read_interconnect(network, name="mine").fabric
    assert isinstance(fabric, Graph)
    return fabric


def test_instances_components_and_composed_devices(tmp_path: Path) -> None:
    graph = wired(tmp_path)
    assert graph.devices == tuple(f"host.{at}.gpu.{gpu}" for at in (0, 1) for gpu in range(4))
    cards = [f"host.{at}.card.{card}" for at in (0, 1) for card in (0, 1)]
    # Memory and second ports lead nowhere.
    inner = [f"{name}.{part}.0" for name in cards for part in ("plug", "port")]
    inner += [f"host.{at}.{part}" for at in (0, 1) for part in ("cpu.0", "switch.0", "switch.1")]
    assert sorted(graph.switches) == sorted([*inner, "top.0.asic.0"])
    of = {(edge.source, edge.target): edge for edge in graph.edges}
    assert len(of) == 2 * (2 * (8 + 2 + 2 + 2 + 2) + 4)
    cable = of["host.1.card.1.port.0", "top.0.asic.0"]
    assert (cable.bandwidth_bytes_per_s, cable.latency_s) == (12.5e9, pytest.approx(500e-9))
    nvlink = of["host.0.switch.1", "host.0.gpu.3"]
    assert (nvlink.bandwidth_bytes_per_s, nvlink.latency_s) == (150e9, pytest.approx(1e-6))
    assert ("host.0.gpu.1", "host.0.card.0.plug.0") in of
    assert ("host.0.gpu.1", "host.0.card.1.plug.0") not in of
    assert of["host.0.gpu.2", "host.0.cpu.0"].latency_s == 2e-6
    assert of["host.0.card.0.plug.0", "host.0.card.0.port.0"].latency_s == 0


def test_json_is_the_same(tmp_path: Path) -> None:
    text = json.dumps(yaml.safe_load(TEXT))
    assert wired(tmp_path, text, name="a.json") == wired(tmp_path)


def test_links_can_be_left_out(tmp_path: Path) -> None:
    figures = {"leave_out_links": ["pcie", "cable"]}
    graph = wired(tmp_path, figures=figures)
    assert {one.split(".")[2] for one in graph.switches} == {"switch"}
    assert {edge.bandwidth_bytes_per_s for edge in graph.edges} == {150e9}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("component: 'gpu[0:2]'", "component: 'gpux'", "goes to 'gpux', which is not there"),
        ("component: 'gpu[0:2]'", "component: 'gpu[4]'", "'gpu[4]', of which there are 4"),
        ("component: 'gpu[0:2]'", "component: 'gpu[1:2:0]'", "has no slice"),
        ("component: 'card[0].plug'", "component: 'card[0]'", "goes to host.0.card.0, a device"),
        ("component: 'card[0].plug'", "component: 'gpu.plug'", "goes to 'plug', which is not"),
        ("link: nvlink}", "link: nv}", "of link 'nv', which is not there"),
        ("device: server", "device: sever", "there is no device 'sever'"),
        ("instance: host", "instance: hosts", "goes to 'hosts'"),
        ("instance: host, ", "", "names no instance"),
        ("scheme: many2many, link: lanes", "scheme: ring, link: lanes", "the scheme ring"),
        ("count: 2, choice: port", "count: 2000000000, choice: port", "too many nodes"),
        ("name: plug, count: 1, choice: custom", "name: card, count: 1, choice: device", "itself"),
        ("choice: xpu", "choice: npu", "no component of choice xpu"),
        ("count: 2}", "count: -2}", "instances[0].count"),
        ("instances:", "instance:", "instance"),
    ],
)
def test_what_is_not_there(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in TEXT
    with pytest.raises(HespasError, match=r"a\.yml") as caught:
        wired(tmp_path, TEXT.replace(old, new, 1))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"link_latency_s": 1e-6}, "does not say how fast the link 'lanes' is"),
        ({"links": FIGURES["links"]}, "does not say the latency of the link 'pcie'"),
        ({**FIGURES, "leave_out_links": ["rope"]}, "no edge is of link 'rope'"),
        (
            {"link_latency_s": 0, "leave_out_links": ["pcie", "cable"]},
            "link_latency_s has no effect",
        ),
        (
            {"leave_out_links": ["pcie", "cable"], "nvlink_bandwidth_bytes_per_s": 1e9},
            "nvlink_bandwidth_bytes_per_s has no effect",
        ),
    ],
)
def test_figures_that_lack_or_have_no_effect(
    tmp_path: Path, figures: dict[str, object], said: str
) -> None:
    with pytest.raises(HespasError, match=r"a\.yml") as caught:
        wired(tmp_path, figures=figures)
    assert said in str(caught.value)
