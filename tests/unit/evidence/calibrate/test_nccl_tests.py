from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import MeasurementError
from hespas.evidence.calibrate.nccl_tests import CollectiveRun, collectives_json, read_run

SIZES = [2**power for power in range(10, 30, 2)]


def line(
    size: int,
    time_us: float,
    *,
    reported_gb_per_s: float | None = None,
    share: float = 1.75,
    wrong: str = "0",
) -> str:
    shown = size / time_us / 1e3 if reported_gb_per_s is None else reported_gb_per_s
    bus = share * shown
    rest = f"{shown:.2f} {bus:.2f} {wrong} {time_us:.2f} {shown:.2f} {bus:.2f} 0"
    return f" {size} {size // 4} float sum -1 {time_us:.2f} {rest}"


def output(*lines: str, ranks: int = 8, unit: str = "us", header: str = "") -> str:
    listed = [f"#  Rank {at:2d} Group  0 Pid 77 on node device {at}" for at in range(ranks)]
    head = ["# nThread 1 nGpus 8", header, "# Using devices", *listed]
    columns = f"#        (B)    (elements)           ({unit})  (GB/s)  (GB/s)"
    return "\n".join([*head, "#  size count type redop root time algbw busbw", columns, *lines])


def read(
    tmp_path: Path, text: str, *, name: str = "all_reduce.log", fastest: float | None = None
) -> CollectiveRun:
    file = tmp_path / name
    file.write_text(text)
    return read_run(file, fastest_bytes_per_s=fastest)


def test_latency_and_bandwidth_come_back(tmp_path: Path) -> None:
    run = read(tmp_path, output(*(line(size, 20 + size / 250e3) for size in SIZES)))
    assert (run.kind, run.gpus, len(run.points)) == ("all_reduce", 8, len(SIZES))
    assert run.pieces[-1].latency_s == pytest.approx(20e-6, rel=0.02)
    assert run.pieces[-1].bandwidth_bytes_per_s == pytest.approx(250e9, rel=0.02)
    assert max(abs(error) for error in run.errors) < 0.01
    (fit,) = collectives_json([run])["all_reduce"]["8"]
    assert fit["up_to_bytes"] is None


@pytest.mark.parametrize(
    ("name", "header", "kind"),
    [
        ("run.log", "# Collective test starting: all_gather_perf", "all_gather"),
        ("reduce_scatter_8.txt", "", "reduce_scatter"),
        ("alltoall.log", "", "all_to_all"),
        ("sendrecv.log", "", "send_recv"),
    ],
)
def test_the_kind_is_read_from_the_header_or_the_name(
    tmp_path: Path, name: str, header: str, kind: str
) -> None:
    share = 1.0 if kind == "send_recv" else 0.875
    lines = [line(2**20, 20, share=share), line(2**22, 40, share=share)]
    assert read(tmp_path, output(*lines, header=header), name=name).kind == kind


def test_a_kind_that_is_given_must_be_that_of_the_output(tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    file.write_text(output(line(2**20, 20), line(2**22, 40)))
    with pytest.raises(
        MeasurementError, match=r"busbw 91\.75 is not the 0\.875 times .* all_gather"
    ):
        read_run(file, "all_gather", fastest_bytes_per_s=None)
    lines = [line(2**20, 20, share=0.875), line(2**22, 40, share=0.875)]
    file.write_text(output(*lines, header="# Collective test starting: all_gather_perf"))
    message = "it is output of all_gather_perf, not of reduce_scatter; give nccl all_gather=FILE"
    with pytest.raises(MeasurementError, match=message):
        read_run(file, "reduce_scatter", fastest_bytes_per_s=None)
    assert read_run(file, "all_gather", fastest_bytes_per_s=None).kind == "all_gather"


def test_few_sizes_make_few_pieces_and_tell_their_error(tmp_path: Path) -> None:
    times = {2**10: 12.1, 2**16: 16.0, 2**20: 30.0, 2**24: 120.0, 2**28: 1150.0, 2**30: 4400.0}
    run = read(tmp_path, output(*(line(size, time) for size, time in times.items())))
    assert len(run.pieces) <= 2
    assert max(abs(error) for error in run.errors) > 0.01
    left_out = [abs(error) for error in run.left_out_errors if error is not None]
    assert len(left_out) == 6
    assert max(left_out) > max(abs(error) for error in run.errors)


def test_two_sizes_tell_no_error(tmp_path: Path) -> None:
    run = read(tmp_path, output(line(2**20, 20), line(2**22, 40)))
    assert run.left_out_errors == (None, None)


def test_sizes_that_disagree_are_named(tmp_path: Path) -> None:
    run = read(tmp_path, output(line(2**20, 20), line(2**22, 40), line(2**22, 55)))
    (note,) = run.notes
    assert "log:15: all_reduce of 4194304 bytes takes 40 us here, but 55 us in " in note


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            output(line(2**20, 0.04, reported_gb_per_s=26.21), line(2**22, 0.1)),
            r"log:14: 1048576 bytes in 40 ns are 2\.621e\+04 GB/s, but algbw says 26\.21; give",
        ),
        (
            output(line(64, 0.2), line(128, 20)),
            r"log:14: all_reduce of 64 bytes in 200 ns is below the physical floor of 1 us",
        ),
        (
            output(line(2**30, 1000), line(2**20, 20)),
            r"log:14: .* in 1 ms is below the 2\.088 ms that the link's bandwidth allows",
        ),
        (
            output(line(2048, 20), line(4096, 21), line(2048, 60)),
            r"log:14: all_reduce of 2048 bytes takes 20 us here, but 60 us in .*log:16",
        ),
        (output(line(2048, 20), line(4096, 21), unit="ms"), "doesn't say that times are in us"),
        (output(line(2048, 20), line(4096, 21), ranks=1), "doesn't list two ranks"),
        (output(line(2048, 20)), "fewer than two sizes"),
        (
            output(line(2**20, 20), line(2**22, 40, wrong="3"), line(2**24, 99, wrong="1")),
            r"log:15: results are wrong \(#wrong is not 0\) in lines 15, 16; repair the cluster",
        ),
        (
            output(line(1024, 12), line(2**22, 40), ranks=7),
            r"log:14: busbw 183\.5 is not the 1\.714 times algbw 104\.86 of all_reduce among the 7",
        ),
        (
            output(line(2**22, 40, share=0.875), line(2**24, 99, share=0.875)),
            r"log:14: busbw 91\.75 is not the 1\.75 times algbw 104\.86 of all_reduce among the 8",
        ),
        (
            output(line(2**20, 20), header="# all_reduce_perf and # all_gather_perf"),
            "it is output of several tests: all_reduce, all_gather; give a file for each",
        ),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        read(tmp_path, text, fastest=450e9)


def test_a_file_that_says_no_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="nccl all_reduce=FILE"):
        read(tmp_path, output(line(2048, 20), line(4096, 21)), name="run.log")


def test_two_runs_of_one_kind_and_group_are_refused(tmp_path: Path) -> None:
    run = read(tmp_path, output(line(2048, 20), line(4096, 21)))
    with pytest.raises(MeasurementError, match="all_reduce among 8 is measured in two files"):
        collectives_json([run, run])
