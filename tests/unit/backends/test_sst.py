from __future__ import annotations

from pathlib import Path

import pytest

from hespas.backends.network_program import ProgramOptions
from hespas.backends.sst import run_sst, simulated_ns
from hespas.errors import HespasError, ImpossibleTimeError
from hespas.hardware.interconnect import Shape, dimension_of
from hespas.hardware.presets import load_system
from hespas.hardware.system import System, bare_system
from hespas.program.collectives import CollectiveKind
from hespas.simulate.flow.simulate import simulate_flow
from hespas.tasks.graph import CollectiveTask, ComputeTask, Job, Task, TaskGraph, as_job
from message_simulators import stand_in_sst

MIB = 2**20
ALL_REDUCE = CollectiveKind.ALL_REDUCE
RECORDED_US = [
    ("ring", ALL_REDUCE, 4, 64 * MIB, 2055),
    ("ring", ALL_REDUCE, 8, 64 * MIB, 2441),
    ("ring", ALL_REDUCE, 16, 64 * MIB, 2706),
    ("direct", ALL_REDUCE, 8, 64 * MIB, 2441),
    ("halving-doubling", ALL_REDUCE, 8, 64 * MIB, 2394),
    ("direct", CollectiveKind.ALL_TO_ALL, 8, 64 * MIB, 1226),
]
"""What SST says of a collective at 50 GB/s through one switch, 500 ns a link (November 2026)."""


def collective(number: int, kind: CollectiveKind, size_bytes: int) -> CollectiveTask:
    return CollectiveTask(
        id=number, name=kind.name, depends_on=(), kind=kind, size_bytes=size_bytes,
        group_table=None,
    )  # fmt: skip


def compute(number: int, duration_ps: int) -> ComputeTask:
    return ComputeTask(id=number, name="f", depends_on=(), duration_ps=duration_ps)


def job(ranks: int, *tasks: Task) -> Job:
    return as_job(TaskGraph(name="g", device_count=ranks, tasks=tasks, group_tables=()))


def switch(ranks: int, latency_s: float = 5e-7) -> System:
    dimension = dimension_of(Shape.SWITCH, ranks, 50e9, latency_s)
    return bare_system("switch", dimensions=(dimension,))


def played_us(work: Job, system: System, directory: Path, algorithm: str = "ring") -> float:
    options = ProgramOptions(program=stand_in_sst(directory), algorithm=algorithm)
    return run_sst(work, system, directory / "files", options).finish_ns / 1e3


@pytest.mark.parametrize("recorded", RECORDED_US)
def test_its_files_are_read_and_its_answer_too(
    recorded: tuple[str, CollectiveKind, int, int, float], tmp_path: Path
) -> None:
    """The real program takes as long as messages at the links' rate, and 8 % more at most."""
    algorithm, kind, ranks, size_bytes, recorded_us = recorded
    work = job(ranks, collective(0, kind, size_bytes))
    ours_us = simulate_flow(work, switch(ranks), algorithm=algorithm).step_time_s * 1e6
    found_us = played_us(work, switch(ranks), tmp_path, algorithm)
    assert found_us == pytest.approx(ours_us, rel=1e-3)
    assert found_us <= recorded_us <= 1.08 * found_us


def test_computation_after_the_last_message_counts(tmp_path: Path) -> None:
    """1 MiB among 4, then 100 ms: SST said 73.67 us without a barrier, 100.1 ms with one."""
    work = job(4, collective(0, ALL_REDUCE, MIB), compute(1, 10**11))
    assert played_us(work, switch(4), tmp_path) == pytest.approx(100_100, rel=1e-3)


def test_a_long_latency_does_not_hold_links_back(tmp_path: Path) -> None:
    """5 us a link: 2,013 us of data and 6 rounds of 10 us; buffers of 64 kB made it 16,140 us."""
    work = job(4, collective(0, ALL_REDUCE, 64 * MIB))
    assert played_us(work, switch(4, latency_s=5e-6), tmp_path) == pytest.approx(2073, rel=1e-3)


