from __future__ import annotations

import json
from pathlib import Path

import pytest

from hespas.hardware.presets import load_system, system_names
from hespas.hardware.sized import find_system
from hespas.report.drawing import drawing


@pytest.mark.parametrize("name", system_names())
def test_every_preset_is_drawn_within_a_screen(name: str) -> None:
    lines = drawing(load_system(name))
    assert lines
    assert max(map(len, lines)) <= 80


def test_nodes_are_rows() -> None:
    lines = drawing(find_system("32xH100_80GB"))
    assert lines[0] == "  [ d0    d1    ..    d7  ]"
    assert lines[3] == "  [ d24   d25   ..    d31 ]"
    assert lines[4].startswith("  in a row: switch of 8")
    assert lines[5].startswith("  between rows: switch of 4")


def test_a_leaf_says_its_uplinks(tmp_path: Path) -> None:
    link = {"bandwidth_bytes_per_s": 10e9, "latency_s": 0}
    fabric = {"leaves": 2, "devices_per_leaf": 4, "spines": 2, "device_link": link}
    (tmp_path / "hespas").mkdir()
    (tmp_path / "hespas" / "network.json").write_text(json.dumps({"leaf_spine": fabric}))
    lines = drawing(load_system(str(tmp_path)))
    assert lines[-1].startswith("  in a row: fat tree of 8, 10 GB/s a link")
    assert lines[-1].endswith("leaves of 4, oversubscribed 1 : 1, 2 spines chosen by a hash")


def test_a_dragonfly_says_its_groups(tmp_path: Path) -> None:
    link = {"bandwidth_bytes_per_s": 10e9, "latency_s": 0}
    fabric = {
        **dict.fromkeys(("device_link", "local_link", "global_link"), link),
        "groups": 3,
        "routers_per_group": 2,
        "devices_per_router": 4,
    }
    (tmp_path / "hespas").mkdir()
    (tmp_path / "hespas" / "network.json").write_text(json.dumps({"dragonfly": fabric}))
    assert drawing(load_system(str(tmp_path)))[0].startswith("  3 groups, each wired")
