"""Slices of TPUs: which axes close, the presets, several slices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hespas.errors import DeviceCountError, HardwareError
from hespas.hardware.interconnect import Dimensions, Interconnect, Shape, slice_network
from hespas.hardware.presets import load_system, node_info, system_names
from hespas.hardware.sized import find_system
from hespas.hardware.system import System, interconnect_of

PRESETS = [name for name in system_names() if "x" in name.partition("_")[2]]


def shapes(system: System) -> list[tuple[str, int]]:
    fabric = interconnect_of(system).fabric
    assert isinstance(fabric, Dimensions)
    return [(each.shape.value, each.size) for each in fabric.dimensions]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_what_the_figures_of_the_node_make(name: str) -> None:
    part, _, sides = name.partition("_")
    described = node_info(part).slice
    assert described is not None
    made: Interconnect = slice_network(
        described,
        [int(side) for side in sides.split("x")],
        name=name,
        on_chip=2 if part == "TPUv7x" else 1,
    )
    assert interconnect_of(load_system(name)) == made


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TPUv5e_16x16", [("ring", 16), ("ring", 16)]),
        ("TPUv5e_8x16", [("line", 8), ("ring", 16)]),
        ("TPUv6e_2x4", [("line", 2), ("line", 4)]),
        ("8xTPUv6e", [("line", 2), ("line", 4)]),
        ("TPUv5p_4x4x8", [("ring", 4), ("ring", 4), ("ring", 8)]),
        ("TPUv5p_2x4x4", [("line", 2), ("line", 4), ("line", 4)]),
        ("16xTPUv7x", [("fully_connected", 2), ("line", 2), ("line", 2), ("line", 2)]),
        ("4x256xTPUv5e", [("ring", 16), ("ring", 16), ("switch", 4)]),
        ("2xTPUv5p_4x4x4", [("ring", 4), ("ring", 4), ("ring", 4), ("switch", 2)]),
    ],
)
def test_axes_close_where_the_slice_is_large_enough(
    name: str, expected: list[tuple[str, int]]
) -> None:
    assert shapes(find_system(name)) == expected


def test_several_slices_are_one_system() -> None:
    several, one = find_system("4x256xTPUv5e"), find_system("256xTPUv5e")
    assert (several.device_count, several.slices, several.part) == (1024, 4, "TPUv5e")
    between = several.dimensions[-1]
    described = node_info("TPUv5e").slice
    assert described is not None
    assert between.bandwidth_bytes_per_s == described.dcn_bandwidth
    assert several.dimensions[:-1] == one.dimensions
    assert "4 slices of 256 devices" in several.assumptions[-1]
    assert replace(find_system("1x256xTPUv5e"), name=one.name) == one


def test_narrow_slices_of_two_axes_take_one_loop() -> None:
    narrow, wide = find_system("TPUv6e_2x4"), find_system("TPUv6e_4x4")
    assert interconnect_of(narrow).algorithms["all_reduce"] == ("hamiltonian-ring",)
    assert interconnect_of(wide).algorithms["all_reduce"] == ("multi-axis-rings",)
    cube = find_system("TPUv5p_2x2x1")
    assert interconnect_of(cube).algorithms["all_reduce"] == ("multi-axis-rings",)
    assert Shape.RING not in {Shape(shape) for shape, _ in shapes(cube)}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("TPUv6e_2x2x2", "TPUv6e_2x2x2 has 3 axes, and a slice of TPUv6e 2"),
        ("TPUv6e_3x4", "no slice of TPUv6e has the shape 3x4"),
        ("TPUv5e_32x32", "no slice of TPUv5e has the shape 32x32"),
        ("TPUv3_4x4", "how several TPUv3 are connected is not known"),
        ("H100_80GB_2x4", "no system preset or directory is named 'H100_80GB_2x4'"),
        ("4x8xH100_80GB", "8xH100_80GB is no slice of TPUs"),
        ("2x2x256xTPUv5e", "2x256xTPUv5e is no slice of TPUs"),
        ("512xTPUv5e", "give 256, or several slices: 2x256xTPUv5e"),
        ("8960xTPUv5p", "give 8192, or several slices: 35x256xTPUv5p"),
        ("0x256xTPUv5e", "the device count is 0; give 1 to"),
        ("99999999x256xTPUv5e", "the device count is"),
    ],
)
def test_what_is_no_slice(name: str, message: str) -> None:
    with pytest.raises((DeviceCountError, HardwareError)) as caught:
        find_system(name)
    assert message in str(caught.value)
