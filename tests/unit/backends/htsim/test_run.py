from __future__ import annotations

from pathlib import Path

import pytest

from hespas.backends.htsim.run import run_htsim
from hespas.backends.network_program import ProgramOptions
from hespas.errors import HespasError
from hespas.hardware.system import NetworkDimension, System, Topology, bare_system
from hespas.schedule.tasks import (
    CollectiveTask,
    CommunicationKind,
    ComputeTask,
    Job,
    TaskGraph,
    spmd_job,
)
from message_simulators import stand_in_htsim

SIZE = 64 * 2**20


def job(kind: CommunicationKind, ranks: int) -> Job:
    task = CollectiveTask(
        id=0, name="c", depends_on=(), kind=kind, size_bytes=SIZE, group_table=None
    )
    return spmd_job(TaskGraph(name="g", device_count=ranks, tasks=(task,), group_tables=()))


def network(topology: Topology, ranks: int) -> System:
    dimension = NetworkDimension(
        topology=topology, npus_count=ranks, bandwidth_bytes_per_s=50e9, latency_s=5e-7
    )
    return bare_system("network", dimensions=(dimension,))


def test_messages_are_played_at_the_links_rate(tmp_path: Path) -> None:
    """8 ranks, a ring all-reduce of 64 MiB at 400 Gb/s: 2,349 us by bandwidth alone."""
    found = run_htsim(
        job(CommunicationKind.ALL_REDUCE, 8), network(Topology.SWITCH, 8), tmp_path / "files",
        ProgramOptions(program=stand_in_htsim(tmp_path), algorithm="ring"),
    )  # fmt: skip
    assert found.finish_ns / 1e3 == pytest.approx(2349, abs=1)
    assert found.as_json()["devices"] == {}


def test_computation_between_messages_is_added(tmp_path: Path) -> None:
    reduce = job(CommunicationKind.ALL_REDUCE, 8).graphs[0].tasks[0]
    compute = ComputeTask(id=1, name="f", depends_on=(0,), duration_ps=5 * 10**8)
    graph = TaskGraph(name="g", device_count=8, tasks=(reduce, compute), group_tables=())
    alone, both = [
        run_htsim(
            each, network(Topology.SWITCH, 8), tmp_path / "files",
            ProgramOptions(program=stand_in_htsim(tmp_path), algorithm="ring"),
        )
        for each in (job(CommunicationKind.ALL_REDUCE, 8), spmd_job(graph))
    ]  # fmt: skip
    assert both.finish_ns - alone.finish_ns == 500_000
    assert any("computation of 500 us" in note for note in both.notes), both.notes


def test_arguments_are_passed_on(tmp_path: Path) -> None:
    run_htsim(
        job(CommunicationKind.ALL_TO_ALL, 4), network(Topology.SWITCH, 4), tmp_path / "files",
        ProgramOptions(
            program=stand_in_htsim(tmp_path), arguments=("-sender_cc_algo", "nscc")
        ),
    )  # fmt: skip


def test_rings_are_refused(tmp_path: Path) -> None:
    options = ProgramOptions(program=stand_in_htsim(tmp_path))
    with pytest.raises(HespasError, match="one dimension with a switch"):
        run_htsim(
            job(CommunicationKind.ALL_REDUCE, 4), network(Topology.RING, 4), tmp_path, options
        )
