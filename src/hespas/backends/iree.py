"""Time regions by IREE's compiler and benchmark: ``method: iree``."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from math import inf
from pathlib import Path

import msgspec

from hespas.backends.profiling import SAMPLED, Repeats, estimate_of, machine_name, without_peaks
from hespas.base.figures import Text
from hespas.base.files import write_file
from hespas.base.frozen import frozen
from hespas.base.process import Limits, run_program, scratch_directory
from hespas.errors import ExtraMissingError, ToolError, UnsupportedError, option
from hespas.hardware.device import Hardware
from hespas.price.estimate import Estimate
from hespas.price.methods import EstimatorSpec
from hespas.price.roofline import Roofline
from hespas.program.program import Program, Value
from hespas.program.types import TensorType
from hespas.program.work import CustomCallCost
from hespas.split.modules import stablehlo_text
from hespas.split.regions import Compute
from hespas.work.expand import expand, total
from hespas.xla.run.worker import EMPTY_MODULE

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_MACHINE = {"device": "local-task", "target_backends": "llvm-cpu"}
_CPU = "--iree-llvmcpu-target-cpu"
"""Without this flag IREE compiles for a generic processor, without AVX."""


class IreeCompile(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"
):
    """``compile`` of the method ``iree``, with dashes in keys."""

    device: Text | None = None
    target_backends: Text | None = None
    extra_args: tuple[str, ...] | None = None
    extra_runtime_args: tuple[str, ...] | None = None


class IreeHardware(Hardware, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hardware`` of the method ``iree``."""

    sample: bool | None = None
    compile: IreeCompile | None = None


@frozen
class Programs:
    """The paths of IREE's compiler and benchmark, and their flags."""

    compiler: str
    benchmark: str
    device: str
    target: str
    compile_flags: tuple[str, ...]
    run_flags: tuple[str, ...]
    repeats: Repeats

    def time(self, text: str, inputs: Sequence[str]) -> tuple[float, ...]:
        """Return the mean duration of each repetition, in seconds.

        Raises `ToolError`, naming the log, if IREE refuses the module or it fails.
        """
        with scratch_directory("iree") as directory:
            write_file(directory / "module.mlir", text.encode())
            return self._time(inputs, directory)

    def _time(self, inputs: Sequence[str], directory: Path) -> tuple[float, ...]:
        limits = Limits(time_s=self.repeats.limit_s)
        run_program(
            [
                self.compiler,
                "module.mlir",
                "--iree-input-type=stablehlo",
                f"--iree-hal-target-backends={self.target}",
                *self.compile_flags,
                "-o",
                "module.vmfb",
            ],
            name="IREE's compiler",
            directory=directory,
            limits=limits,
        )
        done = run_program(
            [
                self.benchmark,
                "--module=module.vmfb",
                f"--device={self.device}",
                "--function=main",
                "--benchmark_format=json",
                f"--benchmark_repetitions={self.repeats.least_runs}",
                f"--benchmark_min_time={self.repeats.enough_s / self.repeats.least_runs:g}s",
                *self.run_flags,
                *(f"--input={argument}" for argument in inputs),
            ],
            name="IREE's benchmark",
            directory=directory,
            limits=limits,
        )
        return _durations(done.log)


def _durations(log: Path) -> tuple[float, ...]:
    """Parse repetitions from a benchmark's log that ends with JSON."""
    text = log.read_text(errors="replace")
    try:
        report = json.loads(text[text.index("{\n") :])
        runs = [run for run in report["benchmarks"] if run["run_type"] == "iteration"]
        durations_s = tuple([float(run["real_time"]) * _UNITS[run["time_unit"]] for run in runs])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ToolError("IREE's benchmark printed no times", location=str(log)) from error
    if not durations_s or not all(0 < duration_s < inf for duration_s in durations_s):
        shown = ", ".join(f"{duration_s:g} s" for duration_s in durations_s) or "none"
        raise ToolError(f"IREE's benchmark printed impossible times: {shown}", location=str(log))
    return durations_s


