"""Candidates before their evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from hashlib import sha256

from hespas.base.frozen import frozen
from hespas.base.version import __version__, installed_versions
from hespas.hardware.device import Device
from hespas.hardware.system import System
from hespas.models.language import LanguageModel
from hespas.prediction import checks, cutting, machines, workload
from hespas.prediction.cutting import Cut
from hespas.prediction.fidelity import why_not_compiled
from hespas.prediction.options import Fidelity, PredictOptions
from hespas.price.methods import DeviceUse, method_named
from hespas.sources.source import ModelSource, Source
from hespas.sources.workload import model_key
from hespas.study.bounds import NO_BOUNDS, Bounds, bounds_of, pipeline_bounds
from hespas.study.executor import Phase
from hespas.study.expected import LIKELY_MEMORY, Expected, expected_s
from hespas.study.goal import Price, price_of
from hespas.study.keys import canonical
from hespas.study.space import Candidate

_MAY_COMPILE = frozenset({Phase.COMPILE, Phase.AS_FOUND})
_S_PER_HOUR, _HOURS_PER_DAY, _MTOKEN = 3600.0, 24.0, 1e6


@frozen
class Entry:
    """A candidate that can be run.

    ``inputs`` is a digest of everything that decides its prediction: the program, the cluster, the
    device and every option. ``compiles`` says whether a compiler of its part is installed,
    ``is_model`` whether its program is a model of the zoo, ``is_of_libraries`` whether kernels of
    an engine or a framework run it, ``runs_operations`` whether its operations run on this machine
    to be timed.
    ``part`` names the device, None if it has no name. ``expected`` orders the predictions.
    """

    number: int
    candidate: Candidate
    bounds: Bounds
    expected: Expected
    devices: int
    part: str | None
    capacity_bytes: int | None
    tokens: int | None
    inputs: str
    compiles: bool
    is_model: bool
    is_of_libraries: bool
    runs_operations: bool

    def key(self, phase: Phase) -> str:
        """Return the key of an evaluation, from all its inputs."""
        parts = (phase.value, self.inputs, sorted(self.versions(phase).items()))
        return sha256(canonical(parts)).hexdigest()

    def versions(self, phase: Phase) -> dict[str, str]:
        """Return the versions of the packages of an evaluation."""
        compiler = compiler_of(self.part) if phase in _MAY_COMPILE else None
        return {**versions(), **(compiler or {})}

    def completed(
        self, figures: Mapping[str, float | None], prices: tuple[Price, ...]
    ) -> dict[str, float | None]:
        """Add the figures that follow from the step's time."""
        all_figures = dict(figures)
        step_s, tokens_per_s = all_figures.get("step_time_s"), all_figures.get("tokens_per_s")
        if not step_s:
            return all_figures
        tokens = self.tokens if tokens_per_s is None else tokens_per_s * step_s
        if tokens:
            all_figures.setdefault("tokens_per_s", tokens / step_s)
            all_figures.setdefault("tokens_per_s_per_device", tokens / step_s / self.devices)
        price = price_of(self.part, prices)
        if price is not None:
            cost = price * self.devices * step_s / _S_PER_HOUR
            all_figures["usd_per_step"] = cost
            all_figures["usd_per_mtoken"] = cost / tokens * _MTOKEN if tokens else None
            if "goodput" in all_figures:
                all_figures["usd_per_day"] = price * self.devices * _HOURS_PER_DAY
            days = all_figures.get("days")
            if days is not None:
                all_figures["usd"] = price * self.devices * days * _HOURS_PER_DAY
        return all_figures


def entry_of(number: int, candidate: Candidate) -> Entry:
    """Return the entry of a candidate that can run.

    Raises `HespasError` for one that can't.
    """
    system = candidate.system
    options = candidate.options()
    options = replace(options, network=replace(options.network, system=system, cluster=None))
    cut = cutting.cut_of(options) if options.is_pipeline else None
    if cut is None:
        options = checks.checked(options)
    else:
        # The study prunes by bounds itself.
        pipeline = replace(cut.options.pipeline, ignore_memory=True)
        options = replace(cut.options, pipeline=pipeline)
    source = workload.source_of(options) if cut is None else cut.source
    device = machines.device_of(options.estimate)
    node, method = options.estimate.node, options.estimate.method
    part = node if isinstance(node, str) else None
    model = source if isinstance(source, ModelSource) else None
    devices = 1 if system is None else system.device_count
    if cut is not None:
        bounds, tokens = pipeline_bounds(cut, device), cut.work.tokens
    elif model is not None:
        bounds = bounds_of(model, device, system)
        tokens = options.step.tokens if model.batch is None else model.batch.tokens
    else:
        bounds, tokens = NO_BOUNDS, options.step.tokens
    return Entry(
        number=number,
        candidate=candidate,
        bounds=bounds,
        expected=_expected(source, device, system, bounds, cut),
        devices=devices,
        part=part,
        capacity_bytes=None if device is None else device.memory_capacity_bytes,
        tokens=tokens,
        inputs=_inputs(options, device, source, cut),
        compiles=compiler_of(part) is not None,
        is_model=model is not None,
        is_of_libraries=options.compile.requested is Fidelity.LIBRARY,
        runs_operations=method is not None
        and method_named(method).device_use is not DeviceUse.NEEDED,
    )


def _expected(
    source: object, device: Device | None, system: System | None, bounds: Bounds, cut: Cut | None
) -> Expected:
    """Estimate a step's time and memory.

    Without sizes the time is the bound. A pipeline's stages compute their shares of all layers at
    the same time.
    """
    settings = source.settings if isinstance(source, ModelSource) else None
    stages = 1 if cut is None else cut.stages
    time_s = bounds.time_s
    if device is not None and isinstance(settings, LanguageModel):
        time_s = expected_s(settings, device, system, bounds.computing_s * stages) / stages
    return Expected(time_s=time_s, memory_bytes=LIKELY_MEMORY * bounds.memory_bytes)


def _inputs(
    options: PredictOptions, device: Device | None, source: Source, cut: cutting.Cut | None
) -> str:
    if cut is None:
        program = workload.workload_digest(source)
    else:
        schedule = None if options.pipeline.schedule_is_named else cut.schedule
        program = f"{model_key(cut.source)} {schedule!r}"
    return sha256(canonical((program, repr(options), repr(device)))).hexdigest()


@cache
def versions() -> dict[str, str]:
    """Return the versions of the packages that predict."""
    return {"hespas": __version__} | installed_versions(("jax", "jaxlib"))


@cache
def compiler_of(part: str | None) -> dict[str, str] | None:
    """Return the versions of a part's compiler, if installed."""
    from hespas.compile.packages import compiler_versions  # noqa: PLC0415 - few compile
    from hespas.compile.targets import find_target  # noqa: PLC0415 - as above

    if part is None or why_not_compiled(part):
        return None
    return compiler_versions(find_target(part))
