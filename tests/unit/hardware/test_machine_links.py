"""Small topologies as NCCL and hwloc write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hespas.errors import HespasError
from hespas.hardware.interconnect_file import read_interconnect
from hespas.hardware.machine_links import Graph

SWITCHED = """<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="0000:c7:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="80" rank="1" gdr="1">
        <nvlink target="0000:c4:00.0" count="2" tclass="0x068000"/>
        <nvlink target="0000:c5:00.0" count="2" tclass="0x068000"/>
      </gpu>
    </pci>
    <pci busid="0000:07:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="80" rank="0" gdr="1">
        <nvlink target="0000:c4:00.0" count="4" tclass="0x068000"/>
      </gpu>
    </pci>
  </cpu>
</system>
"""
DIRECT = SWITCHED.replace(
    'target="0000:c4:00.0" count="4" tclass="0x068000"',
    'target="0000:c7:00.0" count="1" tclass="0x030200"',
).replace(
    """        <nvlink target="0000:c4:00.0" count="2" tclass="0x068000"/>
        <nvlink target="0000:c5:00.0" count="2" tclass="0x068000"/>
""",
    '        <nvlink target="0000:07:00.0" count="1" tclass="0x030200"/>\n',
)
SOCKETS = """<system version="1">
  <cpu numaid="0"><pci busid="0000:01:00.0" link_speed="8.0 GT/s PCIe" link_width="16">
    <pci busid="0000:02:00.0" link_speed="8 GT/s" link_width="8"><gpu dev="0" sm="75"/></pci>
    <pci busid="0000:03:00.0" link_speed="5.0 GT/s PCIe" link_width="4"><gpu dev="1" sm="75"/></pci>
  </pci></cpu>
  <cpu numaid="1">
    <pci busid="0000:81:00.0" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="2"/></pci>
    <pci busid="0000:82:00.0" link_speed="" link_width=""><nic/></pci>
  </cpu>
</system>
"""
HWLOC = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0"><object type="Machine">
  <object type="Package" os_index="0"><object type="Bridge" bridge_type="0-1">
    <object type="Bridge" bridge_type="1-1" pci_busid="0000:40:01.1" pci_link_speed="31.507692">
      <object type="PCIDev" pci_busid="0000:41:00.0" pci_type="0302 [10de:20b0]"
              pci_link_speed="31.507692"><object type="OSDev" name="cuda0" osdev_type="5"/></object>
      <object type="PCIDev" pci_busid="0000:42:00.0" pci_type="1200 [1002:74a1]"
              pci_link_speed="15.753846"/>
      <object type="PCIDev" pci_busid="0000:43:00.0" pci_type="0200 [15b3:1021]"
              pci_link_speed="0.0"/>
    </object>
  </object></object>
</object></topology>
"""
DISTANCES = '<distances2hetero name="NVLinkBandwidth"/><object'
NVLINK = {"nvlink_bandwidth_bytes_per_s": 25e9}


def wired(directory: Path, text: str, **figures: object) -> Graph:
    (directory / "machine.xml").write_text(text)
    network = directory / "network.json"
    machine = {"file": "machine.xml", "link_latency_s": 1e-6, **figures}
    network.write_text(json.dumps({"machine": machine}))
    fabric = read_interconnect(network, name="mine").fabric
    assert isinstance(fabric, Graph)
    return fabric


def links(graph: Graph) -> dict[tuple[str, str], float]:
    assert {edge.latency_s for edge in graph.edges} == {1e-6}
    return {(edge.source, edge.target): edge.bandwidth_bytes_per_s for edge in graph.edges}


def test_devices_at_nvswitches(tmp_path: Path) -> None:
    graph = wired(tmp_path, SWITCHED, **NVLINK)
    assert graph.devices == ("0000:07:00.0", "0000:c7:00.0")
    assert graph.switches == ("nvswitch",)
    # Four links each: those of the second one go to two switches.
    assert set(links(graph).values()) == {100e9}
    assert len(graph.edges) == 4


def test_devices_that_are_connected_to_each_other(tmp_path: Path) -> None:
    graph = wired(tmp_path, DIRECT, **NVLINK)
    first, second = graph.devices
    assert graph.switches == ()
    assert links(graph) == {(first, second): 25e9, (second, first): 25e9}


def test_devices_at_bridges_and_sockets(tmp_path: Path) -> None:
    graph = wired(tmp_path, SOCKETS, socket_bandwidth_bytes_per_s=40e9)
    found = links(graph)
    assert graph.devices == ("0000:02:00.0", "0000:03:00.0", "0000:81:00.0")
    assert set(graph.switches) == {"0000:01:00.0", "socket0", "socket1"}
    # 8 GT/s x 16 lanes x 128/130 / 8; 5 GT/s sends 10 bits for 8.
    assert found["0000:01:00.0", "socket0"] == pytest.approx(15.754e9, rel=1e-4)
    assert found["0000:02:00.0", "0000:01:00.0"] == pytest.approx(7.877e9, rel=1e-4)
    assert found["0000:03:00.0", "0000:01:00.0"] == 2e9
    assert found["socket1", "socket0"] == found["socket0", "socket1"] == 40e9


def test_devices_as_hwloc_lists_them(tmp_path: Path) -> None:
    graph = wired(tmp_path, HWLOC)
    assert graph.devices == ("0000:41:00.0", "0000:42:00.0")
    assert links(graph)["0000:42:00.0", "0000:40:01.1"] == 15.753846e9


@pytest.mark.parametrize(
    ("text", "figures", "said"),
    [
        (SWITCHED, {}, "how fast an NVLink is; give nvlink_bandwidth_bytes_per_s"),
        (SWITCHED, {**NVLINK, "link_latency_s": None}, "it says no latency; give link_latency_s"),
        (SWITCHED, {**NVLINK, "leave_out_links": ["pcie"]}, "leave_out_links has no effect"),
        (SWITCHED, {**NVLINK, "socket_bandwidth_bytes_per_s": 1e9}, "no effect on NVLinks"),
        (HWLOC, NVLINK, "has no effect: no NVLinks"),
        (HWLOC, {"socket_bandwidth_bytes_per_s": 1e9}, "it has one socket; drop"),
        (SOCKETS, {}, "how fast sockets are connected; give socket_bandwidth"),
        (SOCKETS.replace("8 GT/s", "Unknown"), {"socket_bandwidth_bytes_per_s": 1e9}, "02:00.0 is"),
        (SWITCHED.replace('count="4"', 'count="-1"'), NVLINK, "count of an <nvlink>"),
        (SWITCHED.replace('dev="0"', 'dev="x"'), NVLINK, "dev of a <gpu> is 'x'"),
        (SWITCHED.replace("c7:00", "07:00"), NVLINK, "0000:07:00.0 is there twice"),
        (SWITCHED.replace('tclass="0x068000"', 'tclass="0x068001"'), NVLINK, "class 0x068001"),
        (DIRECT.replace('target="0000:07', 'target="0000:99'), NVLINK, "goes to 0000:99:00.0"),
        (SWITCHED[:200], NVLINK, "it is malformed"),
        ("<system/>", NVLINK, "it has no device"),
        ("<graph/>", NVLINK, "its root is <graph>"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><system/>", NVLINK, "it declares entities"),
        (HWLOC.replace("<object", DISTANCES, 1), {}, "of which hwloc says too little"),
    ],
)
def test_what_is_not_said_is_asked_for(
    tmp_path: Path, text: str, figures: dict[str, object], said: str
) -> None:
    with pytest.raises(HespasError, match=r"machine\.xml") as caught:
        wired(tmp_path, text, **figures)
    assert said in str(caught.value)
