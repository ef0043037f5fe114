"""Recorded steps of PyTorch in stages of a pipeline, built by hand."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hespas.program.recorded import (
    CollectiveCall,
    Pipeline,
    RecordedStep,
    RecordedTensor,
    RecordEvent,
)
from hespas.tasks.pipelining.schedule import Pass, schedule_named
from recorded_steps import COMPUTE, Recorder

_CLASSES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}


def recorded_pipeline(
    schedule: str = "1f1b",
    *,
    stages: int = 4,
    micro_batches: int = 8,
    copies: int = 1,
    layer: tuple[int, int] = (8192, 8192),
    has_norm: bool = False,
) -> RecordedStep:
    """Return a pipeline of equal stages, each of which has ``copies`` devices.

    A forward pass is one product, a backward pass two. Messages have few bytes. ``has_norm`` ends
    the step with a sum over all devices.
    """
    ranks = tuple(range(0, stages * copies, copies))
    orders = schedule_named(schedule, stages=stages, micro_batches=micro_batches).order
    steps: list[RecordedStep] = []
    for place, order in enumerate(orders):
        recorder = Recorder(world_size=stages * copies)
        weights = recorder.tensor(layer[1], layer[1], role="parameter", is_given=True)
        given = recorder.tensor(*layer, role="input", is_given=True)
        message = recorder.tensor(64, 64, role="input", is_given=True)
        for action in order:
            is_forward = action.kind is Pass.FORWARD
            before, after = (place - 1, place + 1) if is_forward else (place + 1, place - 1)
            recorder.phase = "forward" if is_forward else "backward"
            if 0 <= before < stages:
                _message(recorder, "receive", message, (place, before), ranks)
            for _ in range(1 if is_forward else 2):
                recorder.product(given, weights)
            if 0 <= after < stages:
                _message(recorder, "send", message, (place, after), ranks)
        if has_norm:
            recorder.wait(recorder.collective("all_reduce", message, message))
        pipeline = Pipeline(
            ranks=ranks,
            schedule=_CLASSES[schedule],
            micro_batches=micro_batches,
            chunks=1,
            in_flight=micro_batches if schedule == "gpipe" else stages - place,
        )
        mesh = (("pp", stages), ("dp", copies))
        step = recorder.step()
        steps.append(msgspec.structs.replace(step, rank=ranks[place], pipeline=pipeline, mesh=mesh))
    return joined(steps)


def waiting_stages() -> RecordedStep:
    """Return two stages that each receive before they send."""
    pipeline = Pipeline(
        ranks=(0, 1), schedule="Schedule1F1B", micro_batches=1, chunks=1, in_flight=1
    )
    steps: list[RecordedStep] = []
    for rank in (0, 1):
        recorder = Recorder(world_size=2)
        tensor = recorder.tensor(64, 64, is_given=True)
        _message(recorder, "receive", tensor, (rank, 1 - rank), (0, 1))
        recorder.product(tensor, tensor)
        _message(recorder, "send", tensor, (rank, 1 - rank), (0, 1))
        steps.append(msgspec.structs.replace(recorder.step(), rank=rank, pipeline=pipeline))
    return joined(steps)


def joined(steps: Sequence[RecordedStep]) -> RecordedStep:
    """Return the step of the first rank with those of others."""
    first, *others = steps
    return msgspec.structs.replace(first, stages=tuple(others))


def without_first(step: RecordedStep, kind: str) -> RecordedStep:
    """Return a step without its first message of a kind."""
    calls = list(step.calls)
    calls.remove(
        next(call for call in calls if isinstance(call, CollectiveCall) and call.kind == kind)
    )
    return msgspec.structs.replace(step, calls=tuple(calls))


def _message(
    recorder: Recorder,
    kind: str,
    tensor: RecordedTensor,
    places: tuple[int, int],
    ranks: tuple[int, ...],
) -> None:
    """Append a message on a stream of its own; a receive lets the computation wait."""
    own, peer = places
    stream = 10 + 2 * peer + (kind == "send")
    recorder.events += 1
    if kind == "send":
        recorder.calls.append(RecordEvent(stream=COMPUTE, event=recorder.events))
        recorder.wait(recorder.events, stream=stream)
    recorder.calls.append(
        CollectiveCall(
            kind=kind,
            ranks=(ranks[own], ranks[peer]),
            inputs=(tensor,) if kind == "send" else (),
            outputs=(tensor,) if kind == "receive" else (),
            group=ranks,
            stream=stream,
            place="train.py:20",
        )
    )
    if kind == "receive":
        recorder.calls.append(RecordEvent(stream=stream, event=recorder.events))
        recorder.wait(recorder.events)
