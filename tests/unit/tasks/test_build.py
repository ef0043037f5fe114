from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from hespas.errors import UnsupportedError
from hespas.hardware.presets import load_system
from hespas.program.collectives import CollectiveKind
from hespas.program.program import Program
from hespas.simulate.astra.simulate import simulate
from hespas.split.flatten import split_scheduled
from hespas.split.options import SplitOptions, SplitStrategy
from hespas.split.regions import Compute
from hespas.split.strategies import split_program
from hespas.tasks.build import RegionTime, build_task_graph
from hespas.tasks.graph import CollectiveTask, ComputeTask, ReceiveTask, SendTask, Task, TaskGraph
from programs import ADD_BODY, VECTOR, all_reduce, main_function, on_devices, settled
from scheduled import done, kernel, scheduled, start, sync

F = "tensor<4x8xf32>"
SHARD_BYTES = 4 * 8 * 4
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
DENSE = "replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>"
KERNEL_PS = 1_000_000_000
GLOBAL = f"{CHANNEL}, {DENSE}, use_global_device_ids"


def built(
    body: str, *, result: str = "%r", kind: str = F, partitions: int = 4, replicas: int = 1
) -> TaskGraph:
    text = main_function(f"{body}\nreturn {result} : {kind}", arguments=f"%a: {F}", results=kind)
    graph = split_program(
        settled(on_devices(text, partitions, replicas)),
        SplitOptions(strategy=SplitStrategy.INDIVIDUAL),
    )
    times = [
        RegionTime(duration_ps=2_500_000, label="add") if isinstance(region, Compute) else None
        for region in graph.regions
    ]
    return build_task_graph(graph, times, name="step")


def permute(pairs: Sequence[tuple[int, int]], result: str = "%r", operand: str = "%a") -> str:
    rows = [list(pair) for pair in pairs]
    dense = f"dense<{rows}> : tensor<{len(rows)}x2xi64>"
    return (
        f'{result} = "stablehlo.collective_permute"({operand}) <{{{CHANNEL}, '
        f"source_target_pairs = {dense}}}> : ({F}) -> {F}"
    )


def only(graph: TaskGraph) -> Task:
    (task,) = graph.tasks
    return task


