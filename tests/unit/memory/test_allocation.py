from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hespas.memory.allocation import ALIGNMENT_BYTES, Span, packed_bytes

UNIT = ALIGNMENT_BYTES


def spans(*given: tuple[int, int, int]) -> list[Span]:
    return [Span(size_bytes=size * UNIT, live=((first, last),)) for size, first, last in given]


def test_buffers_of_different_times_share_a_place() -> None:
    assert packed_bytes(spans((4, 0, 1), (4, 2, 3), (3, 4, 5))) == 4 * UNIT


def test_a_gap_of_the_right_size_is_taken_before_a_larger_one() -> None:
    # Three long-lived buffers leave gaps of 3 and 2 behind the two that end early; of the last
    # two, the one of 2 must not take the gap of 3.
    held = ((10, 0, 9), (9, 0, 9), (8, 0, 9))
    early = ((3, 0, 1), (2, 0, 1))
    late = ((3, 2, 3), (2, 2, 3))
    assert packed_bytes(spans(*held, *early, *late)) == 32 * UNIT


def test_of_equal_buffers_the_longest_lived_is_placed_first() -> None:
    # The long one of 2 must have the place at 0, so that those of 3 and 1 fit beside it.
    assert packed_bytes(spans((2, 0, 1), (1, 3, 5), (2, 0, 3), (3, 4, 5))) == 4 * UNIT


def test_what_no_gap_holds_lies_behind() -> None:
    # 2 and 2 are free, but apart: 3 fits into neither.
    assert packed_bytes(spans((5, 0, 9), (4, 0, 4), (4, 5, 9), (3, 3, 6))) == 12 * UNIT


def test_memory_that_a_buffer_leaves_for_a_while_is_used() -> None:
    carried = Span(size_bytes=4 * UNIT, live=((0, 2), (6, 9)))
    between = spans((3, 3, 5))
    assert packed_bytes([carried, *between]) == 4 * UNIT
    assert packed_bytes([carried, *spans((3, 3, 6))]) == 7 * UNIT


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 20), st.integers(0, 20)), max_size=20)
)
def test_no_moment_needs_more_than_there_is(drawn: list[tuple[int, int, int]]) -> None:
    buffers = [
        Span(size_bytes=size, live=((min(one, other), max(one, other)),))
        for size, one, other in drawn
    ]
    needed = packed_bytes(buffers)
    assert needed <= sum(-(-span.size_bytes // UNIT) * UNIT for span in buffers)
    for moment in range(21):
        there = [span for span in buffers if span.live[0][0] <= moment <= span.live[0][1]]
        assert sum(span.size_bytes for span in there) <= needed
