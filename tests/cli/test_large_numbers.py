"""Numbers that the work grows with have bounds, and what passes one is refused at once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from hespas.program.collectives import CollectiveKind
from hespas.tasks.chakra.writer import write_traces
from hespas.tasks.graph import CollectiveTask, TaskGraph

Call = Callable[..., CompletedProcess[str]]
HUGE = 1 << 32
LONGEST_S = 2.0
RING = ["ring"]
SYSTEM: dict[str, object] = {
    "preferred-dataset-splits": 1,
    "all-reduce-implementation": RING,
    "all-gather-implementation": RING,
    "reduce-scatter-implementation": RING,
    "all-to-all-implementation": RING,
}
NETWORK: dict[str, object] = {
    "topology": ["Ring"],
    "npus_count": [4],
    "bandwidth": [50.0],
    "latency": [500.0],
}
LINK = {"bandwidth_bytes_per_s": 1e9, "latency_s": 1e-6}
FLY: dict[str, object] = {
    "groups": 1,
    "routers_per_group": 1,
    "devices_per_router": 4,
    "device_link": LINK,
    "local_link": LINK,
    "global_link": LINK,
}
TREE = {"topology": "fat_tree", "size": HUGE, "leaf_size": 1, "link": LINK}


def refused(call: Call, *words: str | Path) -> str:
    """Return the error of a command, which must come soon."""
    start = time.perf_counter()
    answer = call("hespas", *words)
    assert time.perf_counter() - start < LONGEST_S
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    return answer.stderr


def write_system(
    system: Mapping[str, object] = {},
    network: Mapping[str, object] = {},
    own: Mapping[str, object] | None = None,
) -> None:
    files = {
        "system.json": SYSTEM | dict(system),
        "network.yml": NETWORK | dict(network),
        "remote_memory.json": {"memory-type": "NO_MEMORY_EXPANSION"},
    }
    if own is not None:
        files["hespas/network.json"] = dict(own)
    for name, content in files.items():
        path = Path("system", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))


@pytest.fixture
def traces(call: Call) -> Path:
    """Write traces of one all-reduce among four devices; ``call`` has changed the directory."""
    task = CollectiveTask(
        id=1,
        name="k",
        depends_on=(),
        kind=CollectiveKind.ALL_REDUCE,
        size_bytes=1 << 20,
        group_table=None,
    )
    write_traces(
        TaskGraph(name="g", device_count=4, tasks=(task,), group_tables=()), Path("traces")
    )
    return Path("traces")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"system": {"preferred-dataset-splits": HUGE}},
            "$.preferred-dataset-splits is 4294967296; give an integer <= 65536",
        ),
        ({"network": {"npus_count": [HUGE]}}, "$.npus_count[0] is 4294967296"),
        (
            {
                "system": {"collective-optimization": "baseline"},
                "network": {
                    "topology": ["Ring", "Ring"],
                    "npus_count": [1 << 16, 1 << 16],
                    "bandwidth": [1.0, 1.0],
                    "latency": [1.0, 1.0],
                },
            },
            "$.npus_count makes 4294967296 devices; describe at most 4194304",
        ),
        (
            {"system": {"all-reduce-implementation": ["direct" + "9" * 5000]}},
            "has no model here",
        ),
        ({"own": {"dragonfly": FLY | {"groups": HUGE}}}, "$.dragonfly.groups is 4294967296"),
        (
            {"own": {"dragonfly": FLY | {"groups": 1 << 16, "routers_per_group": 1 << 16}}},
            "the network has 17179869184 devices; describe at most 4194304",
        ),
        ({"own": {"dimensions": [TREE]}}, "$.dimensions[0].size is 4294967296"),
    ],
)
def test_a_system(
    files: dict[str, dict[str, object]], message: str, traces: Path, call: Call
) -> None:
    write_system(**files)

    assert message in refused(call, "simulate", traces, "--system", "system")


@pytest.mark.parametrize("devices", ["0-4294967295", "0-" + "9" * 5000, "9" * 5000])
def test_a_cluster(devices: str, traces: Path, call: Call) -> None:
    write_system()
    entry = {"devices": devices, "compute_scale": 2}
    Path("cluster.yml").write_text(json.dumps({"devices": [entry]}))
    words = ("simulate", traces, "--system", "system", "--cluster", "cluster.yml")

    assert "give numbers below 4194304" in refused(call, *words)


def test_the_name_of_a_group(traces: Path, call: Call) -> None:
    write_system()
    (traces / "comm_group.json").write_text(json.dumps({"1" * 5000: [0, 1, 2, 3]}))

    assert "the name is not a positive number" in refused(
        call, "simulate", traces, "--system", "system"
    )


PARTITIONED = """module @m attributes {mhlo.num_partitions = 4294967296 : i64} {
  func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> { return %x : tensor<64xf32> } }
"""
MESH = """module @m { sdy.mesh @mesh = <["x"=4294967296]>
  func.func @main(%x: tensor<64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
    -> tensor<64xf32> { return %x : tensor<64xf32> } }
"""
FOLDED = """HloModule m, num_partitions=4
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }
ENTRY e { x = f32[64]{0} parameter(0)
  ROOT r = f32[64]{0} all-reduce(x), channel_id=1, use_global_device_ids=true,
    replica_groups=[65536,65536]<=[65536,65536]T(1,0), to_apply=add }
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PARTITIONED, "the program runs on 4294967296 devices; give at most 4194304"),
        (MESH, "the program is sharded over 4294967296 devices; use at most 4194304"),
        (FOLDED, "the replica groups fold 65536x65536 devices; use at most 4194304"),
    ],
)
def test_a_program(text: str, message: str, call: Call) -> None:
    Path("p.hlo" if text is FOLDED else "p.mlir").write_text(text)
    program = next(Path().glob("p.*"))

    assert message in refused(call, "run", program, "--node", "A100_SXM_40GB")


def test_a_number_of_devices(call: Call) -> None:
    Path("p.mlir").write_text(PARTITIONED.replace("4294967296", "1"))

    message = refused(call, "run", "p.mlir", "--node", "A100_SXM_40GB", "--devices", str(HUGE))
    assert "the program runs on 4294967296 devices; give at most 4194304" in message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('cnt="1"', f'cnt="{HUGE}"', "its steps move"),
        ('s_chunks="0"', f's_chunks="{HUGE}"', "its buffers have"),
        ('nchunksperloop="4"', f'nchunksperloop="{HUGE}"', "its buffers have"),
    ],
)
def test_a_collective_algorithm(old: str, new: str, message: str, call: Call) -> None:
    call("hespas", "algorithm", "ring", "--ranks", "4", "--xml", "ring.xml")
    path = Path("ring.xml")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))

    assert message in refused(call, "algorithm", "ring.xml")
    assert "chunks in all; use at most 16777216" in refused(call, "algorithm", "ring.xml")


def test_ranks_of_a_common_algorithm(call: Call) -> None:
    message = refused(call, "algorithm", "ring", "--ranks", str(HUGE))

    assert "there are 4294967296 ranks; give at most 4096" in message
