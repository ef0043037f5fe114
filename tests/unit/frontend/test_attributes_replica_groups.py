"""Who takes part in a collective, in every spelling that StableHLO has for it."""

from __future__ import annotations

from array import array

import pytest

from hespas.errors import ProgramError
from hespas.program.attrs import CollectiveAttrs, PermuteAttrs
from hespas.program.devices import device_group_table, device_pairs
from hespas.program.groups import GroupMode, ListedGroups
from programs import ADD_BODY, VECTOR, on_devices, only, read, settled, vector_main

CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 3, type = 1>"


def reduce_over(
    groups: str, *more: str, before: str = "", partitions: int = 4, replicas: int = 1
) -> str:
    attributes = ", ".join((*more, f"replica_groups = {groups}"))
    reduce = (
        f'%r = "stablehlo.all_reduce"(%a) <{{{attributes}}}> {ADD_BODY} : ({VECTOR}) -> {VECTOR}'
    )
    return on_devices(before + vector_main(reduce), partitions, replicas)


def table(text: str) -> tuple[tuple[int, ...], ...]:
    program = settled(text)
    return device_group_table(only(program, "all_reduce"), program)


def attrs(text: str) -> CollectiveAttrs:
    read_attrs = only(read(text), "all_reduce").attrs
    assert isinstance(read_attrs, CollectiveAttrs)
    return read_attrs


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>", ((0, 1), (2, 3))),
        ("dense<[[3, 2, 1, 0]]> : tensor<1x4xi64>", ((3, 2, 1, 0),)),
        ("dense<[[0, 1, 2], [3, -1, -1]]> : tensor<2x3xi64>", ((0, 1, 2), (3,))),
        ("dense<0> : tensor<1x1xi64>", ((0,),)),
        ("dense<[[0, 1]]> : tensor<1x2xi64>", ((0, 1),)),
    ],
)
def test_listed_groups(groups: str, expected: tuple[tuple[int, ...], ...]) -> None:
    assert table(reduce_over(groups, CHANNEL, "use_global_device_ids")) == expected


@pytest.mark.parametrize("empty", ["dense<> : tensor<0x0xi64>", "dense<> : tensor<1x0xi64>"])
def test_no_groups_are_one_group_of_everybody(empty: str) -> None:
    assert table(reduce_over(empty, replicas=4, partitions=1)) == ((0, 1, 2, 3),)


def test_a_long_list_is_printed_in_hexadecimal() -> None:
    blob = array("q", range(128)).tobytes().hex().upper()
    groups = table(
        reduce_over(
            f'dense<"0x{blob}"> : tensor<2x64xi64>',
            CHANNEL,
            "use_global_device_ids",
            partitions=128,
        )
    )
    assert groups == (tuple(range(64)), tuple(range(64, 128)))


@pytest.mark.parametrize(
    ("more", "groups", "mode", "expected"),
    [
        # Two replicas of two partitions: device = 2 * replica + partition.
        ((), "[[0, 1]]", GroupMode.CROSS_REPLICA, ((0, 2), (1, 3))),
        ((CHANNEL,), "[[0, 1]]", GroupMode.CROSS_REPLICA_AND_PARTITION, ((0, 2, 1, 3),)),
        ((CHANNEL,), "[[0], [1]]", GroupMode.CROSS_REPLICA_AND_PARTITION, ((0, 1), (2, 3))),
        (
            (CHANNEL, "use_global_device_ids"),
            "[[0, 3], [1, 2]]",
            GroupMode.FLATTENED_IDS,
            ((0, 3), (1, 2)),
        ),
    ],
)
def test_what_the_numbers_mean(
    more: tuple[str, ...],
    groups: str,
    mode: GroupMode,
    expected: tuple[tuple[int, ...], ...],
) -> None:
    rows = groups.count("[") - 1
    columns = len(groups.strip("[]").split("]")[0].split(","))
    dense = f"dense<{groups}> : tensor<{rows}x{columns}xi64>"
    text = reduce_over(dense, *more, partitions=2, replicas=2)
    assert attrs(text).mode is mode
    assert table(text) == expected


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        (
            "all_to_all",
            "concat_dimension = 0 : i64, split_count = 2 : i64, split_dimension = 0 : i64",
        ),
        ("collective_broadcast", ""),
    ],
)
def test_a_channel_makes_these_cross_partition(kind: str, attributes: str) -> None:
    def text(channel: str) -> str:
        groups = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
        entries = ", ".join(part for part in (attributes, channel, groups) if part)
        body = f'%r = "stablehlo.{kind}"(%a) <{{{entries}}}>'
        return on_devices(vector_main(f"{body} : ({VECTOR}) -> {VECTOR}"), 2, 2)

    for channel, expected in ((CHANNEL, ((0, 1), (2, 3))), ("", ((0, 2), (1, 3)))):
        program = settled(text(channel))
        assert device_group_table(only(program, kind), program) == expected


