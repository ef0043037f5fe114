from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import cast

import pytest

from hespas.base.decode import read_json, read_yaml
from hespas.base.units import GIB, to_ns
from hespas.errors import ConfigError, DeviceCountError, HardwareError
from hespas.hardware.interconnect import Dimensions
from hespas.hardware.presets import (
    PRESETS_DIRECTORY,
    load_system,
    presets_that_fit,
    system_names,
)
from hespas.hardware.system import RemoteMemoryKind, System, astra_name, read_system
from hespas.program.collectives import COMMON_KINDS, CollectiveKind

CORPUS = Path(__file__).parents[2] / "corpus" / "astra-sim.json.xz"

# Per dimension: topology, devices, GB/s as ASTRA-sim counts them, ns.
A100_NODE = ("FullyConnected", 4, 100.0, 1000.0)
A100_RACK = ("Switch", 32, 100.0, 1000.0)
A100_ROW = ("Switch", 4, 800.0, 40000.0)
A100_OCTET = ("Switch", 8, 300.0, 1000.0)
A100_OCTETS = ("Switch", 32, 200.0, 4000.0)
V100_OCTET = ("Switch", 8, 150.0, 1000.0)
V100_OCTETS = ("Switch", 32, 400.0, 1000.0)
# 50, 100 and 600 GB/s in units of 2**30 bytes.
ICI_50, ICI_100, DIE_TO_DIE = 46.5661, 93.1323, 558.7935
# 450, 900, 32, 50 and 100 GB/s in the same.
NVLINK4, NVLINK5, PCIE4, NDR, XDR = 419.0952, 838.1903, 29.8023, 46.5661, 93.1323
# 64, 76.8 and 200 GB/s: one direction of a link, as the vendors' two together are twice that.
MI300X_OCTET = ("FullyConnected", 8, 59.6046, 1000.0)
MI355X_OCTET = ("FullyConnected", 8, 71.5256, 1000.0)
NVLINK_H800, HDR = 186.2645, 23.2831
PAIRED = ("FullyConnected", 4, 139.6984, 1000.0)
BRIDGED = ("FullyConnected", 2, 279.3968, 1000.0)
H100_OCTET = ("Switch", 8, NVLINK4, 1000.0)
DOCUMENTED = {
    "A100_SXM_40GB_4GPU": [A100_NODE],
    "A100_SXM_40GB_4GPU_2": [A100_NODE, ("Switch", 2, 100.0, 1000.0)],
    "A100_SXM_40GB_4GPU_4": [A100_NODE, ("Switch", 4, 100.0, 1000.0)],
    "A100_SXM_40GB_4GPU_8": [A100_NODE, ("Switch", 8, 100.0, 1000.0)],
    "A100_SXM_40GB_4GPU_32": [A100_NODE, A100_RACK],
    "A100_SXM_40GB_4GPU_32_4": [A100_NODE, A100_RACK, A100_ROW],
    "A100_SXM_40GB_4GPU_32_4_2": [A100_NODE, A100_RACK, A100_ROW, ("Switch", 2, 3200.0, 100000.0)],
    "A100_SXM_40GB_4GPU_32_4_4": [A100_NODE, A100_RACK, A100_ROW, ("Switch", 4, 3200.0, 100000.0)],
    "A100_SXM_40GB_8GPU": [A100_OCTET],
    "A100_SXM_40GB_8GPU_32": [A100_OCTET, A100_OCTETS],
    "A100_SXM_40GB_8GPU_32_4": [A100_OCTET, A100_OCTETS, ("Switch", 4, 6400.0, 10000.0)],
    "A100_SXM_40GB_8GPU_32_8": [A100_OCTET, A100_OCTETS, ("Switch", 8, 6400.0, 10000.0)],
    "A100_SXM_80GB_4GPU": [A100_NODE],
    "A40_48GB_2GPU": [("FullyConnected", 2, 112.5, 1000.0)],
    "B200_180GB_4GPU": [("FullyConnected", 4, 300.0, 1000.0)],
    "B200_180GB_8GPU": [("Switch", 8, 900.0, 1000.0)],
    "B200_180GB_8GPU_2": [("Switch", 8, 900.0, 1000.0), ("Switch", 2, 150.0, 1000.0)],
    "B300_288GB_8GPU": [("Switch", 8, NVLINK5, 1000.0)],
    "B300_288GB_8GPU_4": [("Switch", 8, NVLINK5, 1000.0), ("Switch", 4, XDR, 4000.0)],
    "GB200_186GB_4GPU": [("Switch", 4, NVLINK5, 1000.0)],
    "GB200_186GB_72GPU": [("Switch", 72, NVLINK5, 1000.0)],
    "GB200_186GB_72GPU_8": [("Switch", 72, NVLINK5, 1000.0), ("Switch", 8, NDR, 4000.0)],
    "GB300_288GB_4GPU": [("Switch", 4, NVLINK5, 1000.0)],
    "GB300_288GB_72GPU": [("Switch", 72, NVLINK5, 1000.0)],
    "GB300_288GB_72GPU_8": [("Switch", 72, NVLINK5, 1000.0), ("Switch", 8, XDR, 4000.0)],
    "H100_80GB_4GPU": [("FullyConnected", 4, 150.0, 1000.0)],
    "H100_80GB_8GPU": [H100_OCTET],
    "H100_80GB_8GPU_4": [H100_OCTET, ("Switch", 4, NDR, 4000.0)],
    "H100_80GB_8GPU_32": [H100_OCTET, ("Switch", 32, NDR, 4000.0)],
    "H200_141GB_4GPU": [("FullyConnected", 4, 150.0, 1000.0)],
    "H200_141GB_8GPU": [H100_OCTET],
    "H200_141GB_8GPU_4": [H100_OCTET, ("Switch", 4, NDR, 4000.0)],
    "H200_141GB_8GPU_32": [H100_OCTET, ("Switch", 32, NDR, 4000.0)],
    "L40S_48GB_8GPU": [("Switch", 8, PCIE4, 1000.0)],
    "L4_24GB_8GPU": [("Switch", 8, PCIE4, 1000.0)],
    "A10G_24GB_8GPU": [("Switch", 8, PCIE4, 1000.0)],
    "RTX5090_32GB_8GPU": [("Switch", 8, PCIE4, 1000.0)],
    "A10_24GB_8GPU": [("Switch", 8, PCIE4, 1000.0)],
    "A30_24GB_8GPU": [("Switch", 8, PCIE4, 1000.0)],
    "RTX3090_24GB_8GPU": [("Switch", 8, PCIE4, 1000.0)],
    "RTX6000Ada_48GB_8GPU": [("Switch", 8, PCIE4, 1000.0)],
    "RTXA6000_48GB_8GPU": [("Switch", 8, PCIE4, 1000.0)],
    "T4_16GB_8GPU": [("Switch", 8, 14.9012, 1000.0)],
    "A800_SXM_80GB_8GPU": [("Switch", 8, NVLINK_H800, 1000.0)],
    "A800_SXM_80GB_8GPU_32": [("Switch", 8, NVLINK_H800, 1000.0), ("Switch", 32, HDR, 4000.0)],
    "GH200_96GB_4GPU": [PAIRED],
    "GH200_96GB_4GPU_32": [PAIRED, ("Switch", 32, HDR, 4000.0)],
    "GH200_144GB_4GPU": [PAIRED],
    "GH200_144GB_4GPU_32": [PAIRED, ("Switch", 32, HDR, 4000.0)],
    "H200_NVL_141GB_4GPU": [PAIRED],
    "A100_PCIe_40GB_2GPU": [BRIDGED],
    "A100_PCIe_80GB_2GPU": [BRIDGED],
    "H100_PCIe_80GB_2GPU": [BRIDGED],
    "H100_NVL_94GB_2GPU": [BRIDGED],
    "H20_96GB_8GPU": [H100_OCTET],
    "H20_96GB_8GPU_32": [H100_OCTET, ("Switch", 32, NDR, 4000.0)],
    "H800_80GB_8GPU": [("Switch", 8, NVLINK_H800, 1000.0)],
    "H800_80GB_8GPU_32": [("Switch", 8, NVLINK_H800, 1000.0), ("Switch", 32, NDR, 4000.0)],
    "MI300X_4": [("FullyConnected", 4, 128.0, 1000.0)],
    "RTX4090_24GB_8GPU": [("Switch", 8, PCIE4, 1000.0)],
    "RTXPRO6000_96GB_8GPU": [("Switch", 8, PCIE4, 1000.0)],
    "MI300X_8": [("FullyConnected", 8, 128.0, 1000.0)],
    "MI300X_8_32": [MI300X_OCTET, ("Switch", 32, NDR, 4000.0)],
    "MI325X_8": [MI300X_OCTET],
    "MI325X_8_32": [MI300X_OCTET, ("Switch", 32, NDR, 4000.0)],
    "MI355X_8": [MI355X_OCTET],
    "MI355X_8_32": [MI355X_OCTET, ("Switch", 32, NDR, 4000.0)],
    "TPUv3_2": [("Ring", 2, 5000.0, 1.0)],
    "TPUv3_4_2": [("Ring", 4, 82.0, 1.0), ("Ring", 2, 5000.0, 1.0)],
    "TPUv4_2x2x1": [("Ring", 2, ICI_50, 1000.0)] * 2,
    "TPUv4_4x4x4": [("Ring", 4, ICI_50, 1000.0)] * 3,
    "TPUv5e_16x16": [("Ring", 16, ICI_50, 1000.0)] * 2,
    "TPUv5e_2x2": [("Ring", 2, ICI_50, 1000.0)] * 2,
    "TPUv5e_4x4": [("Ring", 4, ICI_50, 1000.0)] * 2,
    "TPUv5p_2x2x1": [("Ring", 2, ICI_100, 1000.0)] * 2,
    "TPUv5p_2x2x2": [("Ring", 2, ICI_100, 1000.0)] * 3,
    "TPUv5p_4x4x4": [("Ring", 4, ICI_100, 1000.0)] * 3,
    "TPUv6e_16x16": [("Ring", 16, ICI_100, 1000.0)] * 2,
    "TPUv6e_2x2": [("Ring", 2, ICI_100, 1000.0)] * 2,
    "TPUv6e_4x4": [("Ring", 4, ICI_100, 1000.0)] * 2,
    "TPUv7x_2x2x1": [("Ring", 2, DIE_TO_DIE, 1000.0), *[("Ring", 2, ICI_50, 1000.0)] * 2],
    "V100_32GB_4GPU": [("FullyConnected", 4, 50.0, 1000.0)],
    "V100_32GB_8GPU": [V100_OCTET],
    "V100_32GB_8GPU_32": [V100_OCTET, V100_OCTETS],
    "V100_32GB_8GPU_32_4": [V100_OCTET, V100_OCTETS, ("Switch", 4, 2000.0, 10000.0)],
    "V100_32GB_8GPU_32_8": [V100_OCTET, V100_OCTETS, ("Switch", 8, 2000.0, 10000.0)],
}


