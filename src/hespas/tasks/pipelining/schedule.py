"""Define pipeline schedules: the ordered passes of each stage.

A model is cut into consecutive parts. With one part per stage, part ``s`` is on stage ``s``. With
several *chunks* per stage, stages alternate: chunk ``c`` of stage ``s`` is part ``c * stages + s``,
as Megatron-LM interleaves them (D. Narayanan et al., Efficient Large-Scale Language Model Training
on GPU Clusters Using Megatron-LM, 2021).

As text, a schedule has a line for each stage, with its passes in order. ``F3`` is the forward pass
of micro-batch 3, ``B3`` its backward pass, ``W3`` the gradients of its weights, if a schedule
separates them. ``F3.1`` is the pass of chunk 1 of the stage. The text before a colon names the
stage and is ignored; ``#`` begins a comment.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from hespas.base.figures import MOST_DIGITS
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, option


class Pass(Enum):
    """A stage's pass over a micro-batch, with its letter.

    ``BACKWARD`` computes the gradients of the inputs and of the weights; in a schedule with
    ``WEIGHTS``, that pass computes the gradients of the weights.
    """

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHTS = "W"


class Action(NamedTuple):
    """A pass of a micro-batch through a stage's chunk.

    >>> str(Action(Pass.FORWARD, 3, 0)), str(Action(Pass.BACKWARD, 3, 1))
    ('F3', 'B3.1')
    """

    kind: Pass
    micro_batch: int
    chunk: int = 0

    def __str__(self) -> str:
        chunk = f".{self.chunk}" if self.chunk else ""
        return f"{self.kind.value}{self.micro_batch}{chunk}"


@frozen
class Schedule:
    """The ordered passes of each stage.

    ``name`` is the user's name or file.
    """

    name: str
    micro_batches: int
    chunks: int
    order: tuple[tuple[Action, ...], ...]

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.order)

    @property
    def parts(self) -> int:
        """The number of parts that the model is cut into."""
        return self.stages * self.chunks

    @property
    def splits_backward(self) -> bool:
        """Whether weight gradients are separate passes, as in zero-bubble schedules."""
        return any(action.kind is Pass.WEIGHTS for action in self.order[0])

    def part(self, stage: int, chunk: int) -> int:
        """Return the model's part in a stage's chunk."""
        return chunk * self.stages + stage

    def place(self, part: int) -> tuple[int, int]:
        """Return the stage and chunk of a model's part."""
        return part % self.stages, part // self.stages

    def inputs(self, stage: int, action: Action) -> Iterator[tuple[int, Action]]:
        """Yield the awaited passes of a pass with their stages.

        A forward pass waits for the preceding part's, a backward pass for the following part's and
        for the forward pass of its own part, the weight gradients for the backward pass.
        """
        kind, micro_batch, chunk = action
        part = self.part(stage, chunk)
        if kind is Pass.FORWARD and part > 0:
            previous_stage, its_chunk = self.place(part - 1)
            yield previous_stage, Action(kind, micro_batch, its_chunk)
        if kind is Pass.BACKWARD:
            yield stage, Action(Pass.FORWARD, micro_batch, chunk)
            if part + 1 < self.parts:
                next_stage, its_chunk = self.place(part + 1)
                yield next_stage, Action(kind, micro_batch, its_chunk)
        if kind is Pass.WEIGHTS:
            yield stage, Action(Pass.BACKWARD, micro_batch, chunk)

    def receiver(self, stage: int, action: Action) -> int | None:
        """Return the stage that receives a pass's output, or None."""
        part = self.part(stage, action.chunk)
        match action.kind:
            case Pass.FORWARD if part + 1 < self.parts:
                return self.place(part + 1)[0]
            case Pass.BACKWARD if part > 0:
                return self.place(part - 1)[0]
            case _:
                return None


def ideal_bubble(name: str, *, stages: int, micro_batches: int) -> float:
    """Return the idle share of equal stages with free messages.

    It is ``(p - 1) / (m + p - 1)`` for GPipe and 1F1B; ``V`` chunks per stage divide the idle time
    by V, hence ``(p - 1) / (V m + p - 1)``; weight gradients as long as each of the other two
    passes fill two thirds of it, hence ``(p - 1) / (3 m + p - 1)``, for at least ``p``
    micro-batches. Raises `ConfigError` for fewer, and for an unknown name. Sources: D. Narayanan et
    al., 2021 (as above), section 2.2; P. Qi et al., Zero Bubble Pipeline Parallelism, 2023, table
    1.

    >>> ideal_bubble("1f1b", stages=8, micro_batches=8)
    0.4666666666666667
    >>> ideal_bubble("interleaved:7", stages=8, micro_batches=8)
    0.1111111111111111
    """
    divisor = chunks_named(name)
    if name == "zero-bubble":
        if micro_batches < stages:
            raise ConfigError("zero-bubble has no closed form for few micro-batches")
        divisor = 3
    return (stages - 1) / (divisor * micro_batches + stages - 1)


