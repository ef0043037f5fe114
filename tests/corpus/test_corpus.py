"""Runs of ASTRA-sim: each is reproduced to the ns, or refused with a reason."""

from __future__ import annotations

import base64
import contextlib
import json
import lzma
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hespas.errors import HespasError, TraceError
from hespas.hardware.presets import load_system
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.options import AstraSettings, ContentionModel
from hespas.tasks.chakra import format as wire
from hespas.tasks.chakra.reader import read_traces
from hespas.tasks.graph import Job

CORPUS = Path(__file__).with_name("astra-sim.json.xz")
EXACT_CASES = {ContentionModel.CONGESTION_UNAWARE: 296, ContentionModel.CONGESTION_AWARE: 210}
ONLY_STATISTICS_FAILED = ("edge_cpu_op_then_p2p_last_F2",)
MEANINGS: dict[str, dict[str, Any]] = {
    "--comm-scale=2": {},  # ASTRA-sim takes these two, and does nothing with them
    "--compute-scale=2": {},
    "--rendezvous-protocol=true": {"settings": AstraSettings(rendezvous_protocol=True)},
    **{
        f"--num-queues-per-dim={n}": {"settings": AstraSettings(num_queues_per_dim=n)}
        for n in (1, 2, 4)
    },
}

Case = dict[str, Any]


@cache
def corpus() -> dict[str, Case]:
    cases: list[Case] = json.loads(lzma.decompress(CORPUS.read_bytes()))
    return {case["case"]: case for case in cases}


def node_bytes(node: dict[str, Any]) -> bytes:
    known = {"id", "type", "data_deps", "ctrl_deps", "duration_micros", "is_cpu_op"}
    message = wire.schema().node(
        id=node["id"],
        type=wire.NodeType[node["type"].removesuffix("_NODE")],
        data_deps=node.get("data_deps", ()),
        duration_micros=node.get("duration_micros", 0),
    )
    if "is_cpu_op" in node:
        message.attr.add(name="is_cpu_op", bool_val=node["is_cpu_op"])
    for name in node.keys() - known:
        value = node[name]
        match value:
            case str():
                message.attr.add(name=name, string_val=value)
            case int():
                message.attr.add(name=name, int64_val=value)
            case _:
                message.attr.add(name=name, bool_list={"values": value})
    return message.SerializeToString()


def write_case(case: Case, directory: Path) -> None:
    (directory / "network.yml").write_text(case["network.yml"])
    for name in ("system.json", "remote_memory.json", "comm_group.json"):
        if name in case:
            (directory / name).write_text(json.dumps(case[name]))
    for name, content in case.get("files", {}).items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(base64.b64decode(content))
    head = wire.schema().metadata(version=wire.SCHEMA_VERSION).SerializeToString()
    for devices, nodes in case["traces"]:
        content = wire.delimited([head, *map(node_bytes, nodes)])
        if 0 in devices and "workload.0.et" in case:
            content = base64.b64decode(case["workload.0.et"])
        first = directory / f"workload.{devices[0]}.et"
        first.write_bytes(content)
        for device in devices[1:]:
            (directory / f"workload.{device}.et").hardlink_to(first)


def read_case(case: Case, directory: Path) -> Job:
    write_case(case, directory)
    groups = directory / "comm_group.json"
    return read_traces(directory / "workload", groups if groups.exists() else None)


def by_device(folded: list[tuple[list[int], Any]]) -> dict[str, Any]:
    return {str(device): content for devices, content in folded for device in devices}


@cache
def outcome(
    name: str, network: ContentionModel, *, by_events: bool
) -> HespasError | dict[str, Any]:
    case = corpus()[name]
    options: dict[str, Any] = {"network": network, "by_events": by_events}
    for argument in case["extra_args"]:
        options |= MEANINGS[argument]
    # Paths of custom collectives are relative to the working directory.
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        try:
            job = read_case(case, Path(directory))
            timeline = simulate(job, load_system(Path(directory)), **options)
        except HespasError as error:
            return error
        return timeline.as_json(with_nodes=True)