def _dimensions(system: System) -> list[tuple[str, int, float, float]]:
    return [
        (
            astra_name(each.shape),
            each.size,
            each.bandwidth_bytes_per_s / GIB,
            to_ns(each.latency_s),
        )
        for each in system.dimensions
    ]


def test_the_documented_systems_are_there() -> None:
    assert system_names() == tuple(sorted(DOCUMENTED))


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_preset_has_the_documented_figures(name: str) -> None:
    system = load_system(name)
    assert system.name == name
    assert _dimensions(system) == DOCUMENTED[name]
    assert system.endpoint_delay_s == 1e-9
    assert system.preferred_dataset_splits == 1
    assert system.active_chunks_per_dimension == 1
    assert system.collective_optimization == "localBWAware"
    assert system.scheduling_policy == "LIFO"
    assert system.options == {"boost-mode": 0}
    assert system.remote_memory.kind is RemoteMemoryKind.NO_MEMORY_EXPANSION


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_collective_runs_the_same_way_in_every_dimension(name: str) -> None:
    system = load_system(name)
    assert set(system.implementations) == set(COMMON_KINDS)
    assert len(set(system.implementations.values())) == 1
    names = system.implementations[CollectiveKind.ALL_REDUCE]
    assert len(names) == len(system.dimensions)


