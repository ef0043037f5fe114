from __future__ import annotations

import json
from pathlib import Path

import pytest

from hespas.errors import ConfigError, HardwareError
from hespas.hardware.cluster import (
    Cluster,
    Distribution,
    Jitter,
    LinkOverride,
    ProgramOf,
    read_cluster,
)

TEXT = """
node_types:
  old: {compute_scale: 1.5}
devices:
  - {devices: "0-2, 7", node_type: old}
  - {devices: [1], compute_scale: 2, delay_s: 0.001}
  - {devices: 3, delay_s: 0.5}
links:
  - {link: dim0.up.3, bandwidth_scale: 0.5, extra_latency_s: 1.0e-6}
jitter: {seed: 7, sigma: 0.02, distribution: uniform}
programs:
  - {traces: first, devices: 0-3}
"""


def test_a_cluster_is_read(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yml"
    file.write_text(TEXT)

    cluster = read_cluster(file)

    assert cluster.compute_scales == {0: 1.5, 1: 3.0, 2: 1.5, 7: 1.5}
    assert cluster.delays_s == {1: 0.001, 3: 0.5}
    assert cluster.jitter == Jitter(seed=7, sigma=0.02, distribution=Distribution.UNIFORM)
    (link,) = cluster.links
    assert (link.link, link.bandwidth_scale, link.extra_latency_s) == ("dim0.up.3", 0.5, 1e-6)
    (program,) = cluster.programs
    assert (program.traces, program.devices) == (tmp_path / "first", (0, 1, 2, 3))


def test_json_is_read_too(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"devices": [{"devices": 5, "compute_scale": 1.25}]}))

    assert read_cluster(file).compute_scales == {5: 1.25}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "the file describes nothing of the cluster"),
        ("node_types: {old: {compute_scale: 2}}", "the file describes nothing of the cluster"),
        ("devices: [{devices: 0-x}]", "the devices are '0-x'"),
        ("devices: [{devices: 0, compute_scale: 0}]", "compute_scale is 0"),
        ("devices: [{devices: 0, delay_s: -1}]", "delay_s is -1"),
        ("devices: [{devices: 0, speed: 2}]", "unknown key 'speed'"),
        ("devices: [{devices: 7-3, delay_s: 1}]", '7-3 is none; write "3-7"'),
        ("devices: [{devices: [], delay_s: 1}]", "a list of devices is empty; name devices"),
        ("devices: [{devices: 3}]", r"devices\[0\] changes nothing; give compute_scale"),
        ("links: [{link: dim0.up.3}]", r"links\[0\] changes nothing; give bandwidth_scale"),
        (
            "node_types: {old: {compute_scale: 2}}\ndevices: [{devices: 0, delay_s: 1}]",
            "no device has the node type 'old'; name it in devices, or drop it",
        ),
        ("jitter: {seed: 1, sigma: 2}", "sigma is 2"),
        ("links: [{bandwidth_scale: 2}]", "lacks 'link'"),
    ],
)
def test_what_a_cluster_may_not_hold_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "cluster.yml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=message):
        read_cluster(file)


def test_an_unknown_node_type_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yml"
    file.write_text("devices: [{devices: 0, node_type: new}]")

    with pytest.raises(HardwareError, match="no node type 'new'"):
        read_cluster(file)


def test_a_device_cannot_be_infinitely_fast() -> None:
    with pytest.raises(HardwareError, match="compute_scale of device 3 is 0"):
        Cluster(compute_scales={3: 0.0})


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        (Cluster(compute_scales={1: 1.5, 4: 1.1, 2: 0.9}),
         "2 slow devices (x1.1 to x1.5), 1 fast device (x0.9)"),
        (Cluster(delays_s={1: 0.002, 4: 0.002}), "2 late devices (2 ms)"),
        (Cluster(links=(LinkOverride(link="dim0.up.0", bandwidth_scale=0.5),)), "1 changed link"),
        (Cluster(jitter=Jitter(seed=7, sigma=0.05)), "jitter 5 % (lognormal, seed 7)"),
        (Cluster(programs=(ProgramOf(traces=Path("a"), devices=(0,)),) * 2), "2 programs"),
    ],
    ids=str,
)  # fmt: skip
def test_an_answer_names_what_is_not_perfect(cluster: Cluster, text: str) -> None:
    assert cluster.assumption == f"imperfections: cluster: {text}"
