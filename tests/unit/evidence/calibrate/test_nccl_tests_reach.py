from __future__ import annotations

import pytest

from hespas.errors import MeasurementError
from hespas.evidence.calibrate.nccl_tests import CollectiveRun, check_messages, with_coverage
from hespas.evidence.calibrate.piecewise import Point, fit
from hespas.hardware.links import Link, load_link
from hespas.hardware.presets import load_system
from hespas.hardware.system import interconnect_of

H100 = load_link("NVLink4_H100")


def run(kind: str, gpus: int) -> CollectiveRun:
    points = [
        Point(size_bytes=size, time_s=1e-5 + size / 1e11, location="nccl.txt:9")
        for size in (1024, 2**20, 2**30)
    ]
    return CollectiveRun(
        kind=kind, gpus=gpus, points=tuple(points), pieces=fit(points, sizes_a_piece=3)
    )


def notes(system: str, *runs: CollectiveRun, base: Link | None = H100) -> list[tuple[str, ...]]:
    return [each.notes for each in with_coverage(runs, interconnect_of(load_system(system)), base)]


def test_the_whole_first_dimension_needs_no_note() -> None:
    assert notes("H100_80GB_8GPU", run("all_reduce", 8)) == [()]
    assert notes("H100_80GB_8GPU", run("all_gather", 4), run("all_gather", 8)) == [(), ()]


@pytest.mark.parametrize(
    ("base", "shown"),
    [
        ("NVLink4_H100", "all 8 devices of the first dimension stay as in NVLink4_H100"),
        ("InfiniBand_NDR_400G", "all 8 devices of the first dimension are scaled from it"),
        (None, "all 8 devices of the first dimension are scaled from it"),
    ],
)
def test_fewer_ranks_are_for_groups_of_so_many(base: str | None, shown: str) -> None:
    link = None if base is None else load_link(base)
    ((note,),) = notes("H100_80GB_8GPU", run("all_reduce", 4), base=link)
    assert note == f"it is for groups of 4; those of {shown}"


def test_what_is_nearer_than_the_measurement_is_named() -> None:
    link = Link(name="near", source="s", collectives={"all_reduce": {4: ()}})
    ((note,),) = notes("H100_80GB_8GPU", run("all_reduce", 2), base=link)
    assert note.endswith("are scaled from those of 4 in near")


def test_an_all_reduce_beyond_the_first_dimension_takes_other_measurements() -> None:
    ((note,),) = notes("H100_80GB_8GPU_4", run("all_reduce", 8))
    assert "it is for groups within the first dimension of H100_80GB_8GPU_4" in note
    parts = [run(kind, 8) for kind in ("all_reduce", "reduce_scatter", "all_gather")]
    assert notes("H100_80GB_8GPU_4", *parts) == [(), (), ()]


def test_more_ranks_than_the_first_dimension_has_are_refused() -> None:
    message = (
        r"nccl\.txt:9: all_reduce among 32 is of no group: 8 devices stand along the first "
        r"dimension of H100_80GB_8GPU_4.*; measure 8 ranks or fewer, or give a system"
    )
    with pytest.raises(MeasurementError, match=message):
        notes("H100_80GB_8GPU_4", run("all_reduce", 8), run("all_reduce", 32))


def test_messages_are_between_two() -> None:
    check_messages([run("send_recv", 2), run("all_reduce", 8)])
    with pytest.raises(MeasurementError, match="send_recv among 8 is of no group"):
        check_messages([run("send_recv", 8)])
    assert notes("H100_80GB_8GPU", run("send_recv", 2)) == [()]
