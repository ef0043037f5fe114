"""What holds at scale: for devices that are not equal, for spares, and for runs that shrink."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hespas.hardware.variation import SlowDevices, Slowest
from hespas.prediction.figures.variation import Stages, longer_by, uniform_draws
from hespas.prediction.goodput import LongRun, waiting_share
from hespas.prediction.hazards import Cause, Hazards, Infant, Retries
from hespas.prediction.long_run import played

ROUNDING = 1e-6
"""Of a step's seconds: factors are interpolated."""
DAY_S = 86_400.0


@st.composite
def stages(draw: st.DrawFn) -> Stages:
    """Draw what stages compute, as parts of a second, and how many devices share each."""
    count = draw(st.integers(1, 6))
    computed = draw(st.lists(st.floats(0.01, 1.0), min_size=count, max_size=count))
    rest = draw(st.lists(st.floats(0.0, 0.5), min_size=count, max_size=count))
    return Stages(
        compute_s=tuple(computed),
        busy_s=tuple([one + other for one, other in zip(computed, rest, strict=True)]),
        ramp=draw(st.sampled_from((0.0, 0.01, 0.25, 1.0))) if count > 1 else 0.0,
        deviation=0.0,
        inner=(("tp", draw(st.sampled_from((1, 2, 8, 4096)))),),
        copies=(("data", draw(st.integers(1, 4))),),
    )


def waiting_s(one: Stages, slowest: Slowest, seed: int) -> float:
    uniform = uniform_draws(seed, draws=50, copies=one.copies[0][1], stages=len(one.busy_s))
    return float(longer_by(slowest.factors(uniform, one.group), one).max(axis=1).mean())


@settings(deadline=None, max_examples=60)
@given(one=stages(), sigmas=st.tuples(st.floats(0, 0.1), st.floats(0, 0.1)), seed=st.integers(0, 9))
def test_more_variation_never_shortens_a_step(
    one: Stages, sigmas: tuple[float, float], seed: int
) -> None:
    less, more = [waiting_s(one, Slowest(sigma=sigma), seed) for sigma in sorted(sigmas)]
    assert less >= -ROUNDING
    assert more >= less - ROUNDING


@settings(deadline=None, max_examples=20)
@given(one=stages(), factors=st.tuples(st.floats(1, 3), st.floats(1, 3)), seed=st.integers(0, 9))
def test_slower_devices_never_shorten_a_step(
    one: Stages, factors: tuple[float, float], seed: int
) -> None:
    less, more = [
        waiting_s(one, Slowest(sigma=0.01, slow=SlowDevices(share=0.1, factor=factor)), seed)
        for factor in sorted(factors)
    ]
    assert more >= less - ROUNDING


@settings(deadline=None, max_examples=20)
@given(one=stages(), seed=st.integers(0, 9))
def test_no_variation_adds_nothing(one: Stages, seed: int) -> None:
    assert waiting_s(one, Slowest(sigma=0.0), seed) == 0.0


@st.composite
def hazards(draw: st.DrawFn) -> Hazards:
    """Draw what interrupts a run; nodes that are not equal may hold a seed up by chance."""
    causes = [
        Cause(
            name=str(number),
            interval_s=draw(st.sampled_from((4e3, 3e4, 4e5))),
            nodes=draw(st.sampled_from((0, 1, 8))),
            detection_s=draw(st.sampled_from((0.0, 900.0))),
            planned=draw(st.booleans()),
        )
        for number in range(draw(st.integers(1, 3)))
    ]
    return Hazards(
        causes=causes,
        nodes=100,
        infant=draw(st.sampled_from((None, Infant(factor=3, days=2)))),
        retries=draw(st.sampled_from((None, Retries(success=0.5, interval_s=660)))),
    )


RUN = LongRun(failure_interval_s=10_000, start_s=300, load_s=60, save_s=30, interval_s=600)


@settings(deadline=None, max_examples=30)
@given(
    what=hazards(),
    repair_s=st.sampled_from((3e3, 9e4, 9e5)),
    spares=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    seed=st.integers(0, 99),
)
def test_more_spares_never_lower_the_goodput_of_any_seed(
    what: Hazards, repair_s: float, spares: tuple[int, int], seed: int
) -> None:
    few, more = [
        played(
            replace(RUN, repair_s=repair_s, spares=one), what, run_s=4 * DAY_S, seeds=10, seed=seed
        ).goodput
        for one in sorted(spares)
    ]
    assert (more >= few - ROUNDING).all()


@given(
    repair_s=st.floats(1.0, 1e7),
    interval_s=st.floats(100.0, 1e7),
    spares=st.tuples(st.integers(0, 200), st.integers(0, 200)),
)
def test_more_spares_never_lower_the_goodput_of_the_closed_form(
    repair_s: float, interval_s: float, spares: tuple[int, int]
) -> None:
    few, more = [
        waiting_share(replace(RUN, failure_interval_s=interval_s, repair_s=repair_s, spares=one))
        for one in sorted(spares)
    ]
    assert more <= few
