"""Both formats, read back by their documented rules: see `charts`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from charts import ReadChart, read_chart
from hespas.report.timeline.write import Chart, Counter, Process, Slice, Track, write_chart

FILES = ("t.json", "t.trace", "t.json.gz", "t.pftrace", "t.pftrace.gz", "t.perfetto-trace")


def chart(*, notes: tuple[str, ...] = ()) -> Chart:
    arguments = {"flops": 12.5, "bytes": 1 << 40, "is_late": True, "scope": 'a "name"', "low": -3}
    inner = [
        Slice(name="outer", start_ps=0, end_ps=5_001_499, category="compute", starts=(1, 2)),
        Slice(name="first", start_ps=0, end_ps=1_000_600, category="op", arguments=arguments),
        Slice(name="second", start_ps=1_000_600, end_ps=1_000_700, category="op", starts=(3,)),
        Slice(name="third", start_ps=1_000_700, end_ps=5_001_499, category="op"),
        Slice(name="next", start_ps=5_001_499, end_ps=1_233_001_000, category="compute"),
    ]
    wire = [
        Slice(name="all_reduce", start_ps=2_000_000, end_ps=3_000_000, category="c", ends=(1, 3)),
        Slice(name="empty", start_ps=3_000_000, end_ps=3_000_000, category="c", ends=(2,)),
    ]
    late = Process(name="late", tracks=(Track(name="compute", slices=(inner[-1],)),))
    both = Process(
        name="devices 0-1",
        tracks=(
            Track(name="compute", slices=tuple(inner)),
            Track(name="communication", slices=tuple(wire)),
        ),
        counters=(Counter(name="memory", points=((0, 5), (5_001_499, 1 << 41))),),
    )
    return Chart(processes=(both, late), notes=notes)


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


@pytest.fixture
def found(file: Path) -> ReadChart:
    write_chart(chart(), file)
    return read_chart(file)


def test_the_name_of_the_file_decides_the_format(file: Path) -> None:
    write_chart(chart(), file)

    content = file.read_bytes()
    is_compressed = content.startswith(b"\x1f\x8b")
    assert is_compressed == (file.suffix == ".gz")
    is_json = (gzip.decompress(content) if is_compressed else content).startswith(b"{")
    assert is_json == ("pf" not in file.name and "perfetto" not in file.name)


def test_every_slice_is_there_in_whole_nanoseconds_and_at_its_depth(found: ReadChart) -> None:
    compute = found.tracks["devices 0-1", "compute"]
    assert [(each.name, each.start_ns, each.end_ns, each.depth) for each in compute] == [
        ("outer", 0, 5001, 0),
        ("first", 0, 1001, 1),
        ("second", 1001, 1001, 1),
        ("third", 1001, 5001, 1),
        ("next", 5001, 1_233_001, 0),
    ]
    assert [each.category for each in compute] == ["compute", "op", "op", "op", "compute"]
    wire = found.tracks["devices 0-1", "communication"]
    assert [(each.name, each.start_ns, each.end_ns) for each in wire] == [
        ("all_reduce", 2000, 3000),
        ("empty", 3000, 3000),
    ]
    assert list(found.tracks) == [
        ("devices 0-1", "compute"), ("devices 0-1", "communication"), ("late", "compute")
    ]  # fmt: skip


def test_arguments_keep_their_types(found: ReadChart) -> None:
    first = found.tracks["devices 0-1", "compute"][1]
    assert first.arguments == {
        "flops": 12.5, "bytes": 1 << 40, "is_late": True, "scope": 'a "name"', "low": -3
    }  # fmt: skip


def test_every_flow_has_both_ends(found: ReadChart) -> None:
    names = sorted((source.name, target.name) for source, target in found.flows)
    assert names == [("outer", "all_reduce"), ("outer", "empty"), ("second", "all_reduce")]


def test_counters_hold_bytes(found: ReadChart) -> None:
    ((name, points),) = found.counters.items()
    assert name[0] == "devices 0-1"
    assert name[1] in {"memory", "memory (bytes)"}
    assert points == [(0, 5), (5001, 1 << 41)]


def test_equal_charts_give_equal_bytes(file: Path) -> None:
    other = file.with_name(f"other-{file.name}")
    write_chart(chart(), file)
    write_chart(chart(), other)

    assert file.read_bytes() == other.read_bytes()


def test_notes_are_a_process_of_their_own(file: Path) -> None:
    write_chart(chart(notes=("9 slices are joined",)), file)

    (note,) = read_chart(file).tracks["about this timeline", "note 1"]
    assert (note.name, note.start_ns, note.end_ns) == ("9 slices are joined", 0, 1_233_001)


def test_json_says_its_notes(tmp_path: Path) -> None:
    write_chart(chart(notes=("9 slices are joined",)), tmp_path / "t.json")

    told = json.loads((tmp_path / "t.json").read_text())
    assert told["otherData"] == {"note 1": "9 slices are joined"}
    assert told["displayTimeUnit"] == "ns"


@pytest.mark.parametrize("file_name", ["t.json", "t.pftrace"])
def test_times_are_read_as_the_nanosecond_that_was_meant(file_name: str, tmp_path: Path) -> None:
    # Perfetto cuts what 1000 times the microseconds of JSON give.
    times = [1_001, 4_233, 16_389_001, 1_234_567_891_007]
    slices = tuple([Slice(name="s", start_ps=at * 1000, end_ps=at * 1000 + 1001, category="c")
                    for at in times])  # fmt: skip
    one = Process(name="p", tracks=(Track(name="t", slices=slices),))
    write_chart(Chart(processes=(one,)), tmp_path / file_name)

    found = read_chart(tmp_path / file_name).slices
    assert [each.start_ns for each in found] == times
    assert all(each.end_ns - each.start_ns == 1 for each in found)
