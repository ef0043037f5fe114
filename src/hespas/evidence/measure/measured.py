"""Run a workload's step on the devices that are there, and say how long it took."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from hespas import errors
from hespas.base.files import cache_home
from hespas.base.process import LOG_NAME, Limits, last_words, run_program, scratch_directory
from hespas.base.progress import Stage, stage
from hespas.errors import HespasError, ToolError, UnsupportedError
from hespas.evidence.measure.options import AUTO, MeasureOptions, Platform
from hespas.prediction import machines
from hespas.prediction.options import PredictOptions
from hespas.prediction.result import Prediction
from hespas.prediction.workload import source_of
from hespas.sources.workload import Workload, export_cache, read_workload
from hespas.xla.compile.messages import MemoryAnalysis, Refused
from hespas.xla.hlo.forms import is_hlo
from hespas.xla.run import messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Steps that were timed: each to its end on all devices of this process.

    ``memory`` is what the compiler says that a device needs; ``free_bytes`` is what was free on
    each, None where that is not known. ``versions`` are of what compiled and ran it.
    """

    workload: str
    devices: int
    processes: int
    platform: str
    device_kind: str
    warm_up: int
    durations_s: tuple[float, ...]
    compile_s: float
    memory: MemoryAnalysis
    free_bytes: int | None
    versions: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def median_s(self) -> float:
        """The step's time: that of the middle one."""
        return median(self.durations_s)

    @property
    def p10_s(self) -> float:
        """What a tenth of the steps took at most."""
        return percentile(self.durations_s, 0.1)

    @property
    def p90_s(self) -> float:
        """What nine tenths of the steps took at most."""
        return percentile(self.durations_s, 0.9)

    @property
    def spread(self) -> float:
        """How far the 10th and the 90th percentile are apart, over the median."""
        return (self.p90_s - self.p10_s) / self.median_s

    def error_of(self, prediction: Prediction) -> float:
        """Return how far off a prediction is: over what was measured, less one."""
        return prediction.step_time_s / self.median_s - 1


def percentile(durations_s: Sequence[float], share: float) -> float:
    """Return what ``share`` of the durations don't exceed, between two of them in proportion.

    >>> percentile([1.0, 2.0, 4.0], 0.5), percentile([1.0, 2.0, 4.0], 0.75)
    (2.0, 3.0)
    """
    ordered = sorted(durations_s)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def measure_step(options: PredictOptions, how: MeasureOptions) -> Measurement:
    """Compile a workload for the devices that are there, and time its steps.

    The workload is found, exported and divided as `hespas.prediction.composition.predict` does it.
    Nothing of the ``options`` has an effect but the program's, and flags of XLA. Raises
    `HardwareError` where there is no device of the platform or the step doesn't fit into its
    memory, `DeviceCountError` for too few, `UnsupportedError` for a program that calls what the
    platform lacks, and `ToolError`, naming a log that is kept, for one that crashes or takes longer
    than the limit.
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
    what = f"{how.warm_up + how.steps} steps of {workload.name}"
    with stage(Stage.MEASURE, what, kind=workload.name, size=len(workload.content)):
        answer = _run(request, workload.content, Limits(time_s=how.time_limit_s))
    return Measurement(
        workload=workload.name,
        devices=answer.devices,
        processes=answer.processes,
        platform=answer.platform,
        device_kind=answer.device_kind,
        warm_up=how.warm_up,
        durations_s=answer.durations_s,
        compile_s=answer.compile_s,
        memory=answer.memory,
        free_bytes=answer.free_bytes,
        versions=answer.versions,
        notes=(*workload.notes, *answer.notes, *_notes(answer)),
    )


def _stated_devices(options: PredictOptions) -> int | None:
    system = machines.system_of(options.network)
    return options.program.devices if system is None else system.device_count


def _workload(options: PredictOptions) -> Workload:
    source = source_of(options, machines.system_of(options.network))
    estimate = options.estimate
    kept = None
    if not (estimate.disable_cache or estimate.in_memory_only_cache):
        kept = export_cache(estimate.cache_dir or cache_home() / "exported")
    workload = read_workload(source, kept=kept)
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
    """Run steps in a process of its own; its directory is kept if that fails."""
    with scratch_directory("measure") as home:
        (home / messages.PROGRAM_FILE).write_bytes(source)
        (home / messages.REQUEST_FILE).write_bytes(messages.encode(request))
        run_program(
            [sys.executable, "-P", "-m", "hespas.xla.run.step"],
            name="the measured program",
            directory=home,
            limits=limits,
        )
        log = home / LOG_NAME
        try:
            answer = messages.decode_answer((home / messages.ANSWER_FILE).read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            raise ToolError(
                f"the measured program left no answer: {last_words(log)}", location=str(log)
            ) from error
        if isinstance(answer, Refused):
            kind: type[HespasError] = getattr(errors, answer.error)
            if kind is ToolError:
                raise ToolError(answer.message, location=str(log), hint=answer.hint)
            shutil.rmtree(home, ignore_errors=True)
            raise kind(answer.message, location=answer.location, hint=answer.hint)
        return answer