MESHES = """
  sdy.mesh @line = <["x"=4]>
  sdy.mesh @square = <["x"=2, "y"=4]>
  sdy.mesh @cube = <["x"=2, "y"=2, "z"=2]>
  sdy.mesh @shuffled = <["x"=2, "y"=2], device_ids=[0, 2, 1, 3]>
"""


def axes(*names: str) -> str:
    return ", ".join(f'#stablehlo.axis_ref<name = "{name}">' for name in names)


def sub_axis(name: str, before: int, size: int) -> str:
    info = f"sub_axis_info = ({before}){size}"
    return f'#stablehlo.axis_ref<name = "{name}", {info}>'


def over_mesh(mesh: str, references: str, devices: int) -> tuple[tuple[int, ...], ...]:
    groups = f"#stablehlo.replica_group_mesh_axes<mesh = {mesh}, axes = [{references}]>"
    return table(
        reduce_over(groups, CHANNEL, "use_global_device_ids", before=MESHES, partitions=devices)
    )


@pytest.mark.parametrize(
    ("mesh", "references", "devices", "expected"),
    [
        ("@line", axes("x"), 4, ((0, 1, 2, 3),)),
        ("@square", axes("x"), 8, ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("@square", axes("y"), 8, ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("@square", axes("x", "y"), 8, ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("@square", axes("y", "x"), 8, ((0, 4, 1, 5, 2, 6, 3, 7),)),
        ("@cube", axes("x", "z"), 8, ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("@cube", axes("y"), 8, ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("@square", sub_axis("y", 1, 2), 8, ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("@square", sub_axis("y", 2, 2), 8, ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("@shuffled", axes("x"), 4, ((0, 1), (2, 3))),
        ("@shuffled", axes("y"), 4, ((0, 2), (1, 3))),
        ("@line", "", 4, ((0,), (1,), (2,), (3,))),
    ],
)
def test_mesh_axes(
    mesh: str, references: str, devices: int, expected: tuple[tuple[int, ...], ...]
) -> None:
    assert over_mesh(mesh, references, devices) == expected


def test_a_mesh_may_stand_inside_the_attribute() -> None:
    inline = (
        '#stablehlo.mesh<axes = [#stablehlo.mesh_axis<name = "x", size = 2>, '
        '#stablehlo.mesh_axis<name = "y", size = 2>]>'
    )
    assert over_mesh(inline, axes("y"), 4) == ((0, 1), (2, 3))
    with_ids = inline[:-1] + ", device_ids = dense<[3, 2, 1, 0]> : tensor<4xi64>>"
    assert over_mesh(with_ids, axes("y"), 4) == ((3, 2), (1, 0))


def test_a_large_mesh_with_device_ids_in_hexadecimal() -> None:
    ids = f"dense<{list(reversed(range(128)))}> : tensor<128xi64>"
    mesh = (
        '#stablehlo.mesh<axes = [#stablehlo.mesh_axis<name = "x", size = 64>, '
        f'#stablehlo.mesh_axis<name = "y", size = 2>], device_ids = {ids}>'
    )
    assert over_mesh(mesh, axes("y"), 128)[:2] == ((127, 126), (125, 124))


def test_a_mesh_or_an_axis_that_is_not_there() -> None:
    with pytest.raises(ProgramError, match="mesh symbol 'nowhere' not found"):
        over_mesh("@nowhere", axes("x"), 4)
    with pytest.raises(ProgramError, match=r"mesh axis 'q' is not defined; axes: \['x'\]"):
        over_mesh("@line", axes("q"), 4)


def permute(pairs: str, *more: str, partitions: int = 4, replicas: int = 1) -> str:
    rows = pairs.count("[") - 1
    dense = f"dense<{pairs}> : tensor<{rows}x2xi64>"
    attributes = ", ".join((*more, f"source_target_pairs = {dense}"))
    body = f'%r = "stablehlo.collective_permute"(%a) <{{{attributes}}}> : ({VECTOR}) -> {VECTOR}'
    return on_devices(vector_main(body), partitions, replicas)


@pytest.mark.parametrize(
    ("more", "pairs"),
    [
        ((), ((0, 2), (2, 0), (1, 3), (3, 1))),
        ((CHANNEL,), ((0, 1), (1, 0), (2, 3), (3, 2))),
    ],
)
def test_pairs(more: tuple[str, ...], pairs: tuple[tuple[int, int], ...]) -> None:
    program = settled(permute("[[0, 1], [1, 0]]", *more, partitions=2, replicas=2))
    op = only(program, "collective_permute")
    assert isinstance(op.attrs, PermuteAttrs)
    assert device_pairs(op, program) == pairs


def test_channel_and_groups_are_kept_as_written() -> None:
    collective = attrs(reduce_over("dense<[[0, 1]]> : tensor<1x2xi64>", CHANNEL))
    assert (collective.channel, collective.groups) == (3, ListedGroups(groups=((0, 1),)))
    none = CHANNEL.replace("handle = 3", "handle = 0")
    assert attrs(reduce_over("dense<[[0]]> : tensor<1x1xi64>", none)).channel is None
