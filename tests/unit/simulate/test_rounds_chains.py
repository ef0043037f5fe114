from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hespas.hardware.presets import load_system
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.rounds import expanded, joined_graph
from hespas.split.flatten import split_scheduled
from hespas.tasks.build import RegionTime, build_task_graph
from hespas.tasks.graph import ComputeTask, TaskGraph
from scheduled import done, kernel, scheduled, start, sync

SYSTEM = load_system("H100_80GB_4GPU")


def graph_of(*lines: str) -> TaskGraph:
    regions = split_scheduled(scheduled(*lines))
    collectives = {region.id for region in regions.collective_regions}
    times = [
        None
        if region.id in collectives
        else RegionTime(duration_ps=1_000_001 * (region.id + 1), label="mhlo.fusion")
        for region in regions.regions
    ]
    return build_task_graph(regions, times, name="step")


def test_a_row_is_cut_where_a_collective_starts_and_where_one_ends() -> None:
    graph = graph_of(
        kernel("k0", "a"),
        kernel("k1", "a"),
        start("r", "k1"),
        kernel("k2", "a"),
        kernel("k3", "a"),
        done("d", "r"),
        kernel("k4", "d"),
    )
    rows = [[task.name for task in row] for row in joined_graph(graph).members.values()]
    assert rows == [["k0", "k1"], ["k2", "k3"], ["k4"]]


@st.composite
def schedules(draw: st.DrawFn) -> list[str]:
    """Return kernels, with collectives that start and end anywhere between them."""
    lines = [kernel("k", "a")]
    under_way: list[str] = []
    for at, step in enumerate(draw(st.lists(st.sampled_from("kkksdb"), max_size=25))):
        match step:
            case "s":
                lines.append(start(f"begin{at}", "k"))
                under_way.append(f"begin{at}")
            case "d" if under_way:
                lines.append(done(f"done{at}", under_way.pop()))
            case "b":
                lines.append(sync(f"both{at}", "k"))
            case _:
                lines.append(kernel(f"k{at}", "k"))
    lines.extend(done(f"end_{name}", name) for name in under_way)
    return [*lines, kernel("last", "k")]


@given(schedules())
def test_rows_change_no_moment_of_any_task(lines: list[str]) -> None:
    graph = graph_of(*lines)
    rows = joined_graph(graph)
    assert expanded(simulate(rows.graph, SYSTEM), rows) == simulate(graph, SYSTEM)
    joined = [task for task in rows.graph.tasks if isinstance(task, ComputeTask)]
    assert sum(task.duration_ps for task in joined) == sum(
        task.duration_ps for task in graph.tasks if isinstance(task, ComputeTask)
    )
