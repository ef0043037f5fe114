from __future__ import annotations

import json
from pathlib import Path

import pytest

from hespas.errors import ConfigError, DeviceCountError, HardwareError, SimulationError
from hespas.hardware.interconnect import Dimensions, Dragonfly, Shape
from hespas.hardware.machine_links import Graph
from hespas.hardware.presets import PRESETS_DIRECTORY, load_system
from hespas.hardware.sized import find_system
from hespas.hardware.system import interconnect_of
from hespas.program.collectives import CollectiveKind
from hespas.simulate.models import ModelChoice, simulate_job
from hespas.simulate.options import Model
from hespas.tasks.graph import CollectiveTask, TaskGraph

WIRE: dict[str, object] = {"bandwidth_bytes_per_s": 5e10, "latency_s": 1e-6}
SWITCH: dict[str, object] = {"topology": "switch", "size": 4, "link": WIRE}
OWN = ModelChoice(model=Model.HESPAS)


def _write(directory: Path, **keys: object) -> Path:
    (directory / "hespas").mkdir()
    (directory / "hespas" / "network.json").write_text(json.dumps(keys))
    return directory


def _all_reduce(devices: int, size_bytes: int = 4_000_000) -> TaskGraph:
    task = CollectiveTask(
        id=1,
        name="k",
        depends_on=(),
        kind=CollectiveKind.ALL_REDUCE,
        size_bytes=size_bytes,
        group_table=None,
    )
    return TaskGraph(name="g", device_count=devices, tasks=(task,), group_tables=())


def test_a_network_may_stand_alone(tmp_path: Path) -> None:
    system = load_system(_write(tmp_path, dimensions=[SWITCH], algorithms={"all_reduce": "ring"}))

    assert (system.name, system.device_count, system.dimensions) == (tmp_path.name, 4, ())
    # 2 x 3 steps of 1 MB at 50 GB/s over two wires of 1 us.
    assert simulate_job(_all_reduce(4), system, OWN).step_time_s == pytest.approx(6 * 22e-6)
    with pytest.raises(SimulationError, match="no files for ASTRA-sim"):
        simulate_job(_all_reduce(4), system, ModelChoice())
    with pytest.raises(DeviceCountError, match="for 8 devices"):
        simulate_job(_all_reduce(8), system, OWN)


def test_dimensions_and_their_links(tmp_path: Path) -> None:
    tree = {"topology": "fat_tree", "size": 8, "link": WIRE, "leaf_size": 4, "oversubscription": 2}
    changed = {**SWITCH, "latency_s": 5e-7, "reduces_in_switch": True}

    fabric = interconnect_of(load_system(_write(tmp_path, dimensions=[changed, tree]))).fabric

    assert isinstance(fabric, Dimensions)
    first, second = fabric.dimensions
    assert (first.parameters.latency_s, first.parameters.reduces_in_switch) == (5e-7, True)
    assert (second.shape, second.leaf_size, second.oversubscription) == (Shape.FAT_TREE, 4, 2)


DRAGONFLY: dict[str, object] = {
    "groups": 3,
    "routers_per_group": 2,
    "devices_per_router": 2,
    **dict.fromkeys(("device_link", "local_link", "global_link"), WIRE),
}


def test_a_dragonfly(tmp_path: Path) -> None:
    system = load_system(_write(tmp_path, dragonfly=DRAGONFLY))

    assert isinstance(interconnect_of(system).fabric, Dragonfly)
    assert system.device_count == 12


def test_a_graph_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "wires.json").write_text(
        json.dumps({
            "devices": ["a", "b"],
            "switches": ["s"],
            "links": [
                {"from": "a", "to": "s", **WIRE},
                {"from": "s", "to": "b", **WIRE, "both_ways": False},
                {"from": "b", "to": "a", **WIRE, "both_ways": False},
            ],
        })
    )  # fmt: skip
    fabric = interconnect_of(load_system(_write(tmp_path, graph="../wires.json"))).fabric

    assert isinstance(fabric, Graph)
    ends = [(edge.source, edge.target) for edge in fabric.edges]
    assert ends == [("a", "s"), ("s", "a"), ("s", "b"), ("b", "a")]