@pytest.mark.parametrize(
    "name", [name for name in DOCUMENTED if name.startswith("TPUv") and "x" in name]
)
def test_both_forms_of_a_slice_of_tpus_have_the_same_wires(name: str) -> None:
    """ASTRA-sim has no lines: rings in one direction take as long as both ways along a line."""
    system = load_system(name)
    assert system.interconnect is not None
    fabric = system.interconnect.fabric
    assert isinstance(fabric, Dimensions)
    for ours, theirs in zip(fabric.dimensions, system.dimensions, strict=True):
        wire = theirs.bandwidth_bytes_per_s
        assert ours.size == theirs.size
        assert ours.parameters.bandwidth_bytes_per_s == pytest.approx(wire, rel=1e-5)
        assert ours.parameters.latency_s == theirs.latency_s


@pytest.mark.parametrize(
    ("name", "algorithms"),
    [
        ("A100_SXM_40GB_4GPU", ("direct",)),
        ("A100_SXM_40GB_4GPU_2", ("ring", "direct")),
        ("A100_SXM_40GB_8GPU", ("ring",)),
        ("V100_32GB_4GPU", ("ring",)),
    ],
)
def test_the_documented_algorithms(name: str, algorithms: tuple[str, ...]) -> None:
    assert load_system(name).implementations[CollectiveKind.ALL_REDUCE] == algorithms


