"""Time regions that XLA compiles and runs here: ``method: xla``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache

import msgspec

from hespas.backends.profiling import SAMPLED, Repeats, argument_arrays, estimate_of, machine_name
from hespas.base.figures import Text
from hespas.base.files import write_file
from hespas.base.process import Worker, lasting_worker
from hespas.base.suggest import suggestion
from hespas.base.version import installed_version
from hespas.errors import ConfigError, ToolError
from hespas.hardware.device import Hardware
from hespas.price.estimate import Estimate
from hespas.price.methods import EstimatorSpec
from hespas.program.program import Program
from hespas.program.work import CustomCallCost
from hespas.split.modules import stablehlo_text
from hespas.split.regions import Compute
from hespas.work.expand import expand, total
from hespas.xla.run.worker import Answer

_PLATFORMS = {
    "cpu": "cpu",
    "host": "cpu",
    "nvidiagpu": "cuda",
    "cuda": "cuda",
    "gpu": "cuda",
    "tpu": "tpu",
}
_NEEDS = {
    "cuda": "an NVIDIA GPU with its driver, and jax-cuda12-plugin and jax-cuda12-pjrt of version "
    "{jaxlib} (pip install 'jax[cuda12]=={jaxlib}')",
    "tpu": "a TPU, and libtpu (pip install 'hespas[tpu]')",
}
"""The requirements of platforms other than the CPU."""

_FLOOR_RUNS = Repeats(warm_up_runs=20, least_runs=200, most_runs=200, enough_s=0.0)


class XlaTranslate(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"
):
    """``translate`` of the method ``xla``."""

    target_backends: Text | None = None


class XlaHardware(Hardware, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hardware`` of the method ``xla``."""

    type: Text | None = None
    sample: bool | None = None
    translate: XlaTranslate | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Profiler:
    """Asks a worker process, and caches its measured dispatch floor."""

    worker: Worker
    platform: str = "cpu"
    floor_s: float | None = None
    module_count: int = 0

    def time(self, text: str, arguments: object, repeats: Repeats, *, location: str) -> Answer:
        """Compile and run a module; `ToolError` if that fails."""
        self.module_count += 1
        file = self.worker.directory / f"module_{self.module_count}.mlir"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, text.encode())
        return self._ask({"module": str(file), "arguments": arguments}, repeats, location=location)

    def floor(self) -> float:
        """Return the fastest time of an empty module."""
        if self.floor_s is None:
            timed = self._ask({"module": ""}, _FLOOR_RUNS, location="a module that does nothing")
            self.floor_s = min(timed.durations_s)
        return self.floor_s

    def _ask(self, question: Mapping[str, object], repeats: Repeats, *, location: str) -> Answer:
        runs = {key: value for key, value in asdict(repeats).items() if key != "limit_s"}
        try:
            answer = self.worker.ask({**question, **runs}, time_s=repeats.limit_s)
        except ToolError as error:
            raise ToolError(
                f"{location}: {error.marked_message}",
                location=error.location,
                hint=error.marked_hint,
            ) from error
        timed = msgspec.convert(answer, Answer)
        if timed.lacks_platform:
            raise ToolError(
                f"{self.worker.name} finds no device to run on: {timed.error}",
                hint=_platform_hint(self.platform),
            )
        if timed.error:
            raise ToolError(f"{self.worker.name} cannot run it: {timed.error}", location=location)
        return timed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class XlaProfile:
    """Times regions on one device of this machine, through PJRT.

    The first answer names the device; the estimates' cache separates machines.
    """

    method: str = "xla"
    platform: str
    repeats: Repeats
    profiler: Profiler
    custom_calls: Mapping[str, CustomCallCost]
    machine: str

    @property
    def parameters(self) -> Mapping[str, object]:
        """The machine, the compiler and the repeats."""
        return {
            "platform": self.platform,
            "machine": self.machine,
            "jaxlib": installed_version("jaxlib"),
            "repeats": asdict(self.repeats),
        }

    def assumptions(self, program: Program) -> tuple[str, ...]:
        """Return the assumptions for every region."""
        del program
        how = (
            f"xla: each region was compiled by itself and run on this machine's {self.platform} "
            f"({self.machine}), with zeros for inputs; what XLA would fuse across regions is not"
        )
        return (how,)

    def estimate(self, region: Compute, program: Program) -> Estimate:
        """Compile and run a region; `ToolError` on failure."""
        location = f"region {region.id} of {program.source or program.module_name}"
        arguments = argument_arrays(region.inputs, location=location)
        text = stablehlo_text(region, program)
        floor_s = self.profiler.floor()
        timed = self._timed(text, arguments, program, location=location)
        work = total(expand(region.operations, program.functions, custom_calls=self.custom_calls))
        return estimate_of(timed.durations_s, floor_s=floor_s, where=timed.device, work=work)

    def _timed(self, text: str, arguments: object, program: Program, *, location: str) -> Answer:
        try:
            return self.profiler.time(text, arguments, self.repeats, location=location)
        except ToolError as error:
            if program.is_scheduled and not error.marked_hint:
                error.marked_hint = (
                    "the program is compiled, and calls what the part it was compiled for has: "
                    "give the StableHLO that it was compiled from, or another method"
                )
            raise


def make(spec: EstimatorSpec) -> XlaProfile:
    """Return the profiler of a configuration of ``xla``."""
    platform = device_of(spec.hardware)
    is_sample = isinstance(spec.hardware, XlaHardware) and spec.hardware.sample
    return XlaProfile(
        platform=platform,
        repeats=SAMPLED if is_sample else Repeats(),
        profiler=_profiler(platform),
        custom_calls=spec.custom_calls,
        machine=machine_name(),
    )


@cache
def _profiler(platform: str) -> Profiler:
    name = f"XLA's profiler for {platform}"
    worker = lasting_worker("hespas.xla.run.worker", name, platform)
    return Profiler(worker=worker, platform=platform)


def device_of(hardware: object | None) -> str:
    """Return the platform of a configuration: ``cpu``, ``cuda`` or ``tpu``.

    It is the CPU without a configuration of the method ``xla``. Raises `ConfigError` for another
    name.

    >>> device_of(None)
    'cpu'
    """
    if not isinstance(hardware, XlaHardware):
        return "cpu"
    backend = hardware.translate.target_backends if hardware.translate else None
    name = backend or hardware.type or "cpu"
    platform = _PLATFORMS.get(name.lower())
    if platform is None:
        raise ConfigError(
            f"there is no platform {name!r} to profile on", hint=suggestion(name, _PLATFORMS)
        )
    return platform


def _platform_hint(platform: str) -> str:
    needs = _NEEDS.get(platform)
    if needs is None:
        return ""
    package = needs.format(jaxlib=installed_version("jaxlib"))
    return f"it needs {package}; or profile on cpu (hardware.type, translate.target-backends)"
