"""Algorithms in XML and in Chakra files, in the place of a system's own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from hespas.collectives.algorithms import ALGORITHMS
from hespas.collectives.chakra_graphs import write_graphs
from hespas.collectives.msccl_xml import program_xml
from hespas.collectives.program import common_program
from hespas.errors import AlgorithmError
from hespas.hardware.system import System
from hespas.program.collectives import CollectiveKind
from hespas.simulate.astra.simulate import simulate
from hespas.tasks.graph import CollectiveTask, GroupTable, TaskGraph

MakeSystem = Callable[..., System]
SIZE = 8000
KIND_OF = {
    CollectiveKind.ALL_REDUCE: CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER: CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER: CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL: CollectiveKind.ALL_TO_ALL,
}
OPTION_OF = {
    CollectiveKind.ALL_REDUCE: "all-reduce-implementation-custom",
    CollectiveKind.ALL_GATHER: "all-gather-implementation-custom",
    CollectiveKind.REDUCE_SCATTER: "reduce-scatter-implementation-custom",
    CollectiveKind.ALL_TO_ALL: "all-to-all-implementation-custom",
}
NATIVE = {"ring": "ring", "direct": "direct", "halving-doubling": "halvingDoubling"}

CASES = [
    (name, collective)
    for name in NATIVE
    for collective in ALGORITHMS[name].rounds
    if collective in KIND_OF
]


def job(kind: CollectiveKind, devices: int, groups: GroupTable | None = None) -> TaskGraph:
    task = CollectiveTask(
        id=1,
        name="c",
        depends_on=(),
        kind=kind,
        size_bytes=SIZE,
        group_table=None if groups is None else 0,
    )
    return TaskGraph(
        name="g",
        device_count=devices,
        tasks=(task,),
        group_tables=() if groups is None else (groups,),
    )


def local_ns(name: str, collective: CollectiveKind, ranks: int) -> int:
    """Return the longest chain of additions and copies, of 1 ns each."""
    if collective not in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER):
        return 0
    return (ranks - 1).bit_length() if name == "halving-doubling" else ranks - 1


@pytest.mark.parametrize(("name", "collective"), CASES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("form", ["xml", "et"])
def test_an_algorithm_takes_as_long_as_the_native_one(
    *,
    name: str,
    collective: CollectiveKind,
    ranks: int,
    form: str,
    tmp_path: Path,
    make_system: MakeSystem,
) -> None:
    program = common_program(name, collective, ranks)
    if form == "xml":
        given = tmp_path / "a.xml"
        given.write_text(program_xml(program))
    else:
        given = tmp_path / "a"
        write_graphs(program, given, size_bytes=SIZE)
    shape = ("FullyConnected", ranks)
    graph = job(KIND_OF[collective], ranks)
    custom = make_system(shape, options={OPTION_OF[collective]: [str(given)]})

    # The native one waits 1 ns at an endpoint before each message and after the last, the
    # written out one 1 ns for each addition; a message takes 100 ns and 1 ns a byte in both.
    native_ns = simulate(graph, make_system(shape, algorithms=(NATIVE[name],))).finish_ps // 1000
    waits_ns = {
        "ring": 1 + sum(one.count for one in ALGORITHMS["ring"].schedule(collective, ranks).rounds),
        "direct": 3 if collective is CollectiveKind.ALL_REDUCE else 2,
        "halving-doubling": (ranks - 1).bit_length()
        * (2 if collective is CollectiveKind.ALL_REDUCE else 1)
        + 1,
    }[name]
    found_ns = simulate(graph, custom).finish_ps // 1000

    assert found_ns - local_ns(name, collective, ranks) == native_ns - waits_ns


def test_the_trees_take_two_ways_through_half_the_buffer(
    tmp_path: Path, make_system: MakeSystem
) -> None:
    path = tmp_path / "a.xml"
    path.write_text(program_xml(common_program("double-binary-tree", CollectiveKind.ALL_REDUCE, 8)))
    system = make_system(
        ("FullyConnected", 8), options={"all-reduce-implementation-custom": [str(path)]}
    )

    finish_ps = simulate(job(CollectiveKind.ALL_REDUCE, 8), system).finish_ps

    # Three levels up and down of 4000 bytes; nodes with two children add twice, the root once.
    assert finish_ps == (6 * (100 + 4000) + 2 + 2 + 1) * 1000


def test_a_group_uses_the_algorithm_in_the_order_of_its_list(
    tmp_path: Path, make_system: MakeSystem
) -> None:
    path = tmp_path / "a.xml"
    path.write_text(program_xml(common_program("ring", CollectiveKind.ALL_REDUCE, 2)))
    system = make_system(("Switch", 4), options={"all-reduce-implementation-custom": [str(path)]})

    timeline = simulate(job(CollectiveKind.ALL_REDUCE, 4, ((3, 0), (1, 2))), system)

    assert timeline.finish_ps == (2 * (200 + 4000) + 1) * 1000


@pytest.mark.parametrize(
    ("name", "collective", "ranks", "message"),
    [
        ("ring", CollectiveKind.ALL_GATHER, 4, "does allgather, not allreduce"),
        ("ring", CollectiveKind.ALL_REDUCE, 8, "for 8 ranks, the collective has 4"),
    ],
)
def test_an_algorithm_for_something_else_is_refused(
    *,
    name: str,
    collective: CollectiveKind,
    ranks: int,
    message: str,
    tmp_path: Path,
    make_system: MakeSystem,
) -> None:
    path = tmp_path / "a.xml"
    path.write_text(program_xml(common_program(name, collective, ranks)))
    system = make_system(("Switch", 4), options={"all-reduce-implementation-custom": [str(path)]})

    with pytest.raises(AlgorithmError, match=message):
        simulate(job(CollectiveKind.ALL_REDUCE, 4), system)


def test_an_algorithm_that_is_wrong_is_not_timed(tmp_path: Path, make_system: MakeSystem) -> None:
    path = tmp_path / "a.xml"
    text = program_xml(common_program("ring", CollectiveKind.ALL_REDUCE, 4))
    path.write_text(text.replace('type="rrc"', 'type="r"', 1))
    system = make_system(("Switch", 4), options={"all-reduce-implementation-custom": [str(path)]})

    with pytest.raises(AlgorithmError, match=r"a\.xml: .*lacks the contribution of rank"):
        simulate(job(CollectiveKind.ALL_REDUCE, 4), system)


def test_graphs_that_compute_something_else_run_with_a_warning(
    tmp_path: Path, make_system: MakeSystem, caplog: pytest.LogCaptureFixture
) -> None:
    write_graphs(
        common_program("ring", CollectiveKind.ALL_GATHER, 4), tmp_path / "a", size_bytes=SIZE // 4
    )
    system = make_system(
        ("Switch", 4), options={"all-reduce-implementation-custom": [str(tmp_path / "a")]}
    )

    with caplog.at_level(logging.WARNING, logger="hespas"):
        timeline = simulate(job(CollectiveKind.ALL_REDUCE, 4), system)

    assert timeline.finish_ps == 3 * (200 + 2000) * 1000
    assert "is no all-reduce, and runs as it is" in caplog.text
    assert len(caplog.records) == 1
