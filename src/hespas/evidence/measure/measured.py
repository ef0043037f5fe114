"""Run a workload's step on this machine, and time it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from statistics import median

import msgspec

from hespas.base.fields import Group, Use, check_options, declare, refuse_unused
from hespas.base.frozen import frozen
from hespas.base.home import cache_home
from hespas.base.process import Limits, scratch_directory
from hespas.base.progress import Stage, stage
from hespas.base.question import PROGRAM_FILE, ask
from hespas.errors import ConfigError, UnsupportedError, option
from hespas.prediction import machines
from hespas.prediction.options import PredictOptions
from hespas.prediction.result import Prediction
from hespas.prediction.workload import source_of
from hespas.sources.exported import Workload
from hespas.sources.workload import export_cache, read_workload
from hespas.xla.hlo.forms import is_hlo
from hespas.xla.run import messages

AUTO = "auto"
"""The value for a coordinator that JAX finds itself, in the cluster's environment."""


class Platform(Enum):
    """The step's platform; ``AUTO`` is the best that JAX finds."""

    AUTO = "auto"
    CPU = "cpu"
    GPU = "gpu"
    TPU = "tpu"


NAMED_COORDINATOR = Use(f" with {option('coordinator')} {AUTO}")


@frozen
class MeasureOptions:
    """How steps are run and timed.

    ``coordinator``, ``num_processes`` and ``process_id`` are those of ``jax.distributed``, for a
    program on the devices of several hosts, on each of which the same command is started. Raises
    `ConfigError` for invalid numbers and for incomplete descriptions of processes.

    >>> MeasureOptions(steps=20).warm_up
    3
    """

    platform: Platform = declare(
        help="What to run on.", default_text="auto, the best there is", default=Platform.AUTO
    )
    steps: int = declare(help="Steps that are timed.", least=1, default=10)
    warm_up: int = declare(
        help="Steps before them that are not.", least=0, aliases=("warmup",), default=3
    )
    coordinator: str | None = declare(
        help="Run on several hosts: host:port of process 0, the same for all, or auto where "
        "JAX can ask the cluster (Slurm, TPU slices).",
        metavar="ADDRESS",
        group=Group.NETWORK,
    )
    num_processes: int | None = declare(
        help="How many processes there are in all.",
        group=Group.NETWORK,
        needs="coordinator",
        applies_to=(NAMED_COORDINATOR,),
    )
    process_id: int | None = declare(
        help="Which of them this one is, from 0.",
        group=Group.NETWORK,
        needs="coordinator",
        applies_to=(NAMED_COORDINATOR,),
    )
    time_limit_s: float = declare(
        help="How long compiling and running may take.",
        name="time_limit",
        unit="s",
        group=Group.CACHES,
        default_text="1800s",
        default=1800.0,
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.coordinator is not None:
            self._check_processes(self.coordinator)

    def _check_processes(self, coordinator: str) -> None:
        count, own = self.num_processes, self.process_id
        refuse_unused(self, {NAMED_COORDINATOR: coordinator == AUTO})
        if coordinator == AUTO:
            return
        host, colon, port = coordinator.rpartition(":")
        if not host or not colon or not port.isdecimal():
            raise ConfigError(
                f"{option('coordinator')} is {coordinator!r}",
                hint=f"give host:port, as in 10.0.0.1:1234, or {AUTO}",
            )
        if count is None or own is None:
            missing = "num_processes" if count is None else "process_id"
            raise ConfigError(
                f"{option('coordinator')} is given, and {option(missing)} is not",
                hint="give both, or drop it",
            )
        if not 0 <= own < count:
            raise ConfigError(
                f"{option('process_id')} is {own}, of {count} processes",
                hint=f"give 0 to {count - 1}" if count > 0 else "give 1 process or more",
            )


class Measurement(messages.StepAnswer, frozen=True, kw_only=True):
    """Timed steps of a workload on all devices of this process."""

    workload: str
    warm_up: int

    @property
    def median_s(self) -> float:
        """The step's time: the median of all steps."""
        return median(self.durations_s)

    @property
    def p10_s(self) -> float:
        """The time that a tenth of the steps don't exceed."""
        return percentile(self.durations_s, 0.1)

    @property
    def p90_s(self) -> float:
        """The time that nine tenths of the steps don't exceed."""
        return percentile(self.durations_s, 0.9)

    @property
    def spread(self) -> float:
        """The distance of both percentiles over the median."""
        return (self.p90_s - self.p10_s) / self.median_s

    def error_of(self, prediction: Prediction) -> float:
        """Return a prediction's relative error, negative if too fast."""
        return prediction.step_time_s / self.median_s - 1


def percentile(durations_s: Sequence[float], share: float) -> float:
    """Return the duration that a ``share`` don't exceed, interpolated linearly.

    >>> percentile([1.0, 2.0, 4.0], 0.5), percentile([1.0, 2.0, 4.0], 0.75)
    (2.0, 3.0)
    """
    ordered = sorted(durations_s)
    place = share * (len(ordered) - 1)
    lower = int(place)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (place - lower) * (ordered[upper] - ordered[lower])


def measure_step(options: PredictOptions, how: MeasureOptions) -> Measurement:
    """Compile a workload for this machine, and time its steps.

    The workload is found, exported and divided as `hespas.prediction.composition.predict` does it.
    Only the program's ``options`` and flags of XLA have an effect. Raises `HardwareError` if there
    is no device of the platform or the step doesn't fit into its memory, `DeviceCountError` for too
    few devices, `UnsupportedError` for a program that calls a library that the platform lacks, and
    `ToolError`, naming a log that is kept, for one that crashes or takes longer than the limit.
    """
    workload = _workload(options)
    request = messages.StepRequest(
        name=workload.name,
        platform="" if how.platform is Platform.AUTO else how.platform.value,
        devices=_stated_devices(options),
        steps=how.steps,
        warm_up=how.warm_up,
        flags=dict(options.compile.options.flags),
        processes=_processes(how),
    )
    steps = f"{how.warm_up + how.steps} steps of {workload.name}"
    with stage(Stage.MEASURE, steps, kind=workload.name, size=len(workload.content)):
        answer = _run(request, workload.content, Limits(time_s=how.time_limit_s))
    answered = msgspec.structs.asdict(answer)
    answered["notes"] = (*workload.notes, *answer.notes, *_notes(answer))
    return Measurement(workload=workload.name, warm_up=how.warm_up, **answered)


def _stated_devices(options: PredictOptions) -> int | None:
    system = machines.system_of(options.network)
    return options.program.devices if system is None else system.device_count


def _workload(options: PredictOptions) -> Workload:
    source = source_of(options)
    estimate = options.estimate
    exports = None
    if not (estimate.disable_cache or estimate.in_memory_only_cache):
        exports = export_cache(estimate.cache_dir or cache_home() / "exported")
    workload = read_workload(source, cache=exports)
    if is_hlo(workload.content):
        raise UnsupportedError(
            "HLO can't be run as it is: it is for the compiler that wrote it",
            location=workload.name,
            hint="give the StableHLO that it was made of",
        )
    return workload


def _processes(how: MeasureOptions) -> messages.Processes | None:
    if how.coordinator is None:
        return None
    if how.coordinator == AUTO:
        return messages.Processes()
    return messages.Processes(
        coordinator=how.coordinator, count=how.num_processes, own=how.process_id
    )


def _notes(answer: messages.StepAnswer) -> tuple[str, ...]:
    notes: list[str] = []
    if answer.platform == "cpu" and answer.devices > 1:
        notes.append(
            f"the {answer.devices} devices are virtual and share this machine's cores: the time "
            "says nothing about as many machines"
        )
    if answer.made_inputs:
        notes.append(
            f"{answer.made_inputs} inputs that a step used up were filled anew, outside of the "
            "time that is counted"
        )
    return tuple(notes)


def _run(request: messages.StepRequest, source: bytes, limits: Limits) -> messages.StepAnswer:
    """Run steps in a process, whose directory stays on failure."""
    with scratch_directory("measure") as home:
        (home / PROGRAM_FILE).write_bytes(source)
        return ask(
            "hespas.xla.run.step",
            request,
            messages.StepAnswer,
            name="the measured program",
            directory=home,
            limits=limits,
        )
