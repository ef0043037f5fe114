"""Predict what was measured, through the whole pipeline: export, compile, estimate, simulate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hespas.calibrate.lines import at_line
from hespas.calibrate.samples import FAR
from hespas.compile.cache import CompiledCache
from hespas.compile.for_node import compile_for_node
from hespas.compile.made_for import with_origin
from hespas.config.suggest import suggestion
from hespas.errors import MeasurementError, ProgramError
from hespas.estimate.cache import MemoryStore
from hespas.estimate.graph import estimate_graph
from hespas.estimate.methods import OF_A_DEVICE, Wanted, estimator
from hespas.export.exported import partitioned
from hespas.export.zoo import export_model
from hespas.frontend.load import load_compiled, load_source, read_source
from hespas.hardware.fit import settled_program
from hespas.hardware.presets import load_device, load_system
from hespas.hardware.system import System
from hespas.models.registry import models
from hespas.prediction import Prediction, predicted
from hespas.program.program import Program
from hespas.simulate.models import ModelChoice, model_named
from hespas.simulate.network import Network
from hespas.split.modules import region_modules
from hespas.split.strategies import split_options, split_program
from hespas.units import format_time
from hespas.validate.measurements import MeasuredStep
from hespas.xla.hlo_forms import is_hlo

FLOOR_METHOD = "roofline"
"""Whose answer no device can beat: every peak reached, every byte moved once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """A measured step, and what each method predicts for it."""

    measured: MeasuredStep
    predictions: Mapping[str, Prediction]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Programs that were exported already, by workload and options.

    ``cache`` keeps compiled ones.
    """

    cache: CompiledCache | None
    known: dict[tuple[str, str], bytes] = field(default_factory=dict[tuple[str, str], bytes])

    def source(self, step: MeasuredStep) -> bytes:
        """Return a workload's partitioned StableHLO, or the HLO that its file holds."""
        key = (step.workload, repr(sorted(step.options.items())))
        if key not in self.known:
            self.known[key] = _source(step)
        return self.known[key]


def _source(step: MeasuredStep) -> bytes:
    if step.workload in models():
        return partitioned(export_model(step.workload, step.options)).text
    return read_source(Path(step.workload))


def check_step(step: MeasuredStep, *, method: str, location: str) -> None:
    """Raise `MeasurementError` for a model or file, an option, a node or a system there isn't.

    A node that ``method`` can't price is refused too. ``place`` is the step's ``file:line``.
    """
    with at_line(location):
        load_system(step.system)
        device = load_device(step.node)
        if method in OF_A_DEVICE:
            estimator(method, Wanted(device=device))
        _check_workload(step)


def _check_workload(step: MeasuredStep) -> None:
    if step.workload in models():
        models()[step.workload].step(dict(step.options))
        return
    if not Path(step.workload).exists():
        raise MeasurementError(
            f"there is no model or file {step.workload!r}",
            hint=suggestion(step.workload, models()),
        )
    if step.options:
        raise MeasurementError(
            f"{step.workload} is no model of the zoo, and takes no options",
            hint="see hespas export --list",
        )


def recompute(
    step: MeasuredStep, sources: Sources, *, method: str, model: str, location: str
) -> Recomputed:
    """Predict one step by ``method`` and by the roofline, of the program that XLA makes for it.

    A program that was compiled before is taken as it is; its kernels' PTX is not known.

    Raises `MeasurementError` where the roofline of computation alone is longer than what was
    measured: no device is faster than its peaks, so that the unit or the workload is wrong; and
    where prediction and measurement differ by more than a factor of a hundred.
    ``place`` is the step's ``file:line``, which every refusal of what it names tells.
    """
    with at_line(location):
        predictions = _predictions(step, sources, method, model)
    floor_s = predictions[FLOOR_METHOD].estimates.total.without_launches_s
    if step.interval_s[1] < floor_s:
        raise MeasurementError(
            f"{step.workload} on {step.system} took {step.step_s:g} s, but at every peak of "
            f"{step.node} it would take {floor_s:.4g} s",
            location=location,
            hint="give seconds, and the program that was measured",
        )
    _check_far(step, predictions[method].step_time_s, location)
    return Recomputed(measured=step, predictions=predictions)


def _check_far(step: MeasuredStep, predicted_s: float, location: str) -> None:
    ratio = step.step_s / predicted_s
    if 1 / FAR <= ratio <= FAR:
        return
    far = f"{ratio:.0f} times" if ratio > 1 else f"a {1 / ratio:.0f}th of"
    raise MeasurementError(
        f"{step.workload} on {step.system} took {format_time(step.step_s)}, {far} the "
        f"{format_time(predicted_s)} that are predicted",
        location=location,
        hint="give seconds, and the program, node and system that were measured",
    )


def _predictions(
    step: MeasuredStep, sources: Sources, method: str, model: str
) -> dict[str, Prediction]:
    system, device = load_system(step.system), load_device(step.node)
    graph = split_program(_compiled(step, sources, system), split_options())
    modules = region_modules(graph)

    def predicted_by(name: str) -> Prediction:
        wanted = Wanted(device=device, kernels=graph.program.kernels)
        made = estimator(name, wanted)
        return predicted(
            graph,
            estimate_graph(graph, modules, made, store=MemoryStore()),
            system,
            Network.CONGESTION_UNAWARE,
            memory_capacity_bytes=device.memory_capacity_bytes,
            model=ModelChoice(model=model_named(model)),
        )

    return {name: predicted_by(name) for name in dict.fromkeys((FLOOR_METHOD, method))}


def _compiled(step: MeasuredStep, sources: Sources, system: System) -> Program:
    source = sources.source(step)
    if is_hlo(source):
        return _compiled_before(source, step, system)
    compiled = compile_for_node(
        source,
        name=step.workload,
        node=step.node,
        system=system,
        devices=None,
        cache=sources.cache,
    )
    return load_compiled(compiled, name=step.workload)


def _compiled_before(source: bytes, step: MeasuredStep, system: System) -> Program:
    program = load_source(source, name=step.workload)
    if not program.is_scheduled:
        raise ProgramError(
            "is HLO that no compiler scheduled",
            location=step.workload,
            hint="give its StableHLO, or what hespas compile makes of it",
        )
    return settled_program(with_origin(program, step.node), devices=None, system=system)