@pytest.mark.parametrize("preset", ["H100_80GB_8GPU", "A100_SXM_40GB_8GPU", "B200_180GB_8GPU"])
def test_presets_are_as_fast_as_their_links(preset: str, tmp_path: Path) -> None:
    """A ring of 8 moves 14 / 8 of the size; buffers of 64 kB gave 3,853 us for all of them."""
    (link,) = load_system(preset).dimensions
    ideal_us = 1e6 * (14 / 8 * 64 * MIB / link.bandwidth_bytes_per_s + 14 * 2 * link.latency_s)
    work = job(8, collective(0, ALL_REDUCE, 64 * MIB))
    assert played_us(work, load_system(preset), tmp_path) == pytest.approx(ideal_us, rel=1e-3)


@pytest.mark.parametrize("members", [2, 5, 8])
@pytest.mark.parametrize(
    ("kind", "algorithm", "allowed"),
    [
        (ALL_REDUCE, "double-binary-tree", 1.001),
        (ALL_REDUCE, "ring", 1.001),
        (ALL_REDUCE, "direct", 1.001),
        (CollectiveKind.REDUCE, "binomial-tree", 1.001),
        (CollectiveKind.REDUCE, "ring", 1.1),
        (CollectiveKind.BROADCAST, "binomial-tree", 1.001),
        (CollectiveKind.BROADCAST, "ring", 1.1),
        (CollectiveKind.BARRIER, "dissemination", 1.001),
    ],
)
def test_messages_are_those_of_our_own_model(
    kind: CollectiveKind, algorithm: str, allowed: float, members: int, tmp_path: Path
) -> None:
    """On one switch they take as long as hespas' network model says, chains a bit longer."""
    work = job(members, collective(0, kind, 64 * MIB))
    ours_us = simulate_flow(work, switch(members), algorithm=algorithm).step_time_s * 1e6
    found_us = played_us(work, switch(members), tmp_path, algorithm)
    assert 0.999 * ours_us <= found_us <= allowed * ours_us


def test_a_barrier_takes_its_rounds(tmp_path: Path) -> None:
    """3 rounds of a dissemination barrier among 8, each through two links of 500 ns."""
    work = job(8, collective(0, CollectiveKind.BARRIER, 0))
    assert played_us(work, switch(8), tmp_path, "dissemination") == pytest.approx(3, rel=1e-3)


@pytest.mark.parametrize("answer", ["0 ps", "73.67 us", "99 ms", "1 ps"])
def test_an_answer_that_is_too_short_is_refused(answer: str, tmp_path: Path) -> None:
    program = tmp_path / "sst"
    program.write_text(f"#!/bin/sh\necho 'Simulation is complete, simulated time: {answer}'\n")
    program.chmod(0o755)
    work = job(4, compute(0, 10**11), collective(1, ALL_REDUCE, MIB))
    options = ProgramOptions(program=program, algorithm="ring")
    with pytest.raises(ImpossibleTimeError, match=r"sst answers .*take 100 ms at least"):
        run_sst(work, switch(4), tmp_path / "files", options)


TIMES = {
    "2.055 ms": 2_055_000,
    "1.02384 s": 1_023_840_000,
    "1.5e+3 us": 1_500_000,
    "3 Ks": 3 * 10**12,
}


@pytest.mark.parametrize("said", TIMES)
def test_times_of_every_unit(said: str) -> None:
    text = f"Simulation is complete, simulated time: {said}\n"
    assert simulated_ns(text, "log.txt") == TIMES[said]


BROKEN = {
    "all is well": "printed no simulated time",
    "simulated time: nan us": "printed no simulated time",
    "simulated time: 1.2.3 us": "printed no simulated time",
    "simulated time: 18.4467 Ms": "clock ran to its end",
    "simulated time: 18446744073709551615 ps": "clock ran to its end",
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_run_without_a_time_is_an_error(said: str) -> None:
    """2**64 ps is what SST says where a packet is larger than the buffers."""
    with pytest.raises(HespasError, match=BROKEN[said]):
        simulated_ns(said, "log.txt")


def test_a_program_that_there_is_not(tmp_path: Path) -> None:
    options = ProgramOptions(program=tmp_path / "none")
    with pytest.raises(HespasError, match="there is no program"):
        run_sst(job(4, collective(0, ALL_REDUCE, MIB)), switch(4), tmp_path / "files", options)
