from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hespas.errors import HardwareError
from hespas.hardware.power import (
    POWER,
    BoardPower,
    Draw,
    HostPower,
    clock_in_loop,
    energy,
    mean_w,
    network_w,
    read_power,
    slowed,
    sustained_clock,
)
from hespas.hardware.presets import PRESETS_DIRECTORY, device_names, load_device

BOARD = BoardPower(
    idle_w=100.0,
    busy_w=100.0,
    flop_j={"bf16": 1e-12},
    byte_j=50e-12,
    voltage_floor=0.4,
    boost_clock_hz=2e9,
    loop_clock=0.9,
)
PRODUCTS = Draw(time_s=2.0, clocked_s=1.5, flops={"bf16": 800e12}, size_bytes=1e12)
DESCRIBED = [name for name in device_names() if load_device(name).power is not None]


def test_the_energy_of_a_draw_by_hand() -> None:
    found = energy(BOARD, PRODUCTS, 1.0)
    assert found.compute_j == pytest.approx(800 + 2 * 100)
    assert found.memory_j == pytest.approx(50)
    assert found.idle_j == pytest.approx(200)
    assert mean_w(BOARD, PRODUCTS, 1.0) == pytest.approx(1250 / 2)


def test_a_lower_clock_takes_the_square_of_the_voltage_less() -> None:
    at_half = slowed(PRODUCTS, 0.5)
    assert at_half.time_s == pytest.approx(2.0 + 1.5)
    voltage = 0.4 + 0.6 * 0.5
    found = energy(BOARD, at_half, 0.5)
    assert found.compute_j == pytest.approx((800 + 100 * 0.5 * 3.5) * voltage**2)
    assert found.memory_j == pytest.approx(50)


@pytest.mark.parametrize("limit_w", [625, 600, 500, 400, 300])
def test_the_sustained_clock_is_the_largest_within_the_limit(limit_w: float) -> None:
    clock = sustained_clock(BOARD, PRODUCTS, limit_w)
    assert mean_w(BOARD, slowed(PRODUCTS, clock), clock) <= limit_w
    above = clock + 0.001
    assert clock == 1.0 or mean_w(BOARD, slowed(PRODUCTS, above), above) > limit_w


def test_what_waits_for_memory_alone_loses_no_time() -> None:
    streaming = Draw(time_s=1.0, clocked_s=0.0, flops={}, size_bytes=4e12)
    clock = sustained_clock(BOARD, streaming, 350)
    assert clock < 1.0
    assert slowed(streaming, clock).time_s == 1.0


def test_a_limit_that_no_clock_keeps() -> None:
    with pytest.raises(HardwareError, match="the power limit is 50 W, and the program draws 1"):
        sustained_clock(BOARD, PRODUCTS, 50)


def test_nothing_draws_nothing() -> None:
    nothing = Draw(time_s=0.0, clocked_s=0.0, flops={}, size_bytes=0.0)
    assert mean_w(BOARD, nothing, 1.0) == 0
    assert sustained_clock(BOARD, nothing, 1.0) == 1.0


def test_short_products_were_measured_at_the_boost_clock_and_long_ones_below() -> None:
    clocks = [clock_in_loop(BOARD, time_s) for time_s in (1e-6, 5e-4, 1e-3, 4e-3, 16e-3, 1.0)]
    assert clocks[:2] == [1.0, 1.0]
    assert clocks == sorted(clocks, reverse=True)
    assert clocks[-2:] == pytest.approx([0.9, 0.9])


@pytest.mark.parametrize(("devices", "ports"), [(8, 0), (16, 1), (512, 1), (520, 3), (20000, 5)])
def test_a_tree_of_switches_grows_with_the_machines(devices: int, ports: int) -> None:
    host = HostPower(devices=8, device_w=170.0, switch_port_w=10.0)
    assert network_w(host, devices) == ports * 10.0


@pytest.mark.parametrize("name", DESCRIBED)
def test_long_products_draw_the_limit_at_the_clock_at_which_they_were_measured(name: str) -> None:
    # Parts whose tables were measured on another one's board have that one's limit.
    device = load_device(name.replace("PCIe", "SXM").replace("H100_96GB", "H100_80GB"))
    power, limit_w = device.power, device.limit_w
    assert power is not None
    assert limit_w is not None
    # What makes the energy of a FLOP from the clock, backwards.
    rate = (limit_w - power.idle_w) / (power.loop_clock * (0.4 + 0.6 * power.loop_clock) ** 2)
    flops = (rate - power.busy_w) / power.flop_j["bf16"]
    loop = Draw(time_s=1.0, clocked_s=1.0, flops={"bf16": flops}, size_bytes=0.0)
    assert sustained_clock(power, loop, limit_w) == pytest.approx(power.loop_clock, abs=0.002)
    # No GPU multiplies faster at its boost clock than its peak at that clock.
    assert 0.7 < flops / device.rate("bf16") < 1.0


@pytest.mark.parametrize("name", DESCRIBED)
def test_every_figure_of_power_has_its_source(name: str) -> None:
    power = load_device(name).power
    assert power is not None
    named = ("assumed", "measured", "XLA", "MLPerf", "the limit of", "machines of eight")
    assert all(source.startswith(named) for source in power.sources.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": {}}, "sources and figures differ"),
        ({"idle_w": 0}, r"\$.idle_w is 0"),
        ({"voltage_floor": 2}, r"\$.voltage_floor is 2"),
        ({"idle": 1}, "unknown key 'idle'"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, change: dict[str, object], message: str) -> None:
    good = json.loads((PRESETS_DIRECTORY / "nodes" / "H100_80GB" / POWER).read_text())
    file = tmp_path / POWER
    file.write_text(json.dumps(good | change))
    with pytest.raises(Exception, match=message):
        read_power(file)


def test_the_limit_is_the_thermal_design_power_unless_it_is_given() -> None:
    h100 = load_device("H100_80GB")
    assert h100.limit_w == 700
    assert replace(h100, power_limit_w=500.0).limit_w == 500
    with pytest.raises(HardwareError, match="power_limit_w is -1"):
        replace(h100, power_limit_w=-1.0)
