from __future__ import annotations

from pathlib import Path

import pytest

from hespas.backends.htsim import run_htsim, switch_of, topology_text
from hespas.backends.network_program import ProgramOptions
from hespas.errors import HespasError, ImpossibleTimeError
from hespas.hardware.interconnect import (
    Dimension,
    Dimensions,
    Interconnect,
    Shape,
    dimension_of,
)
from hespas.hardware.links import LinkParameters
from hespas.hardware.system import System, bare_system
from hespas.program.collectives import CollectiveKind
from hespas.tasks.graph import CollectiveTask, ComputeTask, Job, Task, TaskGraph, as_job
from message_simulators import stand_in_htsim

MIB = 2**20
ALL_REDUCE, ALL_TO_ALL = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL
RECORDED_US = [
    ("ring", ALL_REDUCE, 4, 64 * MIB, 2059),
    ("ring", ALL_REDUCE, 8, 64 * MIB, 2424),
    ("ring", ALL_REDUCE, 16, 64 * MIB, 2628),
    ("direct", ALL_REDUCE, 8, 64 * MIB, 2401),
    ("halving-doubling", ALL_REDUCE, 8, 64 * MIB, 2407),
    ("direct", ALL_TO_ALL, 8, 64 * MIB, 1199),
    ("ring", ALL_REDUCE, 8, 64 * 1024, 31.5),
    ("ring", ALL_REDUCE, 64, 16 * MIB, 936),
]
"""What htsim says of a collective at 50 GB/s through one switch, 500 ns a link (November 2026)."""


def collective(number: int, kind: CollectiveKind, size_bytes: int) -> CollectiveTask:
    return CollectiveTask(
        id=number, name="c", depends_on=(), kind=kind, size_bytes=size_bytes, group_table=None
    )


def job(ranks: int, *tasks: Task) -> Job:
    return as_job(TaskGraph(name="g", device_count=ranks, tasks=tasks, group_tables=()))


def network(
    ranks: int,
    *,
    topology: Shape = Shape.SWITCH,
    bytes_per_s: float = 50e9,
    latency_s: float = 5e-7,
) -> System:
    dimension = dimension_of(topology, ranks, bytes_per_s, latency_s)
    return bare_system("network", dimensions=(dimension,))


def played_us(work: Job, system: System, directory: Path, algorithm: str = "ring") -> float:
    options = ProgramOptions(program=stand_in_htsim(directory), algorithm=algorithm)
    return run_htsim(work, system, directory / "files", options).finish_ns / 1e3


@pytest.mark.parametrize("recorded", RECORDED_US)
def test_messages_take_what_the_real_program_said(
    recorded: tuple[str, CollectiveKind, int, int, float], tmp_path: Path
) -> None:
    """Any number of ranks, at the system's rate and latency."""
    algorithm, kind, ranks, size_bytes, recorded_us = recorded
    found_us = played_us(
        job(ranks, collective(0, kind, size_bytes)), network(ranks), tmp_path, algorithm
    )
    assert found_us == pytest.approx(recorded_us, rel=0.05)


def test_computation_between_messages_is_added(tmp_path: Path) -> None:
    reduce = collective(0, ALL_REDUCE, 64 * MIB)
    compute = ComputeTask(id=1, name="f", depends_on=(0,), duration_ps=5 * 10**8)
    options = ProgramOptions(program=stand_in_htsim(tmp_path), algorithm="ring")
    alone, both = [
        run_htsim(work, network(8), tmp_path / "files", options)
        for work in (job(8, reduce), job(8, reduce, compute))
    ]
    assert both.finish_ns - alone.finish_ns == 500_000
    assert any("computation of 500 us" in note for note in both.notes), both.notes


def test_times_of_more_than_a_second_are_read(tmp_path: Path) -> None:
    """64 GiB among 4 at 50 GB/s are 2.06 s and 1.57 % of headers; in us that has an exponent."""
    found_us = played_us(job(4, collective(0, ALL_REDUCE, 64 * 2**30)), network(4), tmp_path)
    assert found_us == pytest.approx(1.0157 * 1.5 * 64 * 2**30 / 50e3, rel=1e-3)
    assert found_us > 1e6


