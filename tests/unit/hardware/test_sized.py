"""Systems of any number of devices of a part."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hespas.errors import DeviceCountError, HardwareError, HespasError
from hespas.hardware.interconnect import Dimensions
from hespas.hardware.presets import device_names, load_device, load_system, system_names
from hespas.hardware.sized import find_system
from hespas.hardware.system import System, interconnect_of

PRESETS = system_names()


def sizes(text: str) -> list[int]:
    return [dimension.size for dimension in find_system(text).dimensions]


def without_names(system: System) -> System:
    network = system.interconnect
    return replace(
        system, name="", interconnect=None if network is None else replace(network, name="")
    )


@pytest.mark.parametrize(
    ("asked", "preset"),
    [
        ("32xH100_80GB", "H100_80GB_8GPU_4"),
        ("256xH100_80GB", "H100_80GB_8GPU_32"),
        ("4xH100_80GB", "H100_80GB_4GPU"),
        ("8xH200_141GB", "H200_141GB_8GPU"),
        ("256xA100_SXM_40GB", "A100_SXM_40GB_8GPU_32"),
        ("72xGB200_186GB", "GB200_186GB_72GPU"),
        ("576xGB300_288GB", "GB300_288GB_72GPU_8"),
        ("8xMI300X", "MI300X_8"),
        ("256xMI355X", "MI355X_8_32"),
        ("256xV100_32GB", "V100_32GB_8GPU_32"),
        ("256xTPUv5e", "TPUv5e_16x16"),
        ("16xTPUv6e", "TPUv6e_4x4"),
        ("64xTPUv5p", "TPUv5p_4x4x4"),
        ("8xTPUv7x", "TPUv7x_2x2x1"),
        ("8xTPUv3", "TPUv3_4_2"),
    ],
)
def test_a_number_that_a_preset_has_is_that_preset(asked: str, preset: str) -> None:
    assert without_names(find_system(asked)) == without_names(load_system(preset))
    assert find_system(asked).name == asked


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("64xH100_80GB", [8, 8]),
        ("512xH100_80GB", [8, 64]),
        ("16384xH100_80GB", [8, 2048]),
        ("2xH100_SXM_80GB", [2]),
        ("1xH100_80GB", [1]),
        ("64xA100_SXM_80GB", [8, 8]),
        ("36xGB300_288GB", [36]),
        ("65xGB200_186GB", [65]),
        ("144xGB200_186GB", [72, 2]),
        ("512xGB200_186GB", [64, 8]),
        ("4608xGB300_288GB", [72, 64]),
        ("8xTPUv5e", [2, 4]),
        ("1xTPUv5e", [1]),
        ("512xTPUv4", [8, 8, 8]),
        ("128xTPUv7x", [2, 4, 4, 4]),
    ],
)
def test_nodes_and_slices_of_any_size(asked: str, expected: list[int]) -> None:
    assert sizes(asked) == expected
    system = find_system(asked)
    assert interconnect_of(system).device_count == system.device_count
    assert all(len(names) == len(expected) for names in system.implementations.values())


def test_links_do_not_depend_on_the_number_of_nodes() -> None:
    few, many = find_system("16xH100_80GB"), find_system("16384xH100_80GB")
    assert [replace(each, size=1) for each in few.dimensions] == [
        replace(each, size=1) for each in many.dimensions
    ]
    assert "one switch a rail however many nodes" in many.assumptions[0]
    assert "however many" not in few.assumptions[0]


@pytest.mark.parametrize(
    ("part", "gigabits", "adapter"),
    [("GB200_186GB", 400, "ConnectX-7"), ("GB300_288GB", 800, "ConnectX-8")],
)
def test_racks_are_joined_by_the_network_that_they_are_sold_with(
    part: str, gigabits: int, adapter: str
) -> None:
    # NVIDIA's datasheets of DGX GB200 and DGX GB300: 72 single-port adapters for 72 GPUs.
    system = find_system(f"512x{part}")
    fabric = interconnect_of(system).fabric
    assert isinstance(fabric, Dimensions)
    assert fabric.dimensions[1].parameters.bandwidth_bytes_per_s == gigabits * 1e9 / 8
    (note,) = system.assumptions
    assert f"8 racks of 64 {part} (64 of the 72 in each)" in note
    assert f"{gigabits} Gb/s for each GPU by a {adapter}" in note
    assert "64 of the 72" not in find_system(f"576x{part}").assumptions[0]


def test_a_part_takes_the_links_of_one_that_differs_in_memory_and_its_own_memory_bandwidth() -> (
    None
):
    system = find_system("64xA100_SXM_80GB")
    device = load_device("A100_SXM_80GB")
    assert system.local_memory_bandwidth_bytes_per_s == device.memory_bandwidth_bytes_per_s
    assert "linked as in the preset A100_SXM_40GB_8GPU_32" in system.assumptions[0]
    assert system.part == "A100_SXM_80GB"


@pytest.mark.parametrize(
    ("asked", "preset"),
    [
        ("2xH100_80GB", "H100_80GB_8GPU"),
        ("2xH100_96GB", "H100_80GB_8GPU"),
        ("2xH200_141GB", "H200_141GB_8GPU"),
        ("2xH100_NVL_94GB", "H100_NVL_94GB_2GPU"),
        ("2xA100_SXM_80GB", "A100_SXM_40GB_8GPU"),
    ],
)
def test_a_part_takes_no_links_of_a_card_of_another_form(asked: str, preset: str) -> None:
    assert f"linked as in the preset {preset}" in find_system(asked).assumptions[0]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("12xH100_80GB", "12 devices do not fill nodes of 8 H100_80GB; give 8 or 16"),
        ("0xH100_80GB", "the device count is 0"),
        ("9" * 30 + "xH100_80GB", "the device count is 999"),
        (
            "100xGB200_186GB",
            "100 devices do not fill racks of 72 or 64 GB200_186GB; give 72 or 128",
        ),
        ("1000xGB300_288GB", "1000 devices do not fill racks of 72 or 64 GB300_288GB; give 960 or"),
        ("16xL40S_48GB", "one has 8 devices; give 8 or fewer, or describe the network"),
        ("8xA100_PCIe_40GB", "how nodes of A100_PCIe_40GB are connected is not known"),
        ("24xTPUv5e", "no slice of TPUv5e has 24 devices; give 16 or 32"),
        ("512xTPUv5e", "no slice of TPUv5e has 512 devices; give 256"),
        ("3xTPUv7x", "no slice of TPUv7x has 3 devices; give 2 or 4"),
        ("64xTPUv3", "how 64 TPUv3 are connected is not known; give 2 or 8"),
        ("32xH100", "did you mean 'H100_80GB'"),
        ("32xnothing", "no device preset or file is named 'nothing'"),
        ("H100_80GB_8GPUs", "did you mean 'H100_80GB_8GPU'"),
    ],
)
def test_what_makes_no_system(asked: str, message: str) -> None:
    with pytest.raises((DeviceCountError, HardwareError)) as caught:
        find_system(asked)
    assert message in str(caught.value)


def offered(asked: str) -> list[int]:
    """Return the counts that the refusal of a system offers; nothing where there is one."""
    try:
        find_system(asked)
    except HespasError as error:
        words = (error.hint or "").replace(",", "").split()
        return [int(word) for word in words if word.isdecimal()]
    return []


@pytest.mark.parametrize("count", [3, 24, 100])
def test_the_counts_that_are_offered_make_systems(count: int) -> None:
    parts = {part for part in device_names() if any(n.startswith(f"{part}_") for n in PRESETS)}
    counts = [(part, other) for part in sorted(parts) for other in offered(f"{count}x{part}")]
    assert len(counts) >= len(parts) / 3
    for part, other in counts:
        assert find_system(f"{other}x{part}").device_count == other
