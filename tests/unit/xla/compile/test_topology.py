from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.errors import DeviceCountError, HardwareError
from hespas.xla.compile.messages import TpuSlice
from hespas.xla.compile.topology import (
    TPU_GENERATIONS,
    gpu_topology_name,
    open_topology,
    tpu_topology_shape,
)


@given(hosts=st.integers(1, 512), per_host=st.integers(1, 16))
def test_hosts_are_full(hosts: int, per_host: int) -> None:
    name = gpu_topology_name(hosts * per_host, per_host=per_host)
    assert name == f"1x{hosts}x{per_host}"


def test_a_host_may_have_devices_to_spare_but_no_two_unequal() -> None:
    assert gpu_topology_name(3, per_host=8) == "1x1x3"
    with pytest.raises(DeviceCountError, match="12 devices do not fill hosts of 8"):
        gpu_topology_name(12, per_host=8)


@given(generation=st.sampled_from(sorted(TPU_GENERATIONS)), power=st.integers(1, 11))
def test_slices_have_the_devices_that_are_asked_for(generation: str, power: int) -> None:
    chips = TPU_GENERATIONS[generation]
    shape = tpu_topology_shape(2**power, generation=generation)
    assert len(shape) == chips.dimensions
    assert prod(shape) * chips.devices_per_chip == 2**power


@pytest.mark.parametrize(
    ("generation", "count", "shape"),
    [
        ("v5e", 1, (1, 1)),
        ("v5e", 4, (2, 2)),
        ("v5e", 256, (16, 16)),
        ("v6e", 32, (4, 8)),
        ("v3", 8, (2, 2)),
        ("v4", 4, (2, 2, 1)),
        ("v5p", 64, (4, 4, 4)),
    ],
)
def test_slices_are_those_that_one_can_rent(
    generation: str, count: int, shape: tuple[int, ...]
) -> None:
    assert tpu_topology_shape(count, generation=generation) == shape


@pytest.mark.parametrize(("generation", "count"), [("v5e", 3), ("v3", 1), ("v3", 6)])
def test_other_numbers_of_devices_are_refused(generation: str, count: int) -> None:
    with pytest.raises(DeviceCountError, match=f"no TPU {generation} slice has {count} devices"):
        tpu_topology_shape(count, generation=generation)


def test_what_is_no_topology_is_refused() -> None:
    with pytest.raises(HardwareError, match="'2y2' is not a topology"):
        open_topology(TpuSlice(generation="v5e", topology="2y2"), count=4)
