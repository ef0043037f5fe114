"""Predict a recorded step whose ranks are stages of a pipeline.

Each stage has a program of its own. They are priced one by one and simulated together: messages of
one wait for those of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hespas.errors import ConfigError, SimulationError, UnsupportedError
from hespas.prediction.machines import model_of
from hespas.prediction.options import PredictOptions
from hespas.prediction.result import Prediction, RecordedStage
from hespas.program.groups import groups_of_all
from hespas.simulate.models import joined_job, simulate_job
from hespas.tasks.graph import Job, TaskGraph, as_job


def with_stages(
    first: Prediction, others: Sequence[Prediction], options: PredictOptions
) -> Prediction:
    """Return the prediction of all stages, given those of each without a timeline.

    It shows the device that ends last and waits least; memory is that of the fullest stage. Raises
    `ConfigError` without a cluster, and `UnsupportedError` for stages whose messages do not match.
    """
    program, system = first.graph.program, first.system
    recorded = program.recorded
    if system is None or recorded is None or recorded.pipeline is None:
        raise ConfigError("stages of a pipeline need a cluster", location=program.source)
    predicted = {_rank(prediction): prediction for prediction in (first, *others)}
    ranks = recorded.pipeline.ranks
    groups = groups_of_all(ranks, world_size=system.device_count).listed()
    stages = tuple(
        RecordedStage(
            devices=tuple(sorted(members[place] for members in groups)), prediction=predicted[rank]
        )
        for place, rank in enumerate(ranks)
    )
    tasks = [stage.prediction.tasks for stage in stages]
    try:
        job = job_of_stages(stages, tasks, system.device_count)
        timeline = simulate_job(job, system, model_of(options.network, system))
    except SimulationError as error:
        raise UnsupportedError(
            f"messages between the stages do not match: {error.message}",
            location=error.location or program.source,
            hint="let each stage receive what another one sends to it",
        ) from error
    last = timeline.slowest.devices[0]
    shown = next(stage.prediction for stage in stages if last in stage.devices)
    fullest = max((stage.prediction for stage in stages), key=lambda one: one.memory.peak_bytes)
    return replace(shown, timeline=timeline, memory=fullest.memory, stages=stages, work=first.work)


def job_of_stages(
    stages: Sequence[RecordedStage], tasks: Sequence[TaskGraph], device_count: int
) -> Job:
    """Return the job of all devices, given each stage's tasks.

    Raises `SimulationError` as `hespas.simulate.models.joined_job` does.
    """
    jobs = [(as_job(own), stage.devices) for own, stage in zip(tasks, stages, strict=True)]
    return joined_job(jobs, device_count, location=stages[0].prediction.graph.program.source)


def _rank(prediction: Prediction) -> int:
    recorded = prediction.graph.program.recorded
    return 0 if recorded is None else recorded.rank