def expected(name: str, network: ContentionModel) -> Case | None:
    case = corpus()[name]
    if network is ContentionModel.CONGESTION_UNAWARE:
        return case
    return case | case["congestion_aware"] if "congestion_aware" in case else None


def check(case: Case | None, found: HespasError | dict[str, Any]) -> None:
    if isinstance(found, HespasError):
        assert str(found)
        return
    assert case is not None
    if case["case"] in ONLY_STATISTICS_FAILED:
        return
    assert case["status"].startswith("ok")
    assert found["nodes"] == by_device(case["nodes"])
    finished = {
        device: {
            "cycles": figures["finish_ns"],
            "exposed_comm": figures["exposed_communication_ns"],
        }
        for device, figures in found["devices"].items()
    }
    assert finished == by_device(case["finished"])
    for device, statistics in by_device(case["stats"]).items():
        figures = found["devices"][device]
        assert figures["finish_ns"] == statistics["Wall time"]
        assert figures["compute_ns"] == statistics.get("GPU time", 0)
        assert figures["communication_ns"] == statistics.get("Comm time", 0)
        overlap = statistics.get("Total compute-communication overlap", 0)
        assert figures["overlap_ns"] == overlap


@pytest.mark.parametrize("name", corpus())
def test_a_run_is_reproduced_to_the_nanosecond_or_refused(name: str) -> None:
    for by_events in (False, True):
        found = outcome(name, ContentionModel.CONGESTION_UNAWARE, by_events=by_events)
        check(expected(name, ContentionModel.CONGESTION_UNAWARE), found)


@pytest.mark.parametrize("name", corpus())
def test_a_run_with_congestion_is_reproduced_to_the_nanosecond_or_refused(name: str) -> None:
    found = outcome(name, ContentionModel.CONGESTION_AWARE, by_events=True)

    check(expected(name, ContentionModel.CONGESTION_AWARE), found)


@pytest.mark.parametrize("network", ContentionModel)
def test_every_run_that_ended_is_reproduced(network: ContentionModel) -> None:
    ended = 0
    for name in corpus():
        case, found = expected(name, network), outcome(name, network, by_events=True)
        if case is not None and case["status"].startswith("ok"):
            assert not isinstance(found, HespasError), f"{name}: {found}"
            ended += 1

    assert ended >= EXACT_CASES[network]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("edge_AG_size_lt_splits_hangs", "3 bytes can't be cut into 4 chunks"),
        ("edge_group_order_mismatch", "groups of the same members come in another order"),
        ("edge_p2p_size_mismatch", "no receive of the same ends, tag and size came"),
        ("hespas_A40_48GB_2GPU_mix", "lacks 'preferred-dataset-splits'"),
        ("involved_00_R4S8", "involves no dimension with several devices"),
        ("mem_NO_MEMORY_EXPANSION", "the system has no memory outside the devices"),
    ],
)
def test_a_refusal_says_why(name: str, message: str) -> None:
    found = outcome(name, ContentionModel.CONGESTION_UNAWARE, by_events=False)

    assert isinstance(found, HespasError)
    assert message in str(found)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("npus_R2_direct", "congestion in a ring of two devices has no model here"),
        ("shape_FSS_4x4x2_ring", "congestion among 3 dimensions has no model here"),
    ],
)
def test_congestion_without_a_model_is_refused(name: str, message: str) -> None:
    found = outcome(name, ContentionModel.CONGESTION_AWARE, by_events=False)

    assert isinstance(found, HespasError)
    assert message in str(found)


def test_a_refused_trace_names_its_file(tmp_path: Path) -> None:
    case = corpus()["mem_MEMORY_POOL"]
    (devices, nodes), *_ = case["traces"]
    without_size = {key: value for key, value in nodes[0].items() if key != "tensor_size"}

    with pytest.raises(TraceError, match=r"workload\.0\.et: node 1"):
        read_case(case | {"traces": [[devices, [without_size]]]}, tmp_path)
