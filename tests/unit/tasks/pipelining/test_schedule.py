from __future__ import annotations

import pytest

from hespas.errors import ConfigError
from hespas.tasks.pipelining.schedule import chunks_named, schedule_named


def texts(name: str, stages: int, micro_batches: int) -> list[str]:
    schedule = schedule_named(name, stages=stages, micro_batches=micro_batches)
    return [" ".join(map(str, order)) for order in schedule.order]


def test_gpipe_runs_all_forward_passes_first() -> None:
    assert texts("gpipe", 2, 3) == ["F0 F1 F2 B2 B1 B0"] * 2


def test_interleaved_takes_turns_as_megatron_does() -> None:
    assert texts("interleaved:2", 2, 2) == [
        "F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1",
        "F0 F1 F0.1 B0.1 F1.1 B1.1 B0 B1",
    ]


def test_zero_bubble_delays_gradients_of_weights() -> None:
    assert texts("zero-bubble", 2, 3) == [
        "F0 F1 B0 W0 F2 B1 W1 B2 W2",
        "F0 B0 F1 B1 W0 F2 B2 W1 W2",
    ]


@pytest.mark.parametrize("name", ["interleaved", "interleaved:0", "interleaved:x", "interleaved:"])
def test_interleaving_needs_its_chunks(name: str) -> None:
    with pytest.raises(ConfigError, match="as in interleaved:2"):
        chunks_named(name)


def test_a_name_that_is_close_is_suggested() -> None:
    with pytest.raises(ConfigError, match="gpipe"):
        chunks_named("gpip")


def test_micro_batches_that_do_not_take_turns_are_refused() -> None:
    with pytest.raises(ConfigError, match="give 8 or 12 micro-batches, or take 1f1b"):
        schedule_named("interleaved:2", stages=4, micro_batches=10)


def test_no_stage_is_no_pipeline() -> None:
    with pytest.raises(ConfigError, match="0 stages"):
        schedule_named("1f1b", stages=0, micro_batches=1)