def test_the_tutorial_s_network_file() -> None:
    path = PRESETS_DIRECTORY / "systems/A100_SXM_40GB_4GPU/astra-sim/network.yml"
    assert path.read_text() == (
        "bandwidth:\n- 100.0\nlatency:\n- 1000\nnpus_count:\n- 4\ntopology:\n- FullyConnected\n"
    )


def test_presets_that_fit() -> None:
    assert presets_that_fit(1024) == (
        "A100_SXM_40GB_4GPU_32_4_2",
        "A100_SXM_40GB_8GPU_32_4",
        "V100_32GB_8GPU_32_4",
    )
    assert presets_that_fit(3) == ()
    for name in DOCUMENTED:
        assert name in presets_that_fit(load_system(name).device_count)


@pytest.mark.parametrize("count", [0, -1])
def test_no_preset_fits_no_devices(count: int) -> None:
    with pytest.raises(DeviceCountError, match=f"^the device count is {count}; give 1 or more$"):
        presets_that_fit(count)


def test_an_unknown_system_names_the_nearest() -> None:
    with pytest.raises(HardwareError) as caught:
        load_system("H100_80GB_3GPU")
    assert str(caught.value).startswith(
        "no system preset or directory is named 'H100_80GB_3GPU'; did you mean 'H100_80GB_8GPU'"
    )


def test_a_device_in_the_place_of_a_system_is_asked_for_its_count() -> None:
    with pytest.raises(HardwareError, match=r"^'H100_80GB' is one device; say how many, as in 8x"):
        load_system("H100_80GB")


@cache
def _corpus() -> Mapping[str, Mapping[str, object]]:
    cases = json.loads(lzma.decompress(CORPUS.read_bytes()))
    return {case["case"]: case for case in cases}


def _unpack(case: str, directory: Path) -> Path:
    found = _corpus()[case]
    for name in ("system.json", "network.yml", "remote_memory.json"):
        content = found[name]
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name).write_text(text)
    return directory


