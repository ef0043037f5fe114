from __future__ import annotations

import pytest

from hespas.program.work import ZERO, Work, flop_counts, summed


def test_works_add_by_type() -> None:
    left = Work(flops=(("bf16", 2), ("f32", 3)), transcendentals=1, bytes_read=5)
    right = Work(flops=(("f32", 4), ("tf32", 6)), bytes_written=7)

    assert left + right == Work(
        flops=(("bf16", 2), ("f32", 3 + 4), ("tf32", 6)),
        transcendentals=1,
        bytes_read=5,
        bytes_written=7,
    )


def test_a_fraction_of_work_is_rounded_to_whole_counts() -> None:
    assert Work(flops=(("f32", 10),), bytes_read=3) * 0.25 == Work(
        flops=(("f32", 2),), bytes_read=1
    )


def test_no_times_is_nothing() -> None:
    assert Work(flops=(("f32", 10),), transcendentals=1, bytes_written=3) * 0 == ZERO


def test_negative_times_are_refused() -> None:
    with pytest.raises(ValueError, match="-1 times"):
        _ = ZERO * -1


def test_totals() -> None:
    work = Work(flops=(("bf16", 2), ("f32", 3)), bytes_read=5, bytes_written=7)

    assert (work.total_flops, work.bytes_moved) == (5, 12)
    assert dict(work.flops) == {"bf16": 2, "f32": 3}
    assert work.arithmetic == Work(flops=work.flops)


def test_work_is_hashable() -> None:
    assert len({Work(flops=flop_counts("f32", 1)), Work(flops=flop_counts("f32", 1))}) == 1


def test_summing_many_is_adding_them() -> None:
    works = [Work(flops=(("f32", 1),)), Work(bytes_read=2), Work(flops=(("bf16", 3), ("f32", 4)))]

    assert summed(works) == works[0] + works[1] + works[2]
