from __future__ import annotations

import pytest

from hespas.hardware.presets import load_device
from power_readings import PowerReading, read_readings

NODES = {"H100": "H100_80GB", "B200": "B200_180GB"}
READINGS = read_readings()


def loaded(part: str) -> list[PowerReading]:
    alike = [each for each in READINGS if each.part == part]
    most_w = max(each.machine_w for each in alike)
    return [each for each in alike if each.machine_w >= 0.9 * most_w]


@pytest.mark.parametrize("reading", [*loaded("H100"), *loaded("B200")], ids=lambda r: r.workload)
def test_machines_with_gpus_at_their_limit_within_ten_per_cent(reading: PowerReading) -> None:
    device = load_device(NODES[reading.part])
    assert device.power is not None
    assert device.power.host is not None
    assert device.limit_w == reading.limit_w
    predicted_w = 8 * (reading.limit_w + device.power.host.device_w)
    assert predicted_w == pytest.approx(reading.machine_w, rel=0.1)


def test_no_machine_draws_more_than_its_gpus_at_their_limit() -> None:
    for reading in READINGS:
        power = load_device(NODES[reading.part]).power
        assert power is not None
        assert power.host is not None
        most_w = 8 * (reading.limit_w + power.host.device_w)
        assert reading.machine_w < 1.05 * most_w
        # Nor less than they draw while they wait.
        assert reading.machine_w > 8 * (power.idle_w + power.host.device_w)


def test_the_share_of_one_generation_serves_the_other() -> None:
    h100 = load_device("H100_80GB").power
    assert h100 is not None
    assert h100.host is not None
    for reading in loaded("B200"):
        predicted_w = 8 * (reading.limit_w + h100.host.device_w)
        assert predicted_w == pytest.approx(reading.machine_w, rel=0.1)
