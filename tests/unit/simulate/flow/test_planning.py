"""Collectives on tori and meshes: 1 GB/s a link, no latency, so 1 MB takes 1 ms over one link."""

from __future__ import annotations

from math import prod

import pytest

from flow_jobs import MB, MS, collective, graph
from hespas.hardware.interconnect import Dimension, Dimensions, Interconnect, Shape
from hespas.hardware.links import LinkParameters
from hespas.program.collectives import CollectiveKind
from hespas.simulate.flow.simulate import simulate_flow

LINK = LinkParameters(bandwidth_bytes_per_s=1e9, latency_s=0.0)
RING, LINE = Shape.RING, Shape.LINE


def network(*sides: tuple[Shape, int], between: int = 1) -> Interconnect:
    dimensions = [Dimension(shape=shape, size=size, parameters=LINK) for shape, size in sides]
    if between > 1:
        dimensions.append(Dimension(shape=Shape.SWITCH, size=between, parameters=LINK))
    return Interconnect(name="torus", fabric=Dimensions(dimensions=tuple(dimensions)))


def time_ms(
    kind: str,
    where: Interconnect,
    algorithm: str,
    size_bytes: int = 256 * MB,
    groups: tuple[tuple[int, ...], ...] | None = None,
) -> float:
    table = None if groups is None else 0
    task = collective(1, kind=CollectiveKind[kind], size_bytes=size_bytes, table=table)
    tables = () if groups is None else (groups,)
    job = graph(task, devices=where.device_count, tables=tables)
    return simulate_flow(job, where, algorithm=algorithm).finish_ps / MS


@pytest.mark.parametrize(
    "sides",
    [(4, 4), (8, 8), (16, 16), (4, 4, 4)],
)
def test_an_all_reduce_over_a_torus_of_equal_axes_reaches_the_bound(sides: tuple[int, ...]) -> None:
    """Every device sends 2 (n - 1) / n of the data over two links on each axis."""
    torus = network(*[(RING, side) for side in sides])
    count, links = prod(sides), 2 * len(sides)
    bound_ms = 2 * (count - 1) / count * 256 / links
    assert time_ms("ALL_REDUCE", torus, "multi-axis-rings") == pytest.approx(bound_ms, rel=1e-3)
    one_loop_ms = 2 * (count - 1) / count * 256 / 2
    assert time_ms("ALL_REDUCE", torus, "hamiltonian-ring") == pytest.approx(one_loop_ms, rel=1e-3)
    one_axis_ms = time_ms("ALL_REDUCE", torus, "hierarchical")
    assert one_axis_ms == pytest.approx(bound_ms * len(sides), rel=1e-3)


@pytest.mark.parametrize("sides", [(4, 8), (8, 16), (2, 4, 4), (4, 8, 8)])
def test_unequal_axes_come_between_the_bound_and_one_axis(sides: tuple[int, ...]) -> None:
    torus = network(*[(RING, side) for side in sides])
    count, links = prod(sides), sum(2 if side > 2 else 1 for side in sides)
    bound_ms = 2 * (count - 1) / count * 256 / links
    found_ms = time_ms("ALL_REDUCE", torus, "multi-axis-rings")
    assert bound_ms * 0.999 <= found_ms <= time_ms("ALL_REDUCE", torus, "hierarchical")


@pytest.mark.parametrize("sides", [(2, 2), (2, 4), (4, 4), (2, 2, 4)])
def test_a_loop_through_a_mesh_reaches_the_bound_of_its_corners(sides: tuple[int, ...]) -> None:
    """A corner has one link on each axis; a loop takes two of them."""
    mesh = network(*[(LINE, side) for side in sides])
    count = prod(sides)
    gathered_ms = (count - 1) * (256 / count) / 2
    assert time_ms("ALL_GATHER", mesh, "hamiltonian-ring", 256 * MB // count) == pytest.approx(
        gathered_ms, rel=1e-3
    )
    assert time_ms("REDUCE_SCATTER", mesh, "hamiltonian-ring") == pytest.approx(
        gathered_ms, rel=1e-3
    )
    assert time_ms("ALL_REDUCE", mesh, "hamiltonian-ring") == pytest.approx(
        2 * gathered_ms, rel=1e-3
    )


def test_a_line_takes_twice_as_long_as_a_ring() -> None:
    ring_ms = time_ms("ALL_GATHER", network((RING, 8)), "hamiltonian-ring", 32 * MB)
    line_ms = time_ms("ALL_GATHER", network((LINE, 8)), "hamiltonian-ring", 32 * MB)
    assert ring_ms == pytest.approx(7 * 32 / 2)
    assert line_ms == pytest.approx(2 * ring_ms)
    natural_ms = time_ms("ALL_GATHER", network((LINE, 8)), "ring", 32 * MB)
    assert natural_ms == pytest.approx(line_ms)


def test_part_of_a_ring_is_a_line() -> None:
    """Four neighbours on a ring of 8, twice: what closes their loop goes back the same links."""
    halves = (tuple(range(4)), tuple(range(4, 8)))
    part_ms = time_ms("ALL_GATHER", network((RING, 8)), "hamiltonian-ring", 32 * MB, halves)
    line_ms = time_ms("ALL_GATHER", network((LINE, 4)), "hamiltonian-ring", 32 * MB)
    assert part_ms == pytest.approx(line_ms)


@pytest.mark.parametrize("kind", ["ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER"])
@pytest.mark.parametrize("algorithm", ["multi-axis-rings", "hamiltonian-ring"])
def test_between_slices_only_a_shard_of_the_data_goes(kind: str, algorithm: str) -> None:
    """Inside first, then each device with those in its place in the other slices."""
    sizes = {"ALL_REDUCE": 256 * MB, "ALL_GATHER": 4 * MB, "REDUCE_SCATTER": 256 * MB}
    alone = network((RING, 4), (RING, 4))
    # All of a slice's data passes through the loops of the slice once; a gather's grows by 4.
    inside = sizes[kind] * (4 if kind == "ALL_GATHER" else 1)
    inside_ms = time_ms(kind, alone, algorithm, inside)
    both_ms = time_ms(kind, network((RING, 4), (RING, 4), between=4), algorithm, sizes[kind])
    between_ms = {"ALL_REDUCE": 2 * 3 / 4 * 16, "ALL_GATHER": 3 * 4, "REDUCE_SCATTER": 3 / 4 * 16}
    assert both_ms == pytest.approx(inside_ms + between_ms[kind], rel=1e-3)


def test_groups_that_are_no_box_take_what_is_fastest() -> None:
    corner = ((0, 1, 4, 6), (2, 3, 5, 7), (8, 9, 12, 14), (10, 11, 13, 15))
    torus = network((RING, 4), (RING, 4))
    asked_ms = time_ms("ALL_REDUCE", torus, "multi-axis-rings", groups=corner)
    assert asked_ms == time_ms("ALL_REDUCE", torus, "auto", groups=corner)
