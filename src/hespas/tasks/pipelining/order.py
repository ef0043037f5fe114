"""Whether a schedule can run: each pass once, and an order in which no stage waits forever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hespas.errors import ConfigError
from hespas.tasks.pipelining.schedule import Action, Pass, Schedule


def check_schedule(schedule: Schedule, *, location: str = "") -> None:
    """Raise `ConfigError` for a schedule that misses or repeats a pass, or deadlocks."""
    kinds = list(Pass) if schedule.splits_backward else [Pass.FORWARD, Pass.BACKWARD]
    wanted = {
        Action(kind, number, chunk)
        for kind in kinds
        for number in range(schedule.micro_batches)
        for chunk in range(schedule.chunks)
    }
    for stage, order in enumerate(schedule.order):
        counted = Counter(order)
        twice = next((action for action in order if counted[action] > 1), None)
        if twice is not None:
            raise ConfigError(
                f"stage {stage} has {twice} {counted[twice]} times",
                location=location,
                hint="keep one",
            )
        for problem, found in (("lacks", wanted - set(order)), ("has", set(order) - wanted)):
            if found:
                first = min(
                    found, key=lambda action: (action.micro_batch, action.chunk, str(action))
                )
                raise ConfigError(
                    f"stage {stage} {problem} {first}"
                    + ("" if problem == "lacks" else ", which the other stages have not"),
                    location=location,
                    hint=f"give every stage {', '.join(_ranges(kinds, schedule))}",
                )
    for _ in run_order(schedule, location=location):
        pass


def _ranges(kinds: list[Pass], schedule: Schedule) -> Iterator[str]:
    last = Action(Pass.FORWARD, schedule.micro_batches - 1, schedule.chunks - 1)
    for kind in kinds:
        yield f"{Action(kind, 0)} to {last._replace(kind=kind)}"


def run_order(schedule: Schedule, *, location: str = "") -> Iterator[tuple[int, Action]]:
    """Yield all passes with their stages, each after those that it waits for.

    Raises `ConfigError` where stages wait for each other, naming them and what they wait for.
    """
    place = [0] * schedule.stages
    done: set[tuple[int, Action]] = set()
    waiting: dict[tuple[int, Action], list[int]] = {}
    ready = list(reversed(range(schedule.stages)))
    while ready:
        stage = ready.pop()
        order = schedule.order[stage]
        while place[stage] < len(order):
            action = order[place[stage]]
            missing = next(
                (need for need in schedule.inputs(stage, action) if need not in done), None
            )
            if missing is not None:
                waiting.setdefault(missing, []).append(stage)
                break
            place[stage] += 1
            done.add((stage, action))
            yield stage, action
            ready.extend(waiting.pop((stage, action), ()))
    stuck = [stage for stage in range(schedule.stages) if place[stage] < len(schedule.order[stage])]
    if stuck:
        raise ConfigError(
            f"the schedule deadlocks: {_cycle(schedule, place, stuck)}",
            location=location,
            hint="move a pass that another stage waits for before the one that waits",
        )


def _cycle(schedule: Schedule, place: list[int], stuck: list[int]) -> str:
    """Return which stages wait for each other, each once."""
    waits: list[str] = []
    stage, seen = stuck[0], set[int]()
    done = [set(order[:reached]) for order, reached in zip(schedule.order, place, strict=True)]
    while stage not in seen:
        seen.add(stage)
        action = schedule.order[stage][place[stage]]
        source, need = next(
            (source, need)
            for source, need in schedule.inputs(stage, action)
            if need not in done[source]
        )
        where = f"{need}" if source == stage else f"{need} of stage {source}"
        waits.append(f"stage {stage} at {action} waits for {where}")
        stage = source
    return ", ".join(waits)
