"""The two network models, and what each of them can be told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from hespas.config.suggest import choice
from hespas.errors import ConfigError, SimulationError
from hespas.hardware.cluster import Cluster
from hespas.hardware.system import System
from hespas.schedule.tasks import Job, TaskGraph, as_job
from hespas.simulate.astra.simulate import simulate
from hespas.simulate.imperfect import on_cluster
from hespas.simulate.network import Network
from hespas.simulate.timeline import Timeline


class Model(Enum):
    """Who decides how long communication takes."""

    ASTRA_SIM = "astra-sim"
    HESPAS = "hespas"


def model_named(name: str) -> Model:
    """Return the model of a name; `ConfigError` for any other.

    >>> model_named("hespas")
    <Model.HESPAS: 'hespas'>
    """
    return choice(name, Model, what="the model")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """A model with what it is told; None stands for what isn't given.

    ``network``, ``queues_per_dimension``, ``rendezvous`` and ``injection_scale`` are ASTRA-sim's,
    ``algorithm`` is for hespas' own model: see `hespas.simulate.flow.simulate.simulate_flow`.
    Raises `ConfigError` for what has no effect on the model.
    """

    model: Model = Model.ASTRA_SIM
    network: Network | None = None
    queues_per_dimension: int | None = None
    rendezvous: bool = False
    injection_scale: float | None = None
    algorithm: str | None = None
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        given = {
            "--network": (Model.ASTRA_SIM, self.network),
            "--num-queues-per-dim": (Model.ASTRA_SIM, self.queues_per_dimension),
            "--rendezvous-protocol": (Model.ASTRA_SIM, self.rendezvous or None),
            "--injection-scale": (Model.ASTRA_SIM, self.injection_scale),
            "--algorithm": (Model.HESPAS, self.algorithm),
        }
        for flag, (owner, value) in given.items():
            if value is not None and owner is not self.model:
                message = f"{flag} has no effect on the model {self.model.value}"
                hint = f"leave it out, or use --model {owner.value}"
                raise ConfigError(message, hint=hint)


def simulate_job(work: Job | TaskGraph, system: System, choice: ModelChoice) -> Timeline:
    """Return when each device does what.

    Raises `hespas.errors.DeviceCountError` if the job and the system differ in size, and
    `SimulationError` for what the model doesn't cover.
    """
    try:
        return _simulated(work, system, choice)
    except OverflowError as error:
        raise SimulationError(
            "a transfer or a task takes longer than can be computed with",
            location=system.name,
            hint="check its bandwidths and latencies, and the times of the job",
        ) from error


def _simulated(work: Job | TaskGraph, system: System, choice: ModelChoice) -> Timeline:
    job = as_job(work)
    cluster = choice.cluster
    if cluster is not None:
        job = on_cluster(job, cluster)
    match choice.model:
        case Model.HESPAS:
            # ASTRA-sim's model need not wait for what this one imports.
            from hespas.simulate.flow.choices import SPECIFIED  # noqa: PLC0415
            from hespas.simulate.flow.simulate import simulate_flow  # noqa: PLC0415

            algorithm = choice.algorithm or SPECIFIED
            return simulate_flow(job, system, algorithm=algorithm, cluster=cluster)
        case Model.ASTRA_SIM:
            return _simulate_astra_sim(job, system, choice)
        case _:
            assert_never(choice.model)


def _simulate_astra_sim(job: Job, system: System, choice: ModelChoice) -> Timeline:
    if choice.cluster is not None and choice.cluster.links:
        message = "links that differ have no model in ASTRA-sim"
        hint = "use --model hespas"
        raise SimulationError(message, location=choice.cluster.source, hint=hint)
    if not system.dimensions:
        message = "the system has no files for ASTRA-sim"
        raise SimulationError(message, location=system.name, hint="use --model hespas")
    scale = choice.injection_scale
    return simulate(
        job,
        system,
        network=choice.network or Network.CONGESTION_UNAWARE,
        queues_per_dimension=choice.queues_per_dimension or 1,
        rendezvous=choice.rendezvous,
        injection_scale=1.0 if scale is None else scale,
    )
