from __future__ import annotations

from math import inf, nan
from typing import cast

import pytest

from hespas.errors import HardwareError
from hespas.hardware.device import Device, MeasuredTables, RooflineHardware
from hespas.hardware.interconnect import Shape, dimension_of
from hespas.hardware.presets import device_of

BAD_RATES = [0.0, -1.0, inf, nan]


@pytest.mark.parametrize("value", BAD_RATES)
def test_a_device_refuses_impossible_peaks(value: float) -> None:
    with pytest.raises(HardwareError, match=f"^x: peak_flops is {value}; give a positive number$"):
        Device(name="x", peak_flops=value, memory_bandwidth_bytes_per_s=1.0)
    with pytest.raises(HardwareError, match=r"^x: memory_bandwidth is "):
        Device(name="x", peak_flops=1.0, memory_bandwidth_bytes_per_s=value)
    with pytest.raises(HardwareError, match=r"^x: per_datatype_flops\.f32 is "):
        Device(
            name="x",
            peak_flops=1.0,
            memory_bandwidth_bytes_per_s=1.0,
            per_datatype_flops={"f32": value},
        )
    with pytest.raises(HardwareError, match=r"^x: tdp_W is "):
        Device(name="x", peak_flops=1.0, memory_bandwidth_bytes_per_s=1.0, tdp_w=value)


@pytest.mark.parametrize("ratio", [-0.1, 1.1, nan])
def test_a_device_refuses_an_impossible_power_ratio(ratio: float) -> None:
    with pytest.raises(HardwareError, match="hbm_power_ratio"):
        Device(name="x", peak_flops=1.0, memory_bandwidth_bytes_per_s=1.0, hbm_power_ratio=ratio)


@pytest.mark.parametrize("overhead_s", [-1e-6, inf, nan])
def test_a_device_refuses_an_impossible_launch_overhead(overhead_s: float) -> None:
    with pytest.raises(HardwareError, match="launch_overhead_s"):
        Device(
            name="x",
            peak_flops=1.0,
            memory_bandwidth_bytes_per_s=1.0,
            launch_overhead_s=overhead_s,
        )


def test_rates_per_type_are_copied_and_frozen() -> None:
    rates = {"f32": 1.0}
    device = Device(
        name="x", peak_flops=1.0, memory_bandwidth_bytes_per_s=1.0, per_datatype_flops=rates
    )
    rates["f32"] = 2.0
    assert device.per_datatype_flops == {"f32": 1.0}
    with pytest.raises(TypeError):
        cast("dict[str, float]", device.per_datatype_flops)["f32"] = 3.0


def test_a_configuration_becomes_a_device() -> None:
    hardware = RooflineHardware(
        peak_flops=1e12,
        memory_bandwidth=2e11,
        num_npus=4,
        per_datatype_flops={"bf16": 4e12},
        tdp_w=300.0,
        hbm_power_ratio=0.2,
    )
    assert device_of(hardware, name="mine") == Device(
        name="mine",
        peak_flops=1e12,
        memory_bandwidth_bytes_per_s=2e11,
        per_datatype_flops={"bf16": 4e12},
        tdp_w=300.0,
        hbm_power_ratio=0.2,
    )


def _dimension(*, npus_count: int = 2, bandwidth: float = 1.0, latency_s: float = 0.0) -> None:
    dimension_of(Shape.RING, npus_count, bandwidth, latency_s)


@pytest.mark.parametrize("count", [0, -1])
def test_a_dimension_refuses_no_devices(count: int) -> None:
    with pytest.raises(HardwareError, match=f"^a dimension has {count} devices; give 1 or more$"):
        _dimension(npus_count=count)


@pytest.mark.parametrize("bandwidth", BAD_RATES)
def test_a_dimension_refuses_an_impossible_bandwidth(bandwidth: float) -> None:
    with pytest.raises(HardwareError, match=r"^bandwidth is .*; give a positive number$"):
        _dimension(bandwidth=bandwidth)


@pytest.mark.parametrize("latency_s", [-1.0, inf, nan])
def test_a_dimension_refuses_an_impossible_latency(latency_s: float) -> None:
    with pytest.raises(HardwareError, match=r"^latency is .*; give 0 or more$"):
        _dimension(latency_s=latency_s)


def test_a_calibration_of_nothing_known_is_refused() -> None:
    with pytest.raises(HardwareError, match=r"H100_SXM: there is no factor 'gem'; did .*'gemm'"):
        MeasuredTables(part="H100_SXM", factors={"gem": 1.2})


@pytest.mark.parametrize(("name", "meant"), [("gemm.bf17", "gemm.bf16"), ("gemm.f16", "gemm.")])
def test_a_calibration_of_a_type_that_has_no_factor_is_refused(name: str, meant: str) -> None:
    with pytest.raises(HardwareError, match=rf"mine/node\.json: .*'{name}'; did you mean '{meant}"):
        MeasuredTables(part="H100_SXM", factors={name: 2.0}, location="mine/node.json")