IN_CORPUS = {
    "A100_SXM_40GB_4GPU": "hespas_A100_SXM_40GB_4GPU_mix",
    "A100_SXM_40GB_4GPU_4": "hespas_A100_SXM_40GB_4GPU_4_overlap",
    "A100_SXM_40GB_4GPU_8": "hespas_A100_SXM_40GB_4GPU_8_overlap",
    "A100_SXM_40GB_4GPU_32": "hespas_A100_SXM_40GB_4GPU_32_ar_ag",
    "A100_SXM_40GB_4GPU_32_4": "hespas_A100_SXM_40GB_4GPU_32_4_ar_ag",
    "A100_SXM_40GB_8GPU": "hespas_A100_SXM_40GB_8GPU_mix",
    "A100_SXM_80GB_4GPU": "hespas_A100_SXM_80GB_4GPU_mix",
    "A40_48GB_2GPU": "hespas_A40_48GB_2GPU_mix",
    "B200_180GB_4GPU": "hespas_B200_180GB_4GPU_mix",
    "B200_180GB_8GPU": "hespas_B200_180GB_8GPU_mix",
    "B200_180GB_8GPU_2": "hespas_B200_180GB_8GPU_2_overlap",
    "H100_80GB_4GPU": "hespas_H100_80GB_4GPU_mix",
    "H200_141GB_4GPU": "hespas_H200_141GB_4GPU_overlap",
    "MI300X_4": "hespas_MI300X_4_mix",
    "MI300X_8": "hespas_InfinityPlatform_overlap",
    "TPUv3_2": "hespas_TPUv3_2_overlap",
    "TPUv3_4_2": "hespas_TPUv3_4_2_mix",
    "V100_32GB_4GPU": "hespas_V100_32GB_4GPU_mix",
    "V100_32GB_8GPU": "hespas_V100_32GB_8GPU_overlap",
    "V100_32GB_8GPU_32": "hespas_V100_32GB_8GPU_32_ar_ag",
}


@pytest.mark.parametrize(("name", "case"), IN_CORPUS.items())
def test_a_preset_equals_the_files_that_were_simulated(
    name: str, case: str, tmp_path: Path
) -> None:
    theirs = _unpack(case, tmp_path)
    ours = PRESETS_DIRECTORY / "systems" / name / "astra-sim"
    their_system = cast("dict[str, object]", read_json(theirs / "system.json"))
    our_system = cast("dict[str, object]", read_json(ours / "system.json"))
    # The case asks for statistics, and the A40's file lacks keys without which it crashes.
    del their_system["trace-enabled"]
    if name == "A40_48GB_2GPU":
        our_system = {key: our_system[key] for key in their_system}
    assert our_system == their_system
    their_network = cast("dict[str, list[object]]", read_yaml(theirs / "network.yml"))
    our_network = cast("dict[str, list[object]]", read_yaml(ours / "network.yml"))
    # 1000 ns went through seconds there, and came back as 999.9999999999999.
    assert our_network.pop("latency") == pytest.approx(their_network.pop("latency"), rel=1e-14)
    assert our_network == their_network
    assert read_json(ours / "remote_memory.json") == read_json(theirs / "remote_memory.json")


def test_every_simulated_case_can_be_read(tmp_path: Path) -> None:
    cases = sorted(_corpus())
    assert len(cases) > 300
    for case in cases:
        if case.startswith("hespas_A40"):
            continue
        _unpack(case, tmp_path)
        system = read_system(
            name=case,
            system_file=tmp_path / "system.json",
            network_file=tmp_path / "network.yml",
            remote_memory_file=tmp_path / "remote_memory.json",
        )
        assert system.device_count >= 1
        given = json.loads((tmp_path / "system.json").read_text())
        assert set(system.options) <= set(given)


def test_the_case_that_crashes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lacks 'preferred-dataset-splits'; add it"):
        load_system(_unpack("hespas_A40_48GB_2GPU_mix", tmp_path))