GRAPH: dict[str, object] = {"devices": ["a", "b"], "links": []}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "0 networks"),
        ({"dimensions": [SWITCH], "graph": GRAPH}, "2 networks"),
        ({"dimensions": [{**SWITCH, "leaf_size": 2}]}, "belong together"),
        ({"dimensions": [{**SWITCH, "topology": "fat_tree", "leaf_size": 3}]}, "don't divide"),
        ({"dimensions": [{**SWITCH, "oversubscription": 2}]}, "oversubscription is 2"),
        ({"dimensions": [{**SWITCH, "link": "NVLink4"}]}, "is named 'NVLink4'; did you mean"),
        (
            {"dimensions": [SWITCH, SWITCH], "algorithms": {"all_reduce": ["ring"] * 3}},
            "all_reduce has 3 algorithms, and the network 2 dimensions",
        ),
        ({"dragonfly": {**DRAGONFLY, "seed": 1}}, "drop it, or give routing: valiant"),
        ({"graph": {"devices": ["a", "a"], "links": []}}, "listed twice"),
        ({"graph": {**GRAPH, "links": [{"from": "a", "to": "c", **WIRE}]}}, "from 'a' to 'c'"),
        (
            {"graph": {**GRAPH, "links": [{"from": "a", "to": "b", **WIRE}] * 2}},
            "two links go from 'a' to 'b'; give one, of their bandwidth together",
        ),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, keys: dict[str, object], message: str) -> None:
    with pytest.raises(HardwareError, match=message):
        load_system(_write(tmp_path, **keys))


def test_unknown_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        load_system(_write(tmp_path, dimensions=[{**SWITCH, "speed": 1}]))


def test_both_descriptions_must_have_as_many_devices(tmp_path: Path) -> None:
    astra_sim = PRESETS_DIRECTORY / "systems" / "A100_SXM_40GB_8GPU" / "astra-sim"
    (tmp_path / "astra-sim").symlink_to(astra_sim)

    with pytest.raises(HardwareError, match=r"4 devices, and network\.yml has 8"):
        load_system(_write(tmp_path, dimensions=[SWITCH]))


def test_parts_of_a_graph_without_a_way_are_reported(tmp_path: Path) -> None:
    system = load_system(_write(tmp_path, graph=GRAPH))

    with pytest.raises(HardwareError, match="no route from a to b"):
        simulate_job(_all_reduce(2), system, OWN)


@pytest.mark.parametrize(
    "file", sorted(PRESETS_DIRECTORY.glob("systems/*/hespas/network.json")), ids=str
)
def test_presets_have_a_source_and_can_be_used(file: Path) -> None:
    assert json.loads(file.read_text())["source"]
    system = load_system(file.parent.parent.name)

    assert system.interconnect is not None
    timeline = simulate_job(_all_reduce(system.device_count), system, OWN)
    assert 1e-5 < timeline.step_time_s < 1e-2
    # Where no collectives are measured in the open, wires stand there by themselves.
    shown = " ".join(timeline.assumptions)
    wires = ("TPU", "MI3", "A40", "V100")
    assert ("measured" in shown) is not system.name.startswith(wires)


@pytest.mark.parametrize(
    ("asked", "both_directions"),
    [
        ("8xMI300X", 7 * 128e9),
        ("4xMI300X", 3 * 128e9),
        ("8xMI355X", 7 * 153.6e9),
        ("2xA40_48GB", 112.5e9),
        ("8xH800_80GB", 400e9),
        ("8xH20_96GB", 900e9),
    ],
)
def test_a_device_sends_half_of_what_datasheets_count_in_both_directions(
    asked: str, both_directions: float
) -> None:
    fabric = interconnect_of(find_system(asked)).fabric
    assert isinstance(fabric, Dimensions)
    (inside,) = fabric.dimensions
    links = inside.size - 1 if inside.shape is Shape.FULLY_CONNECTED else 1
    assert links * inside.parameters.bandwidth_bytes_per_s == pytest.approx(both_directions / 2)
