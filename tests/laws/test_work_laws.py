from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hespas.program.operations.contraction import WindowAxis, real_pairs
from hespas.program.work import ZERO, Work, summed

_COUNTS = st.integers(min_value=0, max_value=10**15)
_FLOPS = st.dictionaries(
    st.sampled_from(["bf16", "f16", "f32", "f64", "i8", "tf32"]),
    st.integers(min_value=1, max_value=10**15),
).map(lambda counts: tuple(sorted(counts.items())))


@st.composite
def _works(draw: st.DrawFn) -> Work:
    return Work(
        flops=draw(_FLOPS),
        transcendentals=draw(_COUNTS),
        bytes_read=draw(_COUNTS),
        bytes_written=draw(_COUNTS),
    )


@given(_works(), _works(), _works())
def test_adding_is_associative(one: Work, two: Work, three: Work) -> None:
    assert (one + two) + three == one + (two + three)


@given(_works(), _works())
def test_adding_is_commutative(one: Work, two: Work) -> None:
    assert one + two == two + one


@given(_works())
def test_nothing_adds_nothing(work: Work) -> None:
    assert work + ZERO == work == ZERO + work


@given(_works(), st.integers(min_value=0, max_value=5))
def test_times_is_repeated_adding(work: Work, times: int) -> None:
    assert work * times == summed([work] * times)


@given(_works(), _works())
def test_totals_add(one: Work, two: Work) -> None:
    assert (one + two).total_flops == one.total_flops + two.total_flops
    assert (one + two).bytes_moved == one.bytes_moved + two.bytes_moved


_AXES = st.builds(
    WindowAxis,
    input_size=st.integers(1, 12),
    kernel_size=st.integers(1, 9),
    output_size=st.integers(1, 12),
    stride=st.integers(1, 5),
    padding_low=st.integers(-6, 8),
    input_dilation=st.integers(1, 4),
    kernel_dilation=st.integers(1, 4),
)


@given(_AXES)
def test_pairs_of_a_window_are_those_that_a_loop_finds(axis: WindowAxis) -> None:
    found = 0
    for output in range(axis.output_size):
        for tap in range(axis.kernel_size):
            at = output * axis.stride + tap * axis.kernel_dilation - axis.padding_low
            found += (
                at % axis.input_dilation == 0 and 0 <= at // axis.input_dilation < axis.input_size
            )

    assert real_pairs(axis) == found
