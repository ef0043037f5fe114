"""All-reduces by kernels of the compiler's own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flow_jobs import collective, graph
from hespas.hardware.links import load_link
from hespas.hardware.sized import find_system
from hespas.program.collectives import CollectiveKind
from hespas.simulate.flow.simulate import simulate_flow
from hespas.tasks.graph import CollectiveTask

KIB = 1 << 10


def _task(size_bytes: int, kernel: str) -> CollectiveTask:
    task = collective(1, kind=CollectiveKind.ALL_REDUCE, size_bytes=size_bytes)
    return replace(task, kernel=kernel)


def _finish_s(size_bytes: int, kernel: str, cluster: str, devices: int, algorithm: str) -> float:
    network = find_system(cluster).interconnect
    assert network is not None
    job = graph(_task(size_bytes, kernel), devices=devices)
    return simulate_flow(job, network, algorithm=algorithm).finish_ps * 1e-12


def _by(
    size: int, kernel: str, cluster: str = "8xH100_80GB", algorithm: str = "specified"
) -> float:
    return _finish_s(size, kernel, cluster, int(cluster.partition("x")[0]), algorithm)


@pytest.mark.parametrize(
    ("kernel", "size"),
    [("one_shot", 8 * KIB), ("one_shot", 256 * KIB), ("two_shot", 4096 * KIB)],
)
def test_a_kernel_takes_what_such_kernels_were_measured_to_take(kernel: str, size: int) -> None:
    fit = load_link("NVLink4_H100").measured(f"all_reduce_{kernel}", 8, size)
    assert fit is not None
    assert _by(size, kernel) == pytest.approx(fit.time_s(size), rel=1e-6)
    assert _by(size, kernel) < _by(size, "")


@pytest.mark.parametrize("cluster", ["16xH100_80GB", "8xA100_SXM_80GB", "6xH100_80GB"])
def test_a_library_does_it_among_nodes_and_where_no_kernel_was_measured(cluster: str) -> None:
    assert _by(8 * KIB, "one_shot", cluster) == _by(8 * KIB, "", cluster)


def test_an_algorithm_for_all_collectives_goes_before() -> None:
    assert _by(8 * KIB, "one_shot", algorithm="ring") == _by(8 * KIB, "", algorithm="ring")


@pytest.mark.parametrize(
    "name",
    [
        "NVLink4_H100",
        "NVLink4_H200",
        "NVLink5_B200",
        "NVLink5_B300",
        "NVL72_GB200",
        "NVL72_GB300",
    ],
)
def test_kernels_are_faster_than_the_library_where_compilers_use_them(name: str) -> None:
    link = load_link(name)
    for kind, sizes in (
        ("all_reduce_one_shot", [KIB << at for at in range(9)]),
        ("all_reduce_two_shot", [512 * KIB << at for at in range(4)]),
    ):
        for members in link.collectives[kind]:
            for size in sizes:
                own, library = (link.measured(each, members, size) for each in (kind, "all_reduce"))
                assert own is not None
                assert library is not None
                assert own.time_s(size) < library.time_s(size), (kind, members, size)