def test_arguments_are_passed_on(tmp_path: Path) -> None:
    arguments = ("-sender_cc_algo", "nscc", "-end", "100")
    options = ProgramOptions(program=stand_in_htsim(tmp_path), arguments=arguments)
    with pytest.raises(HespasError, match=r"flows never ended.*give htsim more time: .*-end"):
        run_htsim(
            job(4, collective(0, ALL_TO_ALL, 64 * MIB)), network(4), tmp_path / "files", options
        )


def test_an_answer_that_is_too_short_is_refused(tmp_path: Path) -> None:
    """6 rounds of an exponent that another version might write in another way."""
    program = tmp_path / "htsim_uec"
    program.write_text("#!/bin/sh\nfor i in $(seq 24); do echo 'finished at 1.02384x06'; done\n")
    program.chmod(0o755)
    options = ProgramOptions(program=program, algorithm="ring")
    with pytest.raises(ImpossibleTimeError, match=r"htsim answers 1.024 us, .* 2.019 ms at least"):
        run_htsim(
            job(4, collective(0, ALL_REDUCE, 64 * MIB)), network(4), tmp_path / "files", options
        )


def test_what_is_longer_than_its_clock_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HespasError, match=r"2815 s at least, and htsim's clock ends after 2147 s"):
        played_us(job(2, collective(0, ALL_REDUCE, 2**47)), network(2), tmp_path)


def test_what_its_files_cannot_say_is_rounded_with_a_note_or_refused(tmp_path: Path) -> None:
    options = ProgramOptions(program=stand_in_htsim(tmp_path))
    work = job(4, collective(0, ALL_REDUCE, MIB))
    system = network(4, bytes_per_s=12.54e9, latency_s=4.6e-9)
    notes = " ".join(run_htsim(work, system, tmp_path / "files", options).notes)
    assert "100 Gb/s for 100.32" in notes
    assert "latency of 5 ns for 4.6" in notes
    with pytest.raises(HespasError, match=r"links have 12.4 Gb/s"):
        run_htsim(work, network(4, bytes_per_s=1.55e9), tmp_path / "files", options)


def test_rings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HespasError, match=r"written for one switch, .* and the system is 4 Ring"):
        played_us(job(4, collective(0, ALL_REDUCE, MIB)), network(4, topology=Shape.RING), tmp_path)


def leaves(*, spines: int | None, oversubscription: float = 2.0) -> System:
    tree = Dimension(
        shape=Shape.FAT_TREE,
        size=16,
        parameters=LinkParameters(bandwidth_bytes_per_s=50e9, latency_s=5e-7),
        leaf_size=4,
        oversubscription=oversubscription,
        spines=spines,
    )
    network = Interconnect(name="tree", fabric=Dimensions(dimensions=(tree,)))
    return bare_system("leaves", interconnect=network)


@pytest.mark.parametrize("spines", [None, 2])
def test_leaves_and_spines_are_written_as_tiers(spines: int | None) -> None:
    lines = topology_text(switch_of(leaves(spines=spines))).splitlines()
    assert lines[:3] == ["Nodes 16", "Tiers 2", "Podsize 16"]
    assert lines[3:8] == [
        *("Tier 0", "Downlink_speed_Gbps 400", "Radix_Up 2", "Radix_Down 4", "Oversubscribed 2"),
    ]
    assert "Radix_Down 4" in lines[lines.index("Tier 1") :]


@pytest.mark.parametrize("spines", [3, 4])
def test_uplinks_of_another_width_are_refused(spines: int) -> None:
    with pytest.raises(HespasError, match=f"4 devices has {spines} uplinks"):
        switch_of(leaves(spines=spines))


def test_jobs_on_leaves_are_played(tmp_path: Path) -> None:
    work = job(16, collective(0, ALL_REDUCE, MIB))
    assert played_us(work, leaves(spines=2), tmp_path) > 0
    assert "Radix_Up 2" in (tmp_path / "files" / "one_switch.topo").read_text()
