from __future__ import annotations

from pathlib import Path

import pytest

from hespas.backends.htsim.run import run_htsim
from hespas.backends.network_program import ProgramOptions
from hespas.errors import HespasError
from hespas.hardware.system import NetworkDimension, System, Topology, bare_system
from hespas.schedule.tasks import CollectiveTask, CommunicationKind, Job, TaskGraph, spmd_job
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
