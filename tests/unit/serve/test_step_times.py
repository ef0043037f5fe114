"""Step times: linear between sizes, and honest about sizes left out."""

from __future__ import annotations

import pytest

from hespas.serve.step_times import StepFactors, StepTimes, interpolated


def test_sizes_between_are_linear_and_go_on_beyond_the_last() -> None:
    times = StepTimes(tokens_s=((1, 1.0), (3, 2.0), (5, 4.0)), context_s=((1, 1e-9),))
    assert [times.of_tokens(size) for size in (1, 2, 3, 4, 5, 6)] == [
        1_000_000_000_000,
        1_500_000_000_000,
        2_000_000_000_000,
        3_000_000_000_000,
        4_000_000_000_000,
        5_000_000_000_000,
    ]
    assert times.of_context(100) == 1000
    assert interpolated(times.tokens_s, 0) == 1.0


@pytest.mark.parametrize(("middle_s", "error"), [(2.0, 0.0), (1.0, 1.0), (4.0, 0.5)])
def test_a_size_left_out_is_compared_with_its_neighbours(middle_s: float, error: float) -> None:
    times = StepTimes(tokens_s=((1, 1.0), (2, middle_s), (3, 3.0)), context_s=((1, 0.0),))
    assert times.left_out_error == pytest.approx(error)


def test_factors_multiply_each_part_by_its_own() -> None:
    times = StepTimes(
        tokens_s=((1, 1.0), (256, 2.0), (1024, 3.0)), context_s=((1, 4.0),), pair_s=5.0
    )
    scaled = times.scaled(StepFactors(decode=2.0, prompts=10.0), most_decoded=256)
    assert scaled.tokens_s == ((1, 2.0), (256, 4.0), (1024, 30.0))
    assert (scaled.context_s, scaled.pair_s) == (((1, 8.0),), 50.0)