def check_schedule(schedule: Schedule, *, location: str = "") -> None:
    """Raise `ConfigError` for missing or repeated passes and deadlocks."""
    kinds = list(Pass) if schedule.splits_backward else [Pass.FORWARD, Pass.BACKWARD]
    expected = {
        Action(kind, number, chunk)
        for kind in kinds
        for number in range(schedule.micro_batches)
        for chunk in range(schedule.chunks)
    }
    for stage, order in enumerate(schedule.order):
        counts = Counter(order)
        repeated = next((action for action in order if counts[action] > 1), None)
        if repeated is not None:
            raise ConfigError(
                f"stage {stage} has {repeated} {counts[repeated]} times",
                location=location,
                hint="keep one",
            )
        for problem, wrong in (("lacks", expected - set(order)), ("has", set(order) - expected)):
            if wrong:
                first = min(
                    wrong, key=lambda action: (action.micro_batch, action.chunk, str(action))
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
    """Yield all passes with their stages, dependencies first.

    Raises `ConfigError` if stages wait for each other, naming them and the passes they wait for.
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
    """Describe the stages that wait for each other, each once."""
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


NAMES = ("gpipe", "1f1b", "interleaved:V", "zero-bubble")
"""The schedules of frameworks, by name; V is the number of chunks per stage.

Sources: Y. Huang et al., GPipe, 2019; D. Narayanan et al., 2021, as above (1F1B, interleaved); P.
Qi et al., Zero Bubble Pipeline Parallelism, 2023 (the schedule ZB-H1).
"""
_INTERLEAVED = re.compile(r"interleaved:(\d{1,4})")


def chunks_named(name: str) -> int:
    """Return a schedule's chunks per stage; `ConfigError` if unknown.

    >>> chunks_named("interleaved:8"), chunks_named("1f1b")
    (8, 1)
    """
    match = _INTERLEAVED.fullmatch(name)
    if match and int(match[1]) >= 1:
        return int(match[1])
    if name in NAMES and not name.startswith("interleaved"):
        return 1
    hint = "write how many chunks a stage has, as in interleaved:2"
    if not name.startswith("interleaved"):
        hint = suggestion(name, (*NAMES, "a file"))
    raise ConfigError(f"{option('schedule')} is {name!r}", hint=hint)


def schedule_named(name: str, *, stages: int, micro_batches: int) -> Schedule:
    """Return the schedule with a name.

    Raises `ConfigError` for an unknown name, and for micro-batches that an interleaved schedule
    cannot divide by the stages.

    >>> schedule = schedule_named("1f1b", stages=2, micro_batches=3)
    >>> [" ".join(map(str, passes)) for passes in schedule.order]
    ['F0 F1 B0 F2 B1 B2', 'F0 B0 F1 B1 F2 B2']
    """
    chunks = chunks_named(name)
    if min(stages, micro_batches) < 1:
        raise ConfigError(f"{stages} stages and {micro_batches} micro-batches are not a pipeline")
    if chunks > 1 and micro_batches % stages:
        below, above = micro_batches // stages * stages, -(-micro_batches // stages) * stages
        raise ConfigError(
            f"{micro_batches} micro-batches are not divided by the {stages} stages of {name}",
            hint=f"give {f'{below} or ' if below else ''}{above} micro-batches, or take 1f1b",
        )
    match name:
        case "gpipe":
            order = [_gpipe(micro_batches)] * stages
        case "zero-bubble":
            order = [_zero_bubble(stage, stages, micro_batches) for stage in range(stages)]
        case _:
            order = [_one_to_one(stage, stages, micro_batches, chunks) for stage in range(stages)]
    return Schedule(name=name, micro_batches=micro_batches, chunks=chunks, order=tuple(order))


def _gpipe(micro_batches: int) -> tuple[Action, ...]:
    """Order all forward passes, then all backward passes in reverse."""
    numbers = range(micro_batches)
    forward = [Action(Pass.FORWARD, number) for number in numbers]
    return (*forward, *(Action(Pass.BACKWARD, number) for number in reversed(numbers)))


def _one_to_one(stage: int, stages: int, micro_batches: int, chunks: int) -> tuple[Action, ...]:
    """Order a warm-up, then forward and backward alternately.

    With several chunks, a stage computes one micro-batch per stage with one chunk, then with the
    next.
    """
    turns = list(_interleaved_order(stages, micro_batches, chunks))
    forward = [Action(Pass.FORWARD, number, chunk) for number, chunk in turns]
    backward = [Action(Pass.BACKWARD, number, chunks - 1 - chunk) for number, chunk in turns]
    later_stages = stages - 1 - stage
    filling = later_stages if chunks == 1 else 2 * later_stages + (chunks - 1) * stages
    filling = min(filling, len(forward))
    steady = len(forward) - filling
    pairs = zip(forward[filling:], backward[:steady], strict=True)
    return (*forward[:filling], *(action for pair in pairs for action in pair), *backward[steady:])


def _interleaved_order(stages: int, micro_batches: int, chunks: int) -> Iterator[tuple[int, int]]:
    """Yield micro-batches and chunks in every stage's forward order."""
    if chunks == 1:
        yield from ((number, 0) for number in range(micro_batches))
        return
    for first in range(0, micro_batches, stages):
        for chunk in range(chunks):
            yield from ((first + number, chunk) for number in range(stages))


def _zero_bubble(stage: int, stages: int, micro_batches: int) -> tuple[Action, ...]:
    """Order 1F1B with delayed weight gradients (ZB-H1).

    The delay is as many micro-batches as there are preceding stages. At the end they fill the
    stage's idle time. The schedule holds as many micro-batches as there are stages, so it needs no
    more memory than the first stage of 1F1B.
    """
    filling = min(micro_batches, stages - 1 - stage)
    order = [Action(Pass.FORWARD, number) for number in range(filling)]
    for number in range(micro_batches):
        if filling + number < micro_batches:
            order.append(Action(Pass.FORWARD, filling + number))
        order.append(Action(Pass.BACKWARD, number))
        if number >= stage:
            order.append(Action(Pass.WEIGHTS, number - stage))
    late = range(max(0, micro_batches - stage), micro_batches)
    return (*order, *(Action(Pass.WEIGHTS, number) for number in late))


_WORD = re.compile(rf"([FBW])(\d{{1,{MOST_DIGITS}}})(?:\.(\d{{1,{MOST_DIGITS}}}))?")


def read_schedule(text: str, *, name: str) -> Schedule:
    r"""Parse the text of a schedule.

    Raises `ConfigError` with the line for a word that is no pass, and for a schedule that can't
    run.

    >>> schedule = read_schedule("0: F0 F1 B0 B1\n1: F0 B0 F1 B1", name="mine")
    >>> schedule.stages, schedule.micro_batches, schedule.chunks
    (2, 2, 1)
    """
    order: list[tuple[Action, ...]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        passes_text = line.partition("#")[0]
        before_colon, colon, listed = passes_text.partition(":")
        words = (listed if colon else before_colon).split()
        if words:
            order.append(tuple(_action(word, f"{name}:{number}") for word in words))
    if not order:
        raise ConfigError("no stage has a pass", location=name, hint="write a line for each stage")
    actions = [action for stage_order in order for action in stage_order]
    schedule = Schedule(
        name=name,
        micro_batches=1 + max(action.micro_batch for action in actions),
        chunks=1 + max(action.chunk for action in actions),
        order=tuple(order),
    )
    if schedule.micro_batches * schedule.chunks > len(actions):
        raise ConfigError(
            f"micro-batch {schedule.micro_batches - 1} is named, but there are {len(actions)} "
            "passes in all",
            location=name,
            hint="number micro-batches and chunks from 0 on",
        )
    check_schedule(schedule, location=name)
    return schedule


def _action(word: str, location: str) -> Action:
    match = _WORD.fullmatch(word)
    if match is None:
        raise ConfigError(
            f"{word[:40]!r} is not a pass", location=location, hint="write F0, B0 or W0, or F0.1"
        )
    return Action(Pass(match[1]), int(match[2]), int(match[3] or 0))


def load_schedule(path: Path) -> Schedule:
    """Read a schedule's file; `ConfigError` if unreadable or wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", location=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError("is no text", location=str(path), hint="give UTF-8") from error
    return read_schedule(text, name=str(path))
