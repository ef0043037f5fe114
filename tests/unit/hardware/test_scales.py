"""Figures of files that are in another unit are refused with their value in the right one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hespas.errors import ConfigError
from hespas.hardware.links import load_link
from hespas.hardware.presets import load_device, load_system

WIRE: dict[str, object] = {"bandwidth_bytes_per_s": 5e10, "latency_s": 1e-6}


def network(directory: Path, **keys: object) -> Path:
    (directory / "hespas").mkdir()
    (directory / "hespas" / "network.json").write_text(json.dumps(keys))
    return directory


@pytest.mark.parametrize(
    ("link", "complaint"),
    [
        ({"bandwidth_bytes_per_s": 450}, "bandwidth_bytes_per_s is 450 B/s; give 450e9 for 450 GB"),
        (
            {"bandwidth_bytes_per_s": 450e18},
            "bandwidth_bytes_per_s is 4.5e+20 B/s; give 25e9",
        ),
        ({"latency_s": 500}, "latency_s is 500 s; give 500e-9 for 500 ns, 500e-6 for 500 us"),
        ({"step_overhead_s": 2}, "step_overhead_s is 2 s; give 2e-9 for 2 ns, 2e-6 for 2 us"),
    ],
)
def test_links_are_in_bytes_per_second_and_seconds(
    link: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    switch = {"topology": "switch", "size": 4, "link": WIRE | link}
    with pytest.raises(ConfigError) as of_network:
        load_system(network(tmp_path, dimensions=[switch]))
    assert f"network.json: $.dimensions[0].link.{complaint}" in str(of_network.value)
    file = tmp_path / "link.json"
    file.write_text(json.dumps({"name": "Mine", "source": "assumed", "link": WIRE | link}))
    with pytest.raises(ConfigError) as of_link:
        load_link(file)
    assert str(of_link.value).startswith(f"{file}: $.link.{complaint}")


def test_edges_of_a_graph_are_named(tmp_path: Path) -> None:
    edge = {"from": "a", "to": "b", **WIRE, "bandwidth_bytes_per_s": 25}
    with pytest.raises(
        ConfigError, match=r"from 'a' to 'b': bandwidth_bytes_per_s is 25 B/s; give"
    ):
        load_system(network(tmp_path, graph={"devices": ["a", "b"], "links": [edge]}))


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"endpoint_delay_s": 10}, r"\$.endpoint_delay_s is 10 s; give 10e-9 for 10 ns"),
        ({"memory_bytes_per_s": 3350}, r"\$.memory_bytes_per_s is 3350 B/s; give 3350e9"),
    ],
)
def test_a_network_s_own_figures(keys: dict[str, object], complaint: str, tmp_path: Path) -> None:
    switch = {"topology": "switch", "size": 4, "link": WIRE}
    with pytest.raises(ConfigError, match=complaint):
        load_system(network(tmp_path, dimensions=[switch], **keys))


@pytest.mark.parametrize(
    ("bandwidth", "latency", "complaint"),
    [
        (450e9, 500, "$.bandwidth[0] is 4.5e+11 GB/s; give 450 for 450 GB/s"),
        (450, 5e-7, "$.latency[0] is 5e-07 ns; give 500 for 500 ns"),
        (450, 5e9, "$.latency[0] is 5e+09 ns; give 1000 for 1 us"),
    ],
)
def test_astra_sim_s_network_is_in_gb_per_s_and_ns(
    bandwidth: float, latency: float, complaint: str, tmp_path: Path
) -> None:
    lists = {"npus_count": [4], "bandwidth": [bandwidth], "latency": [latency]}
    (tmp_path / "network.yml").write_text(json.dumps({"topology": ["Ring"], **lists}))
    (tmp_path / "system.json").write_text(json.dumps({"preferred-dataset-splits": 1}))
    with pytest.raises(ConfigError) as caught:
        load_system(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'network.yml'}: {complaint}"


@pytest.mark.parametrize(
    ("power", "complaint"),
    [
        ({"tdp_W": 0.7}, "tdp_W is 0.7 W; give 700 for 0.7 kW"),
        ({"tdp_W": 700_000}, "tdp_W is 700000 W; give it in W, as in 700"),
        ({"power_limit_w": 1e-3}, "power_limit_w is 0.001 W; give it in W"),
    ],
)
def test_power_is_in_watts(power: dict[str, float], complaint: str, tmp_path: Path) -> None:
    hardware = {"peak_flops": 1e13, "memory_bandwidth": 1e12, **power}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"perf_estimator": {"method": "roofline", "hardware": hardware}}))
    with pytest.raises(ConfigError, match=complaint):
        load_device(file)
