"""The network models, the settings of each, and the one function that simulates a job by any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from hespas.base.suggest import choice, suggestion
from hespas.errors import ConfigError, SimulationError, option
from hespas.hardware.cluster import Cluster
from hespas.hardware.interconnect import Dimensions
from hespas.hardware.system import System
from hespas.simulate.astra.plan import ContentionModel
from hespas.simulate.jobs import check_devices, is_replay, on_cluster
from hespas.simulate.timeline import Timeline
from hespas.tasks.graph import Job, TaskGraph, as_job

AUTO = "auto"
"""Each collective runs by the algorithm that is fastest on an idle network."""
SPECIFIED = "specified"
"""Each collective runs by the algorithm that the network specifies, else by the fastest one."""
HIERARCHICAL = "hierarchical"
"""One dimension of the network after the other, each by its fastest algorithm."""

MULTI_AXIS = "multi-axis-rings"
"""The data divided among the axes of a torus, each part along one axis after the other."""
HAMILTONIAN = "hamiltonian-ring"
"""One ring from neighbour to neighbour through a torus or a mesh, in both directions."""

# Names alone, since importing all algorithms takes as long as all other options.
ALGORITHMS = (
    "bidirectional-ring", "binomial-tree", "direct", "dissemination", "double-binary-tree",
    "halving-doubling", "in-switch", "ring",
)  # fmt: skip
ON_AXES = (MULTI_AXIS, HAMILTONIAN)
"""Those along the axes of a torus or a mesh."""
NETWORK_WIDE = (HIERARCHICAL, *ON_AXES)
"""Those that are algorithms of a network rather than of a list of members."""
CHOICES = (SPECIFIED, AUTO, *ALGORITHMS, *NETWORK_WIDE)
_BY_SPELLING = {name.replace("-", ""): name for name in CHOICES} | {"told": SPECIFIED}


def choice_named(text: str) -> str | None:
    """Return the choice that a text names, however it is spelled; None if there is none.

    >>> choice_named("halvingDoubling"), choice_named("halving_doubling")
    ('halving-doubling', 'halving-doubling')
    """
    return _BY_SPELLING.get(text.replace("-", "").replace("_", "").lower())


def parse_choice(text: str) -> str:
    """Return the choice that a text names; `ConfigError` if there is none."""
    choice = choice_named(text)
    if choice is None:
        raise ConfigError(f"the algorithm is {text!r}", hint=suggestion(text, CHOICES))
    return choice


class Model(Enum):
    """The model that says how long communication takes."""

    ASTRA_SIM = "astra-sim"
    HESPAS = "hespas"


def model_named(name: str) -> Model:
    """Return the model of a name; `ConfigError` for any other.

    >>> model_named("hespas")
    <Model.HESPAS: 'hespas'>
    """
    return choice(name, Model, what="the model")


_OWNERS = {
    "network": Model.ASTRA_SIM,
    "num_queues_per_dim": Model.ASTRA_SIM,
    "rendezvous_protocol": Model.ASTRA_SIM,
    "injection_scale": Model.ASTRA_SIM,
    "algorithm": Model.HESPAS,
    "links": Model.HESPAS,
}
"""Which model has a setting, by the name of its option; links are those of an imperfect cluster."""


def default_model(system: System | None, given: Mapping[str, object]) -> Model:
    """Return the model for a system where the user names none.

    ``given`` are settings by the names of their options, None for those that aren't: the first one
    that only one model has decides. Otherwise it is hespas' own model where links of the system
    were measured, as in presets of GPUs, where collectives use several axes at once, as in slices
    of TPUs, and where nothing describes a system to ASTRA-sim; ASTRA-sim's everywhere else.
    """
    for name, value in given.items():
        if value is not None:
            return _OWNERS[name]
    if system is None:
        return Model.HESPAS
    network = system.interconnect
    if network is None:
        return Model.ASTRA_SIM if system.dimensions else Model.HESPAS
    fabric = network.fabric
    measured = isinstance(fabric, Dimensions) and any(each.measured for each in fabric.dimensions)
    named = {name for names in network.algorithms.values() for name in names}
    is_own = measured or named & set(ON_AXES) or not system.dimensions
    return Model.HESPAS if is_own else Model.ASTRA_SIM


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """A network model with its settings; None stands for the default.

    ``network``, ``queues_per_dimension``, ``rendezvous`` and ``injection_scale`` are settings of
    ASTRA-sim's model, ``algorithm`` is one of hespas' own: see
    `hespas.simulate.astra.simulate.simulate` and `hespas.simulate.flow.simulate.simulate_flow`.
    ``cluster`` says what is not perfect. Raises `ConfigError` for a setting of the other model.
    """

    model: Model = Model.ASTRA_SIM
    network: ContentionModel | None = None
    queues_per_dimension: int | None = None
    rendezvous: bool = False
    injection_scale: float | None = None
    algorithm: str | None = None
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        settings = {
            "network": self.network,
            "num_queues_per_dim": self.queues_per_dimension,
            "rendezvous_protocol": self.rendezvous or None,
            "injection_scale": self.injection_scale,
            "algorithm": self.algorithm,
        }
        for name, value in settings.items():
            owner = _OWNERS[name]
            if value is not None and owner is not self.model:
                message = f"{option(name)} has no effect on the model {self.model.value}"
                hint = f"leave it out, or use {option('model')} {owner.value}"
                raise ConfigError(message, hint=hint)


def simulate_job(work: Job | TaskGraph, system: System, choice: ModelChoice) -> Timeline:
    """Return when each device does what, by the model that is chosen.

    Where a cluster has devices that are slow, late or jitter, the job is simulated a second time
    with every device as specified, so that the timeline says how much time they cost. Raises
    `hespas.errors.DeviceCountError` if the job and the system differ in size, and `SimulationError`
    for what the model doesn't cover.
    """
    job, cluster = as_job(work), choice.cluster
    timeline = _simulated(job, system, choice, cluster)
    if cluster is None:
        return timeline
    timeline = replace(timeline, imperfections=(cluster.assumption,))
    if not cluster.changes_devices:
        return timeline
    return replace(timeline, as_specified=_simulated(job, system, choice, None).slowest)


def simulated_again(
    work: Job | TaskGraph, system: System, choice: ModelChoice
) -> Callable[[Job | TaskGraph], Timeline]:
    """Return what simulates jobs that differ from ``work`` in durations alone, as `simulate_job`.

    What does not depend on durations is found once.
    """
    if choice.model is not Model.HESPAS or choice.cluster is not None:
        return lambda job: simulate_job(job, system, choice)
    # As in `_simulated`.
    from hespas.simulate.flow.simulate import planned_flow  # noqa: PLC0415

    return planned_flow(work, system, algorithm=choice.algorithm or SPECIFIED)


def _simulated(job: Job, system: System, choice: ModelChoice, devices: Cluster | None) -> Timeline:
    """Return the timeline on devices as ``devices`` has them, or all as specified."""
    try:
        job = job if devices is None else on_cluster(job, devices)
        check_supported(system, choice)
        match choice.model:
            case Model.HESPAS:
                # Neither model need wait for what the other one imports.
                from hespas.simulate.flow.simulate import simulate_flow  # noqa: PLC0415

                algorithm = choice.algorithm or SPECIFIED
                return simulate_flow(job, system, algorithm=algorithm, cluster=choice.cluster)
            case Model.ASTRA_SIM:
                from hespas.simulate.astra.simulate import simulate  # noqa: PLC0415 - as above

                scale = choice.injection_scale
                return simulate(
                    job,
                    system,
                    network=choice.network or ContentionModel.CONGESTION_UNAWARE,
                    queues_per_dimension=choice.queues_per_dimension or 1,
                    rendezvous=choice.rendezvous,
                    injection_scale=1.0 if scale is None else scale,
                )
            case _:
                assert_never(choice.model)
    except OverflowError as error:
        raise SimulationError(
            "a transfer or a task takes longer than can be computed with",
            location=system.name,
            hint="check its bandwidths and latencies, and the times of the job",
        ) from error


def check_choice(system: System, choice: ModelChoice) -> None:
    """Raise `SimulationError` for what can be refused of a model's settings without a job."""
    check_supported(system, choice)
    cluster = choice.cluster
    if cluster is not None:
        check_devices(cluster, system.device_count)
    if choice.model is Model.HESPAS:
        # ASTRA-sim's model need not wait for what this one imports.
        from hespas.simulate.flow.simulate import check_network  # noqa: PLC0415

        check_network(system, cluster)


def check_supported(system: System, choice: ModelChoice) -> None:
    """Raise `SimulationError` for a system or a cluster that the model has no means for.

    What it doesn't cover of a job, the model itself says.
    """
    changes_devices = choice.cluster is not None and choice.cluster.changes_devices
    if changes_devices and system.options.get("roofline-enabled") and not is_replay(system):
        raise SimulationError(
            "slow devices have no effect on durations that roofline-enabled computes",
            location=system.name,
            hint="give the traces durations, or leave slow and late devices out",
        )
    if choice.model is not Model.ASTRA_SIM:
        return
    hint = f"use {option('model')} {Model.HESPAS.value}"
    if choice.cluster is not None and choice.cluster.links:
        message = "links that differ have no model in ASTRA-sim"
        raise SimulationError(message, location=choice.cluster.source, hint=hint)
    if not system.dimensions:
        message = "the system has no files for ASTRA-sim"
        raise SimulationError(message, location=system.name, hint=hint)
