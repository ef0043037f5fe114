"""The energy of devices that serve, and of those that wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hespas.serve.activity import Activity, energy_of
from hespas.serve.load import PICOSECONDS
from hespas.serve.step_times import StepTimes
from hespas.serve.surface import CacheMemory, Surface

SURFACE = Surface(
    times=StepTimes(tokens_s=((1, 1e-3),), context_s=()),
    most_decoded=256,
    memory=CacheMemory(
        weights_bytes=0,
        workspace_bytes=0,
        kv_bytes_per_token=1.0,
        kv_bytes_beyond=0.0,
        state_bytes=0,
    ),
    parts=1,
    power_w=((1, 300.0), (101, 500.0), (1000, 700.0)),
    idle_w=100.0,
    reports={},
    depths=None,
)
SECOND_PS = PICOSECONDS


def _decoding(seconds: int, batch: int) -> Activity:
    activity = Activity()
    activity.add(0, seconds * SECOND_PS, decoding=batch, prompt_tokens=0)
    return activity


def test_devices_that_wait_draw_what_idle_ones_do() -> None:
    # 10 s of work at 300 W, and 90 s at 100 W.
    assert energy_of(SURFACE, [_decoding(10, 1)], [1], 100.0) == pytest.approx(12_000)
    assert energy_of(SURFACE, [Activity()], [8], 100.0) == pytest.approx(80_000)


def test_each_kind_of_iteration_draws_the_power_of_its_tokens() -> None:
    activity = _decoding(10, 51)
    activity.add(10 * SECOND_PS, 5 * SECOND_PS, decoding=51, prompt_tokens=949)
    assert energy_of(SURFACE, [activity], [1], 15.0) == pytest.approx(10 * 400 + 5 * 700)


def test_no_iteration_draws_more_than_the_largest_that_is_predicted() -> None:
    assert energy_of(SURFACE, [_decoding(10, 9000)], [1], 10.0) == pytest.approx(7000)


def test_sequences_of_devices_that_divide_them_are_counted_on_each() -> None:
    divided = replace(SURFACE, parts=51)
    assert energy_of(divided, [_decoding(10, 51)], [51], 10.0) == pytest.approx(51 * 3000)


def test_replicas_have_their_own_devices() -> None:
    both = energy_of(SURFACE, [_decoding(10, 1), _decoding(10, 101)], [2, 3], 10.0)
    assert both == pytest.approx(2 * 3000 + 3 * 5000)


def test_energy_of_unknown_power_is_not_known() -> None:
    assert energy_of(replace(SURFACE, power_w=None), [_decoding(1, 1)], [1], 1.0) is None
