from __future__ import annotations

import pytest
from msgspec.structs import replace

from hespas.errors import ProgramError
from hespas.program.devices import communication_ops, device_group_table, with_device_count
from hespas.program.groups import DeviceOrder, on_devices, read_order
from hespas.program.program import GlobalFacts
from programs import all_reduce, read, vector_main
from programs import on_devices as for_devices

SWAPPED = DeviceOrder(dimensions=(2, 2), permutation=(1, 0))
HALVES = for_devices(vector_main(all_reduce("%r", "%a", groups=((0, 1), (2, 3)))))


@pytest.mark.parametrize(
    ("dimensions", "permutation"),
    [((2, 4), (1, 0)), ((2, 3, 4), (1, 0, 2)), ((2, 3, 4), (2, 1, 0)), ((5,), (0,))],
)
def test_every_device_runs_one_partition(
    dimensions: tuple[int, ...], permutation: tuple[int, ...]
) -> None:
    order = DeviceOrder(dimensions=dimensions, permutation=permutation)
    assert sorted(order.devices()) == [*range(order.count)]
    assert order.is_ascending == (order.devices() == (*range(order.count),))
    assert read_order(str(order)) == (None if order.is_ascending else order)


def test_axes_of_one_device_do_not_change_the_order() -> None:
    assert DeviceOrder(dimensions=(1, 4), permutation=(1, 0)).is_ascending
    assert not DeviceOrder(dimensions=(2, 1, 4), permutation=(2, 1, 0)).is_ascending


@pytest.mark.parametrize("text", ["[2,4]", "[2,4]T(0,0)", "[2,4]T(0)", "[0,4]T(1,0)", "0,4,1,5"])
def test_what_is_no_order_is_an_error(text: str) -> None:
    with pytest.raises(ProgramError):
        read_order(text)


def test_groups_are_those_of_the_devices() -> None:
    program = with_device_count(read(HALVES), requested=None, system=None)
    placed = replace(program, global_facts=GlobalFacts(device_order=SWAPPED))
    (op,) = communication_ops(placed)
    assert device_group_table(op, program) == ((0, 1), (2, 3))
    assert device_group_table(op, placed) == ((0, 2), (1, 3))
    assert on_devices(((0, 1), (2, 3)), None) == ((0, 1), (2, 3))


def test_an_order_is_of_all_devices() -> None:
    facts = GlobalFacts(device_order=DeviceOrder(dimensions=(2, 4), permutation=(1, 0)))
    with pytest.raises(ProgramError, match="is of 8, and it runs on 4"):
        with_device_count(replace(read(HALVES), global_facts=facts), requested=None, system=None)
