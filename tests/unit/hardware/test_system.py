from __future__ import annotations

import json
from pathlib import Path

import pytest

from hespas.base.units import GIB
from hespas.errors import ConfigError, HardwareError
from hespas.hardware.interconnect import Shape, dimension_of
from hespas.hardware.presets import load_system
from hespas.hardware.system import RemoteMemory, RemoteMemoryKind, System, read_system
from hespas.program.collectives import CollectiveKind

NETWORK: dict[str, list[object]] = {
    "topology": ["Ring", "Switch"],
    "npus_count": [4, 2],
    "bandwidth": [100.0, 50],
    "latency": [500.0, 0],
}
SYSTEM: dict[str, object] = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 1,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 4,
    "all-reduce-implementation": ["ring", "direct"],
    "all-gather-implementation": ["ring", "direct"],
    "reduce-scatter-implementation": ["ring", "direct"],
    "all-to-all-implementation": ["oneRing"],
    "collective-optimization": "localBWAware",
    "local-mem-bw": 1600,
    "boost-mode": 0,
}
NO_MEMORY: dict[str, object] = {"memory-type": "NO_MEMORY_EXPANSION"}


def _write(
    directory: Path,
    *,
    network: object = NETWORK,
    system: object = SYSTEM,
    memory: object = NO_MEMORY,
) -> Path:
    # JSON is YAML too.
    (directory / "network.yml").write_text(json.dumps(network))
    (directory / "system.json").write_text(json.dumps(system))
    (directory / "remote_memory.json").write_text(json.dumps(memory))
    return directory


def test_the_three_files_become_a_system(tmp_path: Path) -> None:
    assert load_system(_write(tmp_path)) == System(
        name=tmp_path.name,
        dimensions=(
            dimension_of(Shape.RING, 4, 100 * GIB, 500e-9),
            dimension_of(Shape.SWITCH, 2, 50 * GIB, 0.0),
        ),
        implementations={
            CollectiveKind.ALL_REDUCE: ("ring", "direct"),
            CollectiveKind.ALL_GATHER: ("ring", "direct"),
            CollectiveKind.REDUCE_SCATTER: ("ring", "direct"),
            CollectiveKind.ALL_TO_ALL: ("oneRing",),
        },
        endpoint_delay_s=1e-9,
        preferred_dataset_splits=4,
        active_chunks_per_dimension=1,
        collective_optimization="localBWAware",
        scheduling_policy="LIFO",
        local_memory_bandwidth_bytes_per_s=1600e9,
        remote_memory=RemoteMemory(kind=RemoteMemoryKind.NO_MEMORY_EXPANSION),
        options={"boost-mode": 0},
    )


def test_what_system_json_leaves_out_is_as_in_astra_sim(tmp_path: Path) -> None:
    one = {"topology": ["Ring"], "npus_count": [4], "bandwidth": [1.0], "latency": [1.0]}
    path = _write(tmp_path, network=one, system={"preferred-dataset-splits": 1})
    system = load_system(path)
    assert system.endpoint_delay_s == 10e-9
    assert system.active_chunks_per_dimension == 1
    assert system.local_memory_bandwidth_bytes_per_s is None
    assert dict(system.implementations) == {}
    assert dict(system.options) == {}


def test_options_keep_what_has_no_field(tmp_path: Path) -> None:
    options: dict[str, object] = {
        "trace-enabled": 1,
        "boost-mode": 0,
        "roofline-enabled": 1,
        "replay-only": 0,
        "peak-perf": 312,
        "local-reduction-delay": 1,
        "model-shared-bus": 1,
        "L": 0.0,
        "o": 0.5,
        "g": 1,
        "G": 0.004,
        "all-reduce-implementation-custom": ["custom/a"],
        "all-gather-implementation-custom": ["custom/a"],
        "reduce-scatter-implementation-custom": ["custom/a"],
        "all-to-all-implementation-custom": ["custom/a"],
        "per-node-custom-implementation": "custom/per_node.yml",
    }
    path = _write(tmp_path, system=SYSTEM | options)
    assert dict(load_system(path).options) == options


def test_remote_memory_is_read(tmp_path: Path) -> None:
    memory = {
        "memory-type": "PER_NODE_MEMORY_EXPANSION",
        "remote-mem-latency": 500,
        "remote-mem-bw": 50,
        "num-nodes": 2,
        "num-npus-per-node": 4,
    }
    assert load_system(_write(tmp_path, memory=memory)).remote_memory == RemoteMemory(
        kind=RemoteMemoryKind.PER_NODE_MEMORY_EXPANSION,
        latency_s=500e-9,
        bandwidth_bytes_per_s=50e9,
        nodes=2,
        npus_per_node=4,
    )


