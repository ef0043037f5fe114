from __future__ import annotations

from pathlib import Path

import pytest

from hespas.backends.network_program import ProgramOptions
from hespas.backends.sst.run import run_sst, simulated_ns
from hespas.errors import HespasError
from hespas.hardware.system import NetworkDimension, System, Topology, bare_system
from hespas.schedule.tasks import CollectiveTask, CommunicationKind, Job, TaskGraph, spmd_job
from hespas.simulate.flow.simulate import simulate_flow
from message_simulators import stand_in_sst

MIB = 2**20
RECORDED_MS = {4: 2.055, 16: 2.706}
"""What SST 16.0.0 says of a ring all-reduce of 64 MiB at 50 GB/s through one switch."""


def job(ranks: int) -> Job:
    task = CollectiveTask(
        id=0, name="all_reduce", depends_on=(), kind=CommunicationKind.ALL_REDUCE,
        size_bytes=64 * MIB, group_table=None,
    )  # fmt: skip
    return spmd_job(TaskGraph(name="g", device_count=ranks, tasks=(task,), group_tables=()))


def switch(ranks: int) -> System:
    dimension = NetworkDimension(
        topology=Topology.SWITCH, npus_count=ranks, bandwidth_bytes_per_s=50e9, latency_s=5e-7
    )
    return bare_system("switch", dimensions=(dimension,))


@pytest.mark.parametrize("ranks", RECORDED_MS)
def test_its_files_are_read_and_its_answer_too(ranks: int, tmp_path: Path) -> None:
    options = ProgramOptions(program=stand_in_sst(tmp_path), algorithm="ring")
    found = run_sst(job(ranks), switch(ranks), tmp_path / "files", options)
    ideal_ms = 2 * (ranks - 1) / ranks * 64 * MIB / 50e9 * 1e3
    assert found.finish_ns / 1e6 == pytest.approx(ideal_ms, rel=1e-4)
    assert ideal_ms <= RECORDED_MS[ranks] <= 1.08 * ideal_ms
    assert any("does not say when single devices end" in note for note in found.notes)


@pytest.mark.parametrize("ranks", RECORDED_MS)
def test_our_own_model_is_near_what_the_real_one_said(ranks: int) -> None:
    ours = simulate_flow(job(ranks), switch(ranks), algorithm="ring").step_time_s * 1e3
    assert ours == pytest.approx(RECORDED_MS[ranks], rel=0.08)


def test_a_run_without_a_time_is_an_error() -> None:
    with pytest.raises(HespasError, match="said no simulated time"):
        simulated_ns("all is well", "log.txt")


def test_a_program_that_there_is_not(tmp_path: Path) -> None:
    options = ProgramOptions(program=tmp_path / "none")
    with pytest.raises(HespasError, match="there is no program"):
        run_sst(job(4), switch(4), tmp_path / "files", options)