@frozen
class IreeProfile:
    """Times regions on this machine; ``fallback`` prices refused ones.

    Without a fallback a refusal is an error. An empty module runs before all others: if that fails,
    IREE's flags are wrong, and no region is refused.
    """

    method: str = "iree"
    programs: Programs
    fallback: Roofline | None
    custom_calls: Mapping[str, CustomCallCost]
    machine: str

    @property
    def parameters(self) -> Mapping[str, object]:
        """The machine, the programs with their flags, and the fallback."""
        return {
            "machine": self.machine,
            "programs": asdict(self.programs),
            "fallback": None if self.fallback is None else dict(self.fallback.parameters),
        }

    def assumptions(self, program: Program) -> tuple[str, ...]:
        """Return the assumptions for every region."""
        del program
        how = (
            "iree: regions that IREE takes were compiled, each by itself, for "
            f"{self.programs.target} and run on this machine's {self.programs.device} "
            f"({self.machine}), with zeros for inputs"
        )
        return (how,)

    def estimate(self, region: Compute, program: Program) -> Estimate:
        """Run a region, or ask the fallback; `ToolError` without one."""
        floor_s = min(_floor(self.programs))
        location = f"region {region.id} of {program.source or program.module_name}"
        try:
            text = stablehlo_text(region, program)
            durations_s = self.programs.time(text, _inputs(region.inputs))
        except (ToolError, UnsupportedError) as error:
            return self._fallback_estimate(region, program, location, error)
        work = total(expand(region.operations, program.functions, custom_calls=self.custom_calls))
        return estimate_of(
            durations_s, floor_s=floor_s, where=f"{self.programs.device} by IREE", work=work
        )

    def _fallback_estimate(
        self, region: Compute, program: Program, location: str, error: ToolError | UnsupportedError
    ) -> Estimate:
        if self.fallback is None:
            raise ToolError(
                f"{location}: {error.marked_message}",
                location=error.location,
                hint=f"give {option('node')}, for a roofline of what IREE refuses",
            ) from error
        note = (
            "iree: regions that IREE refuses did not run; they are priced by the roofline of "
            f"{self.fallback.device.name}"
        )
        priced = self.fallback.estimate(region, program)
        return without_peaks(priced) + Estimate(notes=(note,))


@cache
def _floor(programs: Programs) -> tuple[float, ...]:
    """Time an empty module: the floor of all times."""
    try:
        return programs.time(EMPTY_MODULE, ())
    except ToolError as error:
        raise ToolError(
            f"IREE cannot run a module that does nothing: {error.marked_message}",
            location=error.location,
            hint=error.marked_hint
            or "check compile in the configuration (target-backends, device, extra-args, "
            "extra-runtime-args), and that this machine has the device",
        ) from error


def _inputs(values: Sequence[Value]) -> tuple[str, ...]:
    """Return inputs in IREE's syntax, without values (zeros)."""
    shapes: list[str] = []
    for value in values:
        if not isinstance(value.type, TensorType):
            raise UnsupportedError(f"IREE takes no input of type {value.type}")
        name = "i64" if value.type.element.name == "index" else value.type.element.name
        shapes.append("x".join([*map(str, value.type.shape), name]))
    return tuple(shapes)


def make(spec: EstimatorSpec) -> IreeProfile:
    """Return the profiler of a configuration of ``iree``."""
    hardware = spec.hardware
    if not isinstance(hardware, IreeHardware):
        hardware = IreeHardware()
    flags = hardware.compile or IreeCompile()
    target = flags.target_backends or _MACHINE["target_backends"]
    programs = Programs(
        compiler=_program("iree-compile"),
        benchmark=_program("iree-benchmark-module"),
        device=device_of(hardware),
        target=target,
        compile_flags=_compile_flags(target, flags.extra_args or ()),
        run_flags=flags.extra_runtime_args or (),
        repeats=SAMPLED if hardware.sample else Repeats(),
    )
    fallback = None
    if spec.device is not None:
        options, calls = spec.roofline_options, spec.custom_calls
        fallback = Roofline(device=spec.device, options=options, custom_calls=calls)
    return IreeProfile(
        programs=programs,
        fallback=fallback,
        custom_calls=spec.custom_calls,
        machine=machine_name(),
    )


def _compile_flags(target: str, flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the compiler's flags, for this machine's processor by default.

    >>> _compile_flags("llvm-cpu", ("--flag",))
    ('--flag', '--iree-llvmcpu-target-cpu=host')
    >>> _compile_flags("cuda", ()), _compile_flags("llvm-cpu", (_CPU + "=generic",))
    ((), ('--iree-llvmcpu-target-cpu=generic',))
    """
    is_named = any(flag.startswith(_CPU) for flag in flags)
    if is_named or _MACHINE["target_backends"] not in target:
        return flags
    return (*flags, f"{_CPU}=host")


def device_of(hardware: object | None) -> str:
    """Return the device of IREE's runtime in a configuration.

    >>> device_of(None)
    'local-task'
    """
    flags = hardware.compile if isinstance(hardware, IreeHardware) else None
    return (flags and flags.device) or _MACHINE["device"]


def _program(name: str) -> str:
    local_path = Path(sys.executable).parent / name
    program = str(local_path) if local_path.is_file() else shutil.which(name)
    if program is None:
        raise ExtraMissingError("method 'iree'", extra="iree")
    return program