def test_files_can_be_given_one_by_one(tmp_path: Path) -> None:
    _write(tmp_path)
    system = read_system(
        name="mine",
        system_file=tmp_path / "system.json",
        network_file=tmp_path / "network.yml",
    )
    assert system.name == "mine"
    assert system.remote_memory == RemoteMemory(kind=RemoteMemoryKind.NO_MEMORY_EXPANSION)


def test_a_directory_above_or_the_directory_itself(tmp_path: Path) -> None:
    home = tmp_path / "MINE" / "astra-sim"
    home.mkdir(parents=True)
    _write(home)
    assert load_system(tmp_path / "MINE") == load_system(str(home))
    assert load_system(home).name == "MINE"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    _write(tmp_path)
    (tmp_path / "remote_memory.json").unlink()
    with pytest.raises(ConfigError, match=r"remote_memory\.json: cannot be read"):
        load_system(tmp_path)


def test_a_wrong_yaml_file_names_line_and_column(tmp_path: Path) -> None:
    _write(tmp_path)
    (tmp_path / "network.yml").write_text("topology: [ Ring\n")
    with pytest.raises(ConfigError, match=r"network\.yml:2:1: malformed YAML"):
        load_system(tmp_path)


def _network(**changes: object) -> dict[str, object]:
    return NETWORK | changes


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        (None, "$ is null; give an object"),
        (_network(bandwidths=[1]), "unknown key 'bandwidths' in $; did you mean 'bandwidth'?"),
        ({key: NETWORK[key] for key in NETWORK if key != "latency"}, "$ lacks 'latency'; add it"),
        (_network(topology="Ring"), '$.topology is "Ring"; give a list'),
        (_network(topology=[]), "$.topology is []; give a list of length >= 1"),
        (
            _network(topology=["Ring", "Torus"]),
            '$.topology[1] is "Torus"; known: FullyConnected, Ring, Switch',
        ),
        (_network(topology=["ring", "Ring"]), "$.topology[0] is \"ring\"; did you mean 'Ring'?"),
        (_network(npus_count=[0, 2]), "$.npus_count[0] is 0; give an integer >= 1"),
        (_network(npus_count=[4, True]), "$.npus_count[1] is true; give an integer"),
        (_network(npus_count=[4.5, 2]), "$.npus_count[0] is 4.5; give an integer"),
        (_network(npus_count=[4, "2"]), '$.npus_count[1] is "2"; give an integer'),
        (_network(bandwidth=[0, 1]), "$.bandwidth[0] is 0; give a number > 0.0"),
        (_network(bandwidth=[1, -5.0]), "$.bandwidth[1] is -5.0; give a number > 0.0"),
        (_network(bandwidth=[True, 1]), "$.bandwidth[0] is true; give a number"),
        (_network(latency=[-1, 0]), "$.latency[0] is -1; give a number >= 0.0"),
        (_network(latency=["1 us", 0]), '$.latency[0] is "1 us"; give a number'),
    ],
)
def test_a_wrong_network_is_refused(tmp_path: Path, network: object, complaint: str) -> None:
    path = _write(tmp_path, network=network)
    with pytest.raises(ConfigError) as caught:
        load_system(path)
    assert str(caught.value) == f"{path / 'network.yml'}: {complaint}"


@pytest.mark.parametrize(("text", "shown"), [(".inf", "inf"), (".nan", "nan")])
def test_yaml_s_own_infinities_are_refused(tmp_path: Path, text: str, shown: str) -> None:
    _write(tmp_path)
    file = tmp_path / "network.yml"
    file.write_text(f"topology: [Ring]\nnpus_count: [2]\nbandwidth: [1]\nlatency: [{text}]\n")
    with pytest.raises(ConfigError) as caught:
        load_system(tmp_path)
    assert str(caught.value) == f"{file}: $.latency[0] is {shown}; give a finite number"


def test_a_key_that_is_no_string_is_refused(tmp_path: Path) -> None:
    _write(tmp_path)
    (tmp_path / "network.yml").write_text("1: 2\n")
    with pytest.raises(ConfigError, match=r"a key of \$ is not a string; quote it"):
        load_system(tmp_path)


@pytest.mark.parametrize("key", ["npus_count", "bandwidth", "latency"])
@pytest.mark.parametrize("count", [1, 3])
def test_lists_of_unequal_length_are_refused(tmp_path: Path, key: str, count: int) -> None:
    path = _write(tmp_path, network=_network(**{key: [1] * count}))
    with pytest.raises(HardwareError) as caught:
        load_system(path)
    assert str(caught.value) == (
        f"{path / 'network.yml'}: $.{key} has {count} entries and $.topology 2; "
        "give one entry per dimension"
    )


def _system(**changes: object) -> dict[str, object]:
    return SYSTEM | {key.replace("_", "-"): value for key, value in changes.items()}