@pytest.mark.parametrize(
    ("body", "kind", "result", "size"),
    [
        (
            (
                f'%r = "stablehlo.all_gather"(%a) <{{all_gather_dim = 0 : i64, {GLOBAL}}}> : '
                f"({F}) -> tensor<16x8xf32>"
            ),
            CollectiveKind.ALL_GATHER,
            "tensor<16x8xf32>",
            SHARD_BYTES,
        ),
        (all_reduce("%r", "%a", kind=F), CollectiveKind.ALL_REDUCE, F, SHARD_BYTES),
        (
            (
                f'%r = "stablehlo.reduce_scatter"(%a) <{{scatter_dimension = 0 : i64, {GLOBAL}}}> '
                f"{ADD_BODY} : ({F}) -> tensor<1x8xf32>"
            ),
            CollectiveKind.REDUCE_SCATTER,
            "tensor<1x8xf32>",
            SHARD_BYTES,
        ),
        (
            (
                f'%r = "stablehlo.all_to_all"(%a) <{{{CHANNEL}, concat_dimension = 1 : i64, '
                f"{DENSE}, split_count = 4 : i64, split_dimension = 0 : i64}}> : "
                f"({F}) -> tensor<1x32xf32>"
            ),
            CollectiveKind.ALL_TO_ALL,
            "tensor<1x32xf32>",
            SHARD_BYTES,
        ),
        (
            f'%r = "stablehlo.collective_broadcast"(%a) <{{{CHANNEL}, {DENSE}}}> : ({F}) -> {F}',
            CollectiveKind.BROADCAST,
            F,
            SHARD_BYTES,
        ),
        (
            f'%r = "stablehlo.cross-replica-sum"(%a) <{{{DENSE}}}> : ({F}) -> {F}',
            CollectiveKind.ALL_REDUCE,
            F,
            SHARD_BYTES,
        ),
        (
            (
                f"%h = stablehlo.constant dense<1.0> : tensor<3xf32>\n"
                f'%r, %q = "stablehlo.all_reduce"(%a, %h) <{{{GLOBAL}}}> {ADD_BODY} : '
                f"({F}, tensor<3xf32>) -> ({F}, tensor<3xf32>)"
            ),
            CollectiveKind.ALL_REDUCE,
            F,
            SHARD_BYTES + 12,
        ),
        (
            (
                f"%h = stablehlo.constant dense<1.0> : {F}\n"
                f'%r, %q = "stablehlo.all_gather"(%a, %h) <{{all_gather_dim = 0 : i64, '
                f"{GLOBAL}}}> : ({F}, {F}) -> (tensor<16x8xf32>, tensor<16x8xf32>)"
            ),
            CollectiveKind.ALL_GATHER,
            "tensor<16x8xf32>",
            2 * SHARD_BYTES,
        ),
    ],
)
def test_sizes(body: str, kind: CollectiveKind, result: str, size: int) -> None:
    replicas = 4 if "cross-replica" in body else 1
    task = only(built(body, kind=result, partitions=4 // replicas, replicas=replicas))
    assert isinstance(task, CollectiveTask)
    assert (task.kind, task.size_bytes, task.group_table) == (kind, size, None)


def test_computation_and_what_it_waits_for() -> None:
    graph = built(
        f"%0 = stablehlo.abs %a : {F}\n{all_reduce('%1', '%0', kind=F)}\n"
        f"%2 = stablehlo.tanh %a : {F}\n%r = stablehlo.add %1, %2 : {F}"
    )
    assert (graph.name, graph.device_count, graph.group_tables) == ("step", 4, ())
    assert [(task.id, task.name, task.depends_on) for task in graph.tasks] == [
        (0, "region_0", ()),
        (1, "all_reduce_1", (0,)),
        (2, "region_2", ()),
        (3, "region_3", (1, 2)),
    ]
    first = graph.tasks[0]
    assert isinstance(first, ComputeTask)
    assert (first.duration_ps, first.label) == (2_500_000, "add")


def test_group_tables_are_kept_once() -> None:
    halves, strided = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    lines = [
        all_reduce("%0", "%a", kind=F, groups=halves, channel=1),
        all_reduce("%1", "%0", kind=F, groups=strided, channel=2),
        all_reduce("%2", "%1", kind=F, groups=halves, channel=3),
        all_reduce("%r", "%2", kind=F, channel=4),
    ]
    graph = built("\n".join(lines))
    tables = [task.group_table for task in graph.tasks if isinstance(task, CollectiveTask)]
    assert tables == [0, 1, 0, None]
    assert graph.group_tables == (halves, strided)


def test_devices_outside_a_group_are_in_no_group() -> None:
    graph = built(all_reduce("%r", "%a", kind=F, groups=((0, 1),)))
    assert graph.group_tables == (((0, 1),),)


def test_groups_of_one_move_nothing_and_pass_dependencies_on() -> None:
    alone = ((0,), (1,), (2,), (3,))
    graph = built(
        f"%0 = stablehlo.abs %a : {F}\n%x = stablehlo.sine %a : {F}\n"
        f"{all_reduce('%1', '%0', kind=F, groups=alone)}\n"
        f"{permute([(1, 1), (2, 2)], '%2', '%1')}\n%r = stablehlo.add %2, %x : {F}"
    )
    assert [(task.name, task.depends_on) for task in graph.tasks] == [
        ("region_0", ()),
        ("region_1", ()),
        ("region_4", (0, 1)),
    ]


def test_mixed_groups_keep_the_large_ones() -> None:
    text = all_reduce("%r", "%a", kind=F).replace(
        "dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>",
        "dense<[[0, 1, 2], [3, -1, -1]]> : tensor<2x3xi64>",
    )
    assert built(text).group_tables == (((0, 1, 2),),)


def test_nothing_to_move_makes_no_task() -> None:
    empty = "tensor<0x8xf32>"
    body = f"%e = stablehlo.constant dense<> : {empty}\n{all_reduce('%r', '%e', kind=empty)}"
    assert built(body, kind=empty).tasks == ()


def test_a_permutation_is_a_send_and_a_receive() -> None:
    graph = built(
        f"%0 = stablehlo.abs %a : {F}\n{permute([(0, 1), (1, 0), (2, 2)], '%1', '%0')}\n"
        f"%r = stablehlo.tanh %1 : {F}"
    )
    pairs = ((0, 1), (1, 0))
    assert graph.tasks[1:3] == (
        SendTask(
            id=1,
            name="collective_permute_1_send",
            depends_on=(0,),
            pairs=pairs,
            size_bytes=SHARD_BYTES,
            tag=1,
        ),
        ReceiveTask(
            id=2,
            name="collective_permute_1_receive",
            depends_on=(0,),
            pairs=pairs,
            size_bytes=SHARD_BYTES,
            tag=1,
        ),
    )
    assert graph.tasks[3].depends_on == (1, 2)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (
            (
                f'%r = "stablehlo.send"(%a, %t) <{{{CHANNEL}, is_host_transfer = false}}> : '
                f"({F}, !stablehlo.token) -> !stablehlo.token"
            ),
            "stablehlo.send",
        ),
        (
            (
                f'%r:2 = "stablehlo.recv"(%t) <{{{CHANNEL}, is_host_transfer = false}}> : '
                f"(!stablehlo.token) -> ({F}, !stablehlo.token)"
            ),
            "stablehlo.recv",
        ),
    ],
)
def test_communication_without_a_model_is_named(body: str, name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"test.mlir:4:\d+: {name}: .* has no model"):
        built(f"%t = stablehlo.create_token : !stablehlo.token\n{body}", result="%a")


