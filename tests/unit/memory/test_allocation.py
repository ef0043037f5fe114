from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hespas.memory.allocation import (
    ALIGNMENT_BYTES,
    OutputMemory,
    Span,
    outside_outputs,
    packed_bytes,
)
from hespas.memory.buffers import Buffer, Role
from hespas.program.types import tensor_type

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


_MOMENTS = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(
    lambda pair: (min(pair), max(pair))
)
_SIZED = st.tuples(st.integers(1, 4), _MOMENTS)


def buffer_of(size: int, moments: tuple[int, int]) -> Buffer:
    return Buffer(
        size_bytes=size,
        type=tensor_type("i8", size),
        role=Role.TEMPORARY,
        location="",
        written_at=moments[0],
        read_at=moments[1],
        held_until=moments[1],
    )


@given(st.lists(_SIZED, max_size=12), st.lists(st.tuples(_SIZED, st.booleans()), max_size=9))
def test_a_buffer_takes_the_smallest_memory_that_is_free(
    temporaries: list[tuple[int, tuple[int, int]]],
    outputs: list[tuple[tuple[int, tuple[int, int]], bool]],
) -> None:
    buffers = [buffer_of(*drawn) for drawn in temporaries]

    def memories() -> list[OutputMemory]:
        made: list[OutputMemory] = []
        for (size, (first, last)), is_over in outputs:
            over = frozenset(each for each in buffers[:2] if is_over and each.held_until == first)
            memory = OutputMemory(size_bytes=size, written_at=first, overwritten=over)
            memory.use(first, last)
            made.append(memory)
        return made

    remaining: list[Buffer] = []
    ordered = sorted(memories(), key=lambda memory: (memory.size_bytes, -memory.written_at))
    for buffer in sorted(buffers, key=lambda each: -each.size_bytes):
        moments = sum(1 << (at + 1) for at in range(buffer.written_at, buffer.held_until + 1))
        free = [
            memory
            for memory in ordered
            if memory.size_bytes >= buffer.size_bytes and memory.is_free_for(buffer, moments)
        ]
        if free:
            free[0].use(buffer.written_at, buffer.held_until)
        else:
            remaining.append(buffer)
    assert outside_outputs(buffers, memories()) == remaining
