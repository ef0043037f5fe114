from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hespas.simulate.kernel import ActorQueue, Kernel


@given(st.lists(st.integers(0, 20)))
def test_actions_run_by_time_then_in_the_order_of_scheduling(times: list[int]) -> None:
    kernel = Kernel()
    log: list[tuple[int, int]] = []
    for number, time_ps in enumerate(times):
        kernel.at(time_ps, log.append, (time_ps, number))

    kernel.run()

    assert log == sorted((time_ps, number) for number, time_ps in enumerate(times))
    assert kernel.now_ps == max(times, default=0)


def test_an_action_for_the_current_instant_runs_after_the_others_of_it() -> None:
    kernel = Kernel()
    log: list[str] = []

    def first(_: object) -> None:
        log.append("first")
        kernel.after(0, log.append, "third")

    kernel.at(5, first)
    kernel.at(5, log.append, "second")
    kernel.run()

    assert log == ["first", "second", "third"]


def test_an_instant_is_settled_before_it_and_after_all_of_its_actions() -> None:
    kernel = Kernel()
    log: list[str] = []
    kernel.at(5, log.append, "a")
    kernel.at(5, log.append, "b")

    kernel.run(lambda: log.append(f"settled at {kernel.now_ps}"))

    assert log == ["settled at 0", "a", "b", "settled at 5"]


def test_what_settling_schedules_for_now_is_settled_again() -> None:
    kernel = Kernel()
    log: list[str] = []

    def settle() -> None:
        log.append("settled")
        if len(log) == 1:
            kernel.after(0, log.append, "now")

    kernel.run(settle)

    assert log == ["settled", "now", "settled"]


def test_an_actor_runs_what_it_schedules_meanwhile_in_the_same_go() -> None:
    kernel = Kernel()
    actor = ActorQueue(kernel)
    log: list[str] = []

    def first(_: object) -> None:
        log.append("first")
        actor.after(0, log.append, "second")

    actor.after(5, first)
    kernel.at(5, log.append, "third")
    kernel.run()

    assert log == ["first", "second", "third"]