def test_a_region_that_computes_needs_a_duration() -> None:
    program = settled(
        main_function(f"%r = stablehlo.abs %a : {VECTOR}\nreturn", arguments=f"%a: {VECTOR}")
    )
    graph = split_program(program, SplitOptions())
    with pytest.raises(ValueError, match="region 0 computes but has no duration"):
        build_task_graph(graph, [None], name="x")


def test_communication_keeps_the_order_of_the_program() -> None:
    # Nothing else makes the second wait for the first.
    first, second = (f'%{name} = "stablehlo.all_gather"(%a) <{{{GLOBAL}, ' for name in "xr")
    rest = f"all_gather_dim = 0 : i64}}> : ({F}) -> tensor<16x8xf32>"
    graph = built(f"{first}{rest}\n{second}{rest}", kind="tensor<16x8xf32>")
    assert [task.depends_on for task in graph.tasks] == [(), (0,)]
    shifted = built("\n".join([permute([(0, 1)], "%x"), permute([(1, 2)])]))
    assert [task.depends_on for task in shifted.tasks] == [(), (), (0, 1), (0, 1)]


def spans(program: Program) -> dict[str, tuple[int, int]]:
    """Return when each task of a scheduled program runs on a system of four devices."""
    graph = split_scheduled(program)
    times = [
        RegionTime(duration_ps=KERNEL_PS, label="mhlo.fusion")
        if isinstance(region, Compute)
        else None
        for region in graph.regions
    ]
    tasks = build_task_graph(graph, times, name="step")
    (one,) = simulate(tasks, load_system("H100_80GB_4GPU")).classes
    return {task.name: one.nodes[task.id] for task in tasks.tasks}


def test_a_collective_hides_behind_the_kernels_up_to_its_end() -> None:
    found = spans(
        scheduled(
            kernel("k0", "a"),
            start("r", "k0"),
            kernel("k1", "a"),
            done("d", "r"),
            kernel("k2", "d"),
        )
    )
    assert found["r"][0] == found["k1"][0] == KERNEL_PS
    assert found["r"][1] < 2 * KERNEL_PS
    assert found["k2"][0] == 2 * KERNEL_PS


def test_what_waits_for_a_collective_that_lasts_longer_starts_at_its_end() -> None:
    found = spans(scheduled(kernel("k0", "a"), start("r", "k0"), done("d", "r"), kernel("k1", "d")))
    assert found["r"][0] == KERNEL_PS
    assert found["k1"][0] == found["r"][1] > KERNEL_PS


def test_nothing_hides_a_synchronous_collective() -> None:
    found = spans(scheduled(kernel("k0", "a"), sync("r", "k0"), kernel("k1", "a")))
    assert found["k1"][0] == found["r"][1]


def test_collectives_follow_each_other_on_one_stream() -> None:
    program = scheduled(
        start("r", "a"), start("s", "a"), kernel("k", "a"), done("d", "r"), done("e", "s")
    )
    found = spans(program)
    assert found["s"][0] == found["r"][1]
    tasks = build_task_graph(
        split_scheduled(program), [None, None, RegionTime(duration_ps=1, label="")], name="step"
    )
    collectives = [task for task in tasks.tasks if isinstance(task, CollectiveTask)]
    assert [task.order_only for task in collectives] == [(), ()]


def test_a_framework_has_a_stream_for_each_group() -> None:
    program = replace(
        scheduled(
            start("r", "a"), start("s", "a"), kernel("k", "a"), done("d", "r"), done("e", "s")
        ),
        is_of_libraries=True,
    )
    tasks = build_task_graph(
        split_scheduled(program), [None, None, RegionTime(duration_ps=1, label="")], name="step"
    )
    first, second = [task for task in tasks.tasks if isinstance(task, CollectiveTask)]
    assert second.order_only == (first.id,)
