from __future__ import annotations

import pytest
from msgspec.structs import replace

from hespas.errors import DeviceCountError, ProgramError
from hespas.program.attrs import PermuteAttrs
from hespas.program.devices import device_group_table, device_pairs, with_device_count
from hespas.program.groups import GroupMode, ListedGroups, device_groups
from hespas.program.program import Program
from programs import VECTOR, all_reduce, on_devices, only, read, settled, vector_main

ALONE = vector_main(f"%r = stablehlo.abs %a : {VECTOR}")
REDUCED = vector_main(all_reduce("%r", "%a"))
HALVES = vector_main(all_reduce("%r", "%a", groups=((0, 1), (2, 3))))


def replicated(groups: str, columns: int) -> str:
    """Return an all_reduce whose groups hold replicas."""
    rows = groups.count("[") - 1
    text = vector_main(all_reduce("%r", "%a"))
    channel = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, "
    dense = f"dense<{groups}> : tensor<{rows}x{columns}xi64>"
    text = text.replace(channel, "").replace(", use_global_device_ids", "")
    return text.replace("dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>", dense)


def permuted(pairs: str) -> str:
    rows = pairs.count("[") - 1
    return vector_main(
        f'%r = "stablehlo.collective_permute"(%a) <{{channel_handle = '
        f"#stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = "
        f"dense<{pairs}> : tensor<{rows}x2xi64>}}> : ({VECTOR}) -> {VECTOR}"
    )


def counts(program: Program) -> tuple[int | None, int | None]:
    return program.replicas, program.partitions


@pytest.mark.parametrize(
    ("text", "requested", "system", "expected"),
    [
        (ALONE, None, None, (1, 1)),
        (ALONE, 8, None, (8, 1)),
        (ALONE, None, 8, (8, 1)),
        (ALONE, 8, 8, (8, 1)),
        (on_devices(ALONE, 1), None, 4, (4, 1)),
        (on_devices(ALONE, 1), 2, None, (2, 1)),
        (on_devices(REDUCED), None, None, (1, 4)),
        (on_devices(REDUCED), 4, 4, (1, 4)),
        (on_devices(REDUCED, 2, 2), None, None, (2, 2)),
        (REDUCED, None, None, (4, 1)),
        (REDUCED, 4, None, (4, 1)),
        (HALVES, None, 4, (4, 1)),
        (replicated("[[0, 1], [2, 3]]", 2), None, None, (4, 1)),
        (permuted("[[0, 1], [1, 2]]"), None, None, (1, 3)),
        (permuted("[[0, 1], [1, 2]]"), 4, None, (1, 4)),
        (permuted("[[0, 1], [1, 2]]"), None, 4, (1, 4)),
    ],
)
def test_where_the_count_comes_from(
    text: str, requested: int | None, system: int | None, expected: tuple[int, int]
) -> None:
    program = with_device_count(read(text), requested=requested, system=system)
    assert counts(program) == expected


def test_a_count_of_replicas_alone_has_one_partition() -> None:
    text = f"module attributes {{mhlo.num_replicas = 4 : i32}} {{ {ALONE} }}"
    assert counts(settled(text)) == (4, 1)


@pytest.mark.parametrize(
    ("text", "requested", "system", "message"),
    [
        (ALONE, 0, None, "0 devices are asked for; give 1 or more"),
        (ALONE, -1, None, "-1 devices are asked for; give 1 or more"),
        (ALONE, None, 0, "the system has 0"),
        (on_devices(REDUCED), 8, None, "8 devices are asked for, but the program is made for 4"),
        (on_devices(REDUCED), None, 8, "runs on 4 devices, but the system has 8"),
        (REDUCED, 8, None, "8 devices are asked for, but the replica groups name 4"),
        (REDUCED, 2, None, "2 devices are asked for, but the replica groups name 4"),
        (REDUCED, None, 8, "runs on 4 devices, but the system has 8"),
        (permuted("[[0, 1], [1, 2]]"), 2, None, "2 devices .* the source-target pairs name 3"),
        (permuted("[[0, 1], [1, 2]]"), None, 2, "runs on 3 devices, but the system has 2"),
        (ALONE, 2, 4, "runs on 2 devices, but the system has 4"),
    ],
)
def test_counts_that_disagree(
    text: str, requested: int | None, system: int | None, message: str
) -> None:
    with pytest.raises(DeviceCountError, match=message):
        with_device_count(read(text), requested=requested, system=system)


def test_devices_outside_a_group_take_no_part() -> None:
    program = settled(on_devices(vector_main(all_reduce("%r", "%a", groups=((0, 1),)))))
    assert device_group_table(only(program, "all_reduce"), program) == ((0, 1),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            on_devices(REDUCED, 2),
            (
                r"3:6: stablehlo.all_reduce: replica group \[0, 1, 2, 3\] names device 2, "
                "but the program has 2; give the right number with devices"
            ),
        ),
        (
            on_devices(replicated("[[0, 1, 2]]", 3), 1, 2),
            r"replica group \[0, 1, 2\] names device 2, but the program has 2",
        ),
        (
            on_devices(permuted("[[0, 5]]")),
            "test.mlir:3:6: stablehlo.collective_permute: target 5 is named, but the program has 4",
        ),
        (on_devices(permuted("[[4, 1]]")), "source 4 is named"),
    ],
)
def test_devices_that_are_not_there(text: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        settled(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            on_devices(vector_main(all_reduce("%r", "%a", groups=((0, 1), (1, 2))))),
            "id #1 seen more",
        ),
        (on_devices(permuted("[[0, 1], [0, 2]]")), "duplicate sources"),
        (on_devices(permuted("[[0, 1], [2, 1]]")), "duplicate targets"),
    ],
)
def test_nobody_stands_in_two_groups_or_pairs(text: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        settled(text)


def test_groups_that_overlap_are_found_without_a_parser_too() -> None:
    groups = ListedGroups(groups=((0, 1), (1, 2)))
    with pytest.raises(ProgramError, match="device 1 is in two replica groups"):
        device_groups(groups, GroupMode.FLATTENED_IDS, replicas=1, partitions=4)


def test_pairs_that_overlap_are_found_without_a_parser_too() -> None:
    program = settled(on_devices(permuted("[[0, 1]]")))
    op = only(program, "collective_permute")
    for pairs, role in ((((0, 1), (0, 2)), "source"), (((0, 1), (2, 1)), "target")):
        attrs = PermuteAttrs(pairs=pairs, mode=GroupMode.CROSS_PARTITION, channel=1)
        with pytest.raises(ProgramError, match=f"a device is {role} of two pairs"):
            device_pairs(replace(op, attrs=attrs), program)


def test_an_operation_without_groups_or_pairs() -> None:
    program = settled(ALONE)
    with pytest.raises(ProgramError, match="abs: it has no replica groups"):
        device_group_table(only(program, "abs"), program)
    with pytest.raises(ProgramError, match="abs: it has no source-target pairs"):
        device_pairs(only(program, "abs"), program)