@pytest.mark.parametrize(
    ("system", "complaint"),
    [
        ([], "$ is []; give an object"),
        (
            _system(endpoint_dely=1),
            "unknown key 'endpoint-dely' in $; did you mean 'endpoint-delay'?",
        ),
        ({"endpoint-delay": 1}, "$ lacks 'preferred-dataset-splits'; add it"),
        (_system(endpoint_delay=-1), "$.endpoint-delay is -1; give an integer >= 0"),
        (_system(endpoint_delay=True), "$.endpoint-delay is true; give an integer"),
        (_system(endpoint_delay="1"), '$.endpoint-delay is "1"; give an integer'),
        (
            _system(preferred_dataset_splits=0),
            "$.preferred-dataset-splits is 0; give an integer >= 1",
        ),
        (
            _system(active_chunks_per_dimension=0),
            "$.active-chunks-per-dimension is 0; give an integer >= 1",
        ),
        (_system(local_mem_bw=0), "$.local-mem-bw is 0; give a number > 0.0"),
        (_system(local_mem_bw=True), "$.local-mem-bw is true; give a number"),
        (_system(boost_mode=2), "$.boost-mode is 2; give an integer <= 1"),
        (_system(boost_mode=False), "$.boost-mode is false; give an integer"),
        (_system(peak_perf=0), "$.peak-perf is 0; give a number > 0.0"),
        (
            _system(scheduling_policy="LILO"),
            "$.scheduling-policy is \"LILO\"; did you mean 'LIFO'?",
        ),
        (
            _system(collective_optimization="bandwidth"),
            '$.collective-optimization is "bandwidth"; known: baseline, localBWAware',
        ),
        (
            _system(all_reduce_implementation="ring"),
            '$.all-reduce-implementation is "ring"; give a list',
        ),
        (
            _system(all_reduce_implementation=[]),
            "$.all-reduce-implementation is []; give a list of length >= 1",
        ),
        (
            _system(all_gather_implementation=["ring", 1]),
            "$.all-gather-implementation[1] is 1; give a string",
        ),
        (
            _system(all_reduce_implementation_custom=["a", "b"]),
            '$.all-reduce-implementation-custom is ["a", "b"]; give a list of length <= 1',
        ),
    ],
)
def test_a_wrong_system_is_refused(tmp_path: Path, system: object, complaint: str) -> None:
    path = _write(tmp_path, system=system)
    with pytest.raises(ConfigError) as caught:
        load_system(path)
    assert str(caught.value) == f"{path / 'system.json'}: {complaint}"


def test_more_implementations_than_dimensions_are_refused(tmp_path: Path) -> None:
    path = _write(tmp_path, system=_system(reduce_scatter_implementation=["ring"] * 3))
    with pytest.raises(HardwareError) as caught:
        load_system(path)
    assert str(caught.value) == (
        f"{path / 'system.json'}: $.reduce-scatter-implementation has 3 entries for 2 dimensions; "
        "give at most one entry per dimension of network.yml"
    )


def test_several_dimensions_need_the_collective_optimization(tmp_path: Path) -> None:
    system = {key: value for key, value in SYSTEM.items() if key != "collective-optimization"}
    path = _write(tmp_path, system=system)
    with pytest.raises(HardwareError) as caught:
        load_system(path)
    assert str(caught.value) == (
        f"{path / 'system.json'}: $ lacks 'collective-optimization', which 2 dimensions need; "
        "add localBWAware or baseline"
    )


POOL: dict[str, object] = {
    "memory-type": "MEMORY_POOL",
    "remote-mem-latency": 1,
    "remote-mem-bw": 2,
}


@pytest.mark.parametrize(
    ("memory", "complaint"),
    [
        ({}, "$ lacks 'memory-type'; add it"),
        ({"memory-type": "POOL"}, "$.memory-type is \"POOL\"; did you mean 'MEMORY_POOL'?"),
        (POOL | {"remote-mem-bw": 0}, "$.remote-mem-bw is 0; give a number > 0.0"),
        (POOL | {"remote-mem-latency": -1}, "$.remote-mem-latency is -1; give a number >= 0.0"),
        (
            {"memory-type": "MEMORY_POOL", "remote-mem-latency": 1},
            "$ lacks 'remote-mem-bw', which MEMORY_POOL needs; add it",
        ),
        (
            POOL | {"memory-type": "PER_NODE_MEMORY_EXPANSION", "num-nodes": 2},
            "$ lacks 'num-npus-per-node', which PER_NODE_MEMORY_EXPANSION needs; add it",
        ),
        (
            POOL | {"memory-typ": 1},
            "unknown key 'memory-typ' in $; did you mean 'memory-type'?",
        ),
    ],
)
def test_a_wrong_remote_memory_is_refused(tmp_path: Path, memory: object, complaint: str) -> None:
    path = _write(tmp_path, memory=memory)
    with pytest.raises(ConfigError) as caught:
        load_system(path)
    assert str(caught.value) == f"{path / 'remote_memory.json'}: {complaint}"
