from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hespas.base.decode import preset_names
from hespas.errors import ConfigError
from hespas.hardware.variation import EQUAL, PRESETS, SlowDevices, Slowest, read_variation


@pytest.mark.parametrize("name", preset_names(PRESETS))
def test_every_preset_is_read(name: str) -> None:
    assert read_variation(name) != EQUAL


def test_a_directory_of_a_calibration_is_read(tmp_path: Path) -> None:
    (tmp_path / "variation.json").write_text('{"source": "x", "sigma": 0.01}')
    assert read_variation(tmp_path).sigma == 0.01


def test_a_few_very_slow_devices_leave_the_others_as_they_are() -> None:
    rare = Slowest(sigma=0.001, slow=SlowDevices(share=1e-9, factor=100))
    assert rare.mean(64) == pytest.approx(Slowest(sigma=0.001).mean(64), abs=1e-5)


def test_none_is_no_variation() -> None:
    assert read_variation("none") == EQUAL


@pytest.mark.parametrize("slow", [None, SlowDevices(share=0.02, factor=1.2)])
@pytest.mark.parametrize("count", [1, 2, 8, 512])
def test_the_slowest_is_as_drawn_one_by_one(count: int, slow: SlowDevices | None) -> None:
    random = np.random.default_rng(6)
    factors = 1.0 + 0.02 * random.standard_normal((20_000, count))
    if slow is not None:
        factors *= np.where(random.random(factors.shape) < slow.share, slow.factor, 1.0)
    slowest = Slowest(sigma=0.02, slow=slow)
    assert slowest.mean(count) == pytest.approx(factors.max(axis=1).mean(), abs=5e-4)
    drawn = slowest.factors(random.random(20_000), count)
    for share in (0.05, 0.5, 0.95):
        below = float((factors.max(axis=1) < np.quantile(drawn, share)).mean())
        assert below == pytest.approx(share, abs=0.02)


def test_without_deviation_all_are_equal() -> None:
    slowest = Slowest(sigma=0.0)
    assert slowest.mean(1) == slowest.mean(100_000) == 1.0


def test_larger_groups_and_deviations_are_never_faster() -> None:
    means = [Slowest(sigma=0.01).mean(count) for count in (1, 2, 64, 4_096, 100_000)]
    assert means == sorted(means)
    wide = [Slowest(sigma=sigma).mean(64) for sigma in (0.0, 0.005, 0.01, 0.1)]
    assert wide == sorted(wide)


def test_excluding_the_slowest_helps() -> None:
    slowest = Slowest(sigma=0.01)
    assert slowest.mean(4_096, without=0.01) < slowest.mean(4_096) - 0.01
    assert slowest.mean(4_096, without=0.01) == pytest.approx(1 + 0.01 * 2.33, abs=1e-3)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"sigma": -1}, "sigma"), ({"sigmas": 1}, "sigmas"), ({"slow": {"share": 0.1}}, "factor")],
)
def test_what_has_no_meaning_is_refused(
    tmp_path: Path, given: dict[str, object], message: str
) -> None:
    path = tmp_path / "v.json"
    path.write_text(json.dumps({"source": "an example", **given}))
    with pytest.raises(ConfigError, match=message):
        read_variation(path)


def test_another_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="GPU_SC22"):
        read_variation("GPU_SC2")
