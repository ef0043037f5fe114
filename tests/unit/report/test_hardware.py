"""A node with its inside, for people and for programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hespas.errors import HespasError
from hespas.hardware.links import link_names
from hespas.hardware.presets import (
    MICROARCHITECTURE,
    PRESETS_DIRECTORY,
    device_names,
    system_names,
)
from hespas.report.hardware import hardware_json, hardware_text, preset_details

H100 = PRESETS_DIRECTORY / "nodes" / "H100_80GB"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Return a copy of a preset that has everything."""
    return Path(shutil.copytree(H100, tmp_path / "mine"))


def change(file: Path, **figures: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | figures))


def inside_of(name: Path) -> Any:
    return hardware_json(str(name))["microarchitecture"]


@pytest.mark.parametrize(
    ("network", "drawn"),
    [
        (
            {
                "leaf_spine": {
                    "leaves": 8,
                    "devices_per_leaf": 8,
                    "spines": 4,
                    "device_link": "InfiniBand_NDR_400G",
                    "oversubscription": 2,
                }
            },
            "leaves of 8, oversubscribed 2 : 1, 4 spines chosen by a hash",
        ),
        (
            {
                "dimensions": [
                    {"topology": "switch", "size": 8, "link": "NVLink4_H100"},
                    {"topology": "switch", "size": 16, "link": "InfiniBand_NDR_400G"},
                ]
            },
            "between rows: switch of 16, 50 GB/s a link",
        ),
    ],
)
def test_a_network_of_ones_own_is_drawn(
    tmp_path: Path, network: dict[str, object], drawn: str
) -> None:
    (tmp_path / "hespas").mkdir()
    (tmp_path / "hespas" / "network.json").write_text(json.dumps(network))
    assert drawn in preset_details(str(tmp_path))
    assert hardware_json(str(tmp_path))["devices"] in {64, 128}


def test_every_figure_of_the_inside_is_shown_with_its_source(mine: Path) -> None:
    change(mine / MICROARCHITECTURE, multiprocessors=144, launch_s=2.5e-6)
    written = json.loads((mine / MICROARCHITECTURE).read_text())
    lines = preset_details(str(mine)).splitlines()
    for name, source in written["sources"].items():
        assert any(line.split()[:1] == [name] and source in line for line in lines), name
    figures = {line.split()[0]: line.split()[1:3] for line in lines if line.strip()}
    assert figures["multiprocessors"][0] == "144"
    assert figures["clock_hz"] == ["1.755", "GHz"]
    assert figures["l2_bytes"] == ["50", "MiB"]
    assert figures["l2_bandwidth"] == ["5.7", "TB/s"]
    assert figures["launch_s"] == ["2.5", "us"]
    assert inside_of(mine) == written


def test_a_device_that_is_not_described_inside_says_so() -> None:
    assert hardware_json("MI300X")["microarchitecture"] is None
    assert "Inside" not in preset_details("MI300X")


def test_a_damaged_inside_is_refused(mine: Path) -> None:
    (mine / MICROARCHITECTURE).write_text("{")
    for show in (preset_details, hardware_json):
        with pytest.raises(HespasError, match=r"microarchitecture\.json:1:2: malformed JSON"):
            show(str(mine))


def test_a_launch_s_cost_and_a_calibration_are_shown(mine: Path) -> None:
    change(mine / "node.json", launch_overhead_s=0, calibration={"gemm": 1.25, "all": 0.5})
    text, listed = preset_details(str(mine)), hardware_json(str(mine))
    assert "  launch       0 s\n" in text
    assert "  measured     tables of H100_SXM, times 0.5 (all), 1.25 (gemm)\n" in text
    assert listed["launch_overhead_s"] == 0
    assert (listed["tables"], listed["calibration"]) == ("H100_SXM", {"gemm": 1.25, "all": 0.5})
    assert "  launch       3 us\n" in preset_details("H100_80GB")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"calibration": {"gemm.f16": 2.0}}, r"node\.json: there is no factor 'gemm.f16'"),
        ({"tables": "H10"}, r"node\.json: there are no measured tables .*did you mean 'H100_SXM'"),
        ({"target": "nope"}, r"node\.json: no target is named 'nope'; known: .*H100_SXM"),
    ],
)
def test_a_node_that_nothing_can_use_is_refused(
    mine: Path, changed: dict[str, object], message: str
) -> None:
    change(mine / "node.json", **changed)
    with pytest.raises(HespasError, match=message):
        preset_details(str(mine))


def test_every_preset_is_shown() -> None:
    shown, listed = hardware_text(), hardware_json(None)
    for name in link_names():
        assert f"  {name} " in shown
        assert listed["links"][name]["source"]  # pyright: ignore[reportIndexIssue]
    assert "2, 4, 8, 16, 18, 32, 36, 64, 72" in shown
    assert listed.keys() == {"nodes", "systems", "links"}
    names = [*device_names(), *system_names()]
    assert len(names) > 30
    for name in names:
        assert f"  {name} " in shown
        assert preset_details(name).startswith(f"{name}: ")
        assert hardware_json(name)["name"] == name
