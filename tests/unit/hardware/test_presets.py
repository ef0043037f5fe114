from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hespas.errors import ConfigError
from hespas.hardware.device import Device
from hespas.hardware.presets import (
    PRESETS_DIRECTORY,
    device_names,
    load_device,
    load_system,
    part_warnings,
    system_names,
)

H100S = load_system("H100_80GB_4GPU")
NODES = PRESETS_DIRECTORY / "nodes"


def test_every_system_preset_is_made_for_a_device_preset() -> None:
    assert {load_system(name).part for name in system_names()} <= set(device_names())


@pytest.mark.parametrize("device", ["H200_141GB", load_device("MI300X"), "A100_SXM_80GB"], ids=str)
def test_another_part_of_the_same_kind_is_warned_of(device: Device | str) -> None:
    (warning,) = part_warnings(device, H100S)

    assert "H100_80GB_4GPU is made of H100_80GB" in warning


def own(name: str) -> Device:
    return replace(load_device(name), name="mine")


@pytest.mark.parametrize(
    "device", ["H100_80GB", "H100_SXM_80GB", own("TPUv5e"), NODES / "V100_32GB", None]
)
def test_of_its_own_part_and_of_ones_own_devices_nothing_is_said(
    device: Device | Path | str | None,
) -> None:
    assert part_warnings(device, H100S) == ()


def test_parts_that_differ_in_their_memory_are_alike() -> None:
    assert part_warnings("A100_SXM_80GB", load_system("A100_SXM_40GB_4GPU")) == ()


def test_of_ones_own_systems_nothing_is_said() -> None:
    system = load_system(PRESETS_DIRECTORY / "systems" / "H100_80GB_4GPU")

    assert part_warnings("TPUv5e", system) == ()
    assert part_warnings("TPUv5e", None) == ()


@pytest.mark.parametrize("device", ["TPUv5e", load_device("TPUv5e"), NODES / "TPUv5e"], ids=str)
def test_a_tpu_on_a_system_of_gpus_is_refused(device: Device | Path | str) -> None:
    with pytest.raises(ConfigError, match="is a TPU, and H100_80GB_4GPU is a system of GPUs"):
        part_warnings(device, H100S)


@pytest.mark.parametrize(
    "device", ["MI300X", load_device("L40S_48GB"), NODES / "V100_32GB"], ids=str
)
def test_a_gpu_on_a_slice_of_tpus_is_refused(device: Device | Path | str) -> None:
    with pytest.raises(ConfigError, match="is a GPU, and TPUv5e_2x2 is a slice of TPUs"):
        part_warnings(device, load_system("TPUv5e_2x2"))


@pytest.mark.parametrize("load", [load_device, load_system])
def test_an_empty_name_is_refused(load: Callable[[str], object]) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        load("")
