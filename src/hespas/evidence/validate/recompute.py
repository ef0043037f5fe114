"""Predict measured steps from exported and compiled programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from hespas.base.fields import overridden
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.base.units import format_time
from hespas.errors import MeasurementError
from hespas.evidence.calibrate.samples import FAR, at_line
from hespas.evidence.validate.measurements import MeasuredStep
from hespas.frontend.load import read_source
from hespas.hardware.presets import load_device
from hespas.hardware.sized import find_system
from hespas.models.catalogue import find_model, names
from hespas.prediction import composition
from hespas.prediction.options import Fidelity, PredictOptions
from hespas.prediction.result import Prediction
from hespas.price.cache import MemoryStore
from hespas.price.methods import DeviceUse, EstimatorSpec, method_named
from hespas.simulate.options import Model
from hespas.sources.exported import partitioned
from hespas.sources.function import export_model

FLOOR_METHOD = "roofline"
"""The method whose time no device beats: full peaks, bytes moved once."""


@frozen
class Recomputed:
    """A measured step, and the prediction of each method."""

    measured: MeasuredStep
    predictions: Mapping[str, Prediction]


@frozen
class Sources:
    """Exported programs, by workload and options.

    Compiled ones are cached in ``cache_dir``, by default in the user's cache directory.
    """

    cache_dir: Path | None
    exported: dict[tuple[str, str], bytes] = field(default_factory=dict[tuple[str, str], bytes])

    def source(self, step: MeasuredStep) -> bytes:
        """Return a workload's partitioned StableHLO, or its HLO."""
        if find_model(step.workload) is None:
            return read_source(Path(step.workload))
        key = (step.workload, repr(sorted(step.options.items())))
        if key not in self.exported:
            exported = export_model(step.workload, step.options)
            self.exported[key] = partitioned(exported).content
        return self.exported[key]


def check_step(step: MeasuredStep, *, method: str, location: str) -> None:
    """Raise `MeasurementError` for a step with unknown names.

    They are of a model, file, option, node or system. A node that ``method`` can't price is refused
    too. ``location`` is the step's ``file:line``.
    """
    with at_line(location):
        find_system(step.system)
        device = load_device(step.node)
        chosen = method_named(method)
        if chosen.device_use is DeviceUse.NEEDED:
            chosen.estimator(EstimatorSpec(device=device))
        _check_workload(step)


def _check_workload(step: MeasuredStep) -> None:
    model = find_model(step.workload)
    if model is not None:
        model.step(dict(step.options))
        return
    if not Path(step.workload).exists():
        raise MeasurementError(
            f"there is no model or file {step.workload!r}",
            hint=suggestion(step.workload, names()),
        )
    if step.options:
        raise MeasurementError(
            f"{step.workload} is no model of the zoo, and takes no options",
            hint="see hespas export --list",
        )


def recompute(
    step: MeasuredStep, sources: Sources, *, method: str, model: Model | None, location: str
) -> Recomputed:
    """Predict one step by ``method`` and by the roofline.

    A compiled program is taken as it is; its kernels' PTX is not known.

    Raises `MeasurementError` if the roofline of computation alone is longer than the measured time:
    no device is faster than its peaks, so that the unit or the workload is wrong; and if prediction
    and measurement differ by more than a factor of a hundred. ``location`` is the step's
    ``file:line``, which every error about the step's names shows.
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
    ratio_text = f"{ratio:.0f} times" if ratio > 1 else f"a {1 / ratio:.0f}th of"
    raise MeasurementError(
        f"{step.workload} on {step.system} took {format_time(step.step_s)}, {ratio_text} the "
        f"{format_time(predicted_s)} that are predicted",
        location=location,
        hint="give seconds, and the program, node and system that were measured",
    )


def _predictions(
    step: MeasuredStep, sources: Sources, method: str, model: Model | None
) -> dict[str, Prediction]:
    changes = {"file": step.workload, "node": step.node, "system": step.system, "model": model}
    changes |= {"fidelity": Fidelity.COMPILED, "cache_dir": sources.cache_dir}
    options = overridden(PredictOptions(), changes)
    prepared = composition.prepare(options, source=sources.source(step))

    def predicted_by(name: str) -> Prediction:
        chosen = replace(options, estimate=replace(options.estimate, method=name))
        estimates = composition.price(prepared, chosen, store=MemoryStore())
        return composition.finish(prepared, estimates, chosen)

    return {name: predicted_by(name) for name in dict.fromkeys((FLOOR_METHOD, method))}
