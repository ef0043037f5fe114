"""Report a measured step as text, JSON and CSV."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hespas.base.frozen import frozen
from hespas.base.units import format_bytes_binary, format_time
from hespas.errors import ConfigError, option
from hespas.evidence.measure.measured import Measurement, MeasureOptions, Platform
from hespas.evidence.validate.measurements import MeasuredStep
from hespas.hardware.presets import is_tpu, part_of
from hespas.prediction import checks, composition, machines, workload
from hespas.prediction.fidelity import WITHOUT_COMPILER, why_not_compiled
from hespas.prediction.options import Fidelity, PredictOptions
from hespas.prediction.result import Prediction
from hespas.price.methods import method_named
from hespas.sources.source import FileSource, ModelSource

WIDE = 0.1
"""A spread above which a median says little."""
_WIDTH = 16


def measurement_text(measured: Measurement) -> str:
    """Summarize a measurement as text."""
    counted = len(measured.durations_s)
    low, high = (format_time(percentile_s) for percentile_s in (measured.p10_s, measured.p90_s))
    devices = f"{measured.devices} x {measured.device_kind}"
    if measured.processes > 1:
        devices += f" in {measured.processes} processes"
    memory = f"{format_bytes_binary(measured.memory.total_bytes)} a device"
    if measured.free_bytes is not None:
        memory += f", of {format_bytes_binary(measured.free_bytes)} that were free"
    versions = ", ".join(f"{name} {number}" for name, number in measured.versions.items())
    rows = [
        ("Step time", f"{format_time(measured.median_s)}, the median of {counted} steps"),
        ("10 % to 90 %", f"{low} to {high}: a spread of {_share(measured.spread)}"),
        ("Memory", memory),
        ("Compiled in", format_time(measured.compile_s)),
        ("Versions", versions),
    ]
    notes = measured.notes
    if measured.spread > WIDE:
        notes = (*notes, "steps differ widely: other programs run here, or more steps are needed")
    return _lines(f"{measured.workload}: one step on {devices}, measured", rows, notes)


def comparison_text(compared: Comparison) -> str:
    """Return the prediction and its error as text."""
    prediction = compared.prediction
    target = prediction.device_name
    if prediction.system is not None:
        target += f" on {prediction.system.name}"
    title = f"Predicted for {target} ({prediction.fidelity}, {prediction.estimates.method})"
    rows = [
        ("Step time", format_time(prediction.step_time_s)),
        ("Error", f"{100 * compared.error:+.1f} % of what was measured"),
    ]
    return _lines(title, rows, (*compared.notes, *prediction.warnings))


def _lines(title: str, rows: Sequence[tuple[str, str]], notes: Sequence[str]) -> str:
    shown = [f"  {name:<{_WIDTH}}{text}" for name, text in rows]
    return "\n".join([title, *shown, *(f"  Note: {note}" for note in notes)])


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"


def measured_json(measured: Measurement, compared: Comparison | None) -> dict[str, object]:
    """Return the documented object; ``predicted`` is null without a prediction."""
    memory = measured.memory
    return {
        "workload": measured.workload,
        "devices": measured.devices,
        "processes": measured.processes,
        "platform": measured.platform,
        "device_kind": measured.device_kind,
        "warm_up": measured.warm_up,
        "steps": len(measured.durations_s),
        "median_s": measured.median_s,
        "p10_s": measured.p10_s,
        "p90_s": measured.p90_s,
        "least_s": min(measured.durations_s),
        "most_s": max(measured.durations_s),
        "spread": measured.spread,
        "durations_s": list(measured.durations_s),
        "compile_s": measured.compile_s,
        "memory_bytes": memory.total_bytes,
        "free_memory_bytes": measured.free_bytes,
        "versions": dict(measured.versions),
        "notes": list(measured.notes),
        "predicted": None if compared is None else _prediction_json(compared),
    }


def _prediction_json(compared: Comparison) -> dict[str, object]:
    prediction = compared.prediction
    return {
        "step_time_s": prediction.step_time_s,
        "error": compared.error,
        "node": prediction.device_name,
        "system": None if prediction.system is None else prediction.system.name,
        "method": prediction.estimates.method,
        "fidelity": prediction.fidelity,
        "notes": [*compared.notes, *prediction.warnings],
    }


def table_step(options: PredictOptions, measured: Measurement) -> MeasuredStep:
    """Return the table's line of a measured step.

    Its resolution is from the 10th to the 90th percentile. Raises what `table_names` raises.
    """
    source = workload.source_of(options)
    node, system = table_names(options)
    return MeasuredStep(
        workload=source.name,
        options=dict(source.texts) if isinstance(source, ModelSource) else {},
        node=node,
        system=system,
        step_s=measured.median_s,
        resolution_s=measured.p90_s - measured.p10_s,
        profiled_compute_s=None,
        line=0,
    )


def table_names(options: PredictOptions) -> tuple[str, str]:
    """Return the node and system that a table's line names.

    A line of the table of `hespas.evidence.validate` names a model or a file, a node and a system.
    Raises `ConfigError` for a step that it can't describe.
    """
    network = options.network
    source = workload.source_of(options)
    if not isinstance(source, ModelSource | FileSource):
        raise ConfigError(
            f"{option('csv')} names a model or a file, and {source.name} is neither",
            hint="write it to a file first: hespas export",
        )
    cluster = network.system if network.cluster is None else network.cluster
    node = checks.checked(options).estimate.node
    for name, value in (("cluster", cluster), ("node", node)):
        if not isinstance(value, str | Path):
            raise ConfigError(
                f"{option('csv')} names the system and its node, and {option(name)} is not given",
                hint=f"give {option('cluster')}, as in 4xA100_SXM_40GB",
            )
    return str(node), str(cluster)


_NOT_LETTERS = re.compile(r"[^a-z0-9]")


@frozen
class Comparison:
    """A measured step and its prediction.

    ``notes`` are the reasons why the two may not be of the same thing.
    """

    measured: Measurement
    prediction: Prediction
    notes: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """Predicted over measured, less one; negative is too fast."""
        return self.measured.error_of(self.prediction)


def is_compared(options: PredictOptions) -> bool:
    """Return whether the options name a target of the prediction."""
    network, estimate = options.network, options.estimate
    target_options = (
        network.cluster,
        network.system,
        estimate.node,
        estimate.method,
        estimate.hardware,
        estimate.peak_flops,
        estimate.memory_bandwidth,
    )
    return any(value is not None for value in target_options)


def check_comparison(options: PredictOptions, how: MeasureOptions) -> MeasureOptions:
    """Return measuring options that suit the prediction.

    Raises what `hespas.prediction.checks.checked` raises, and `ConfigError` if the platform differs
    from the predicted part's, as for virtual devices of the CPU.
    """
    checked = checks.checked(options)
    checks.check_priced(checked)
    part = _part(checked)
    if part is None:
        return how
    platform = Platform.TPU if is_tpu(part) else Platform.GPU
    if how.platform not in {Platform.AUTO, platform}:
        raise ConfigError(
            f"the prediction is for {part}, and {option('platform')} {how.platform.value} would "
            "run the step on something else",
            hint=f"drop {option('platform')}, or what names {part}, to measure alone",
        )
    return replace(how, platform=platform)


def _part(options: PredictOptions) -> str | None:
    estimate, system = options.estimate, machines.system_of(options.network)
    if estimate.method is not None and method_named(estimate.method).device_here:
        return None if system is None else system.part
    device = machines.device_of(estimate)
    if device is not None and part_of(device) is not None:
        return part_of(device)
    return None if system is None else system.part


def compare(options: PredictOptions, measured: Measurement) -> Comparison:
    """Predict the step that was measured, as ``hespas run`` does.

    Raises what `hespas.prediction.composition.predict` raises.
    """
    checked = checks.checked(options)
    prediction = composition.predict(_as_compiled(options, checked))
    return Comparison(
        measured=measured,
        prediction=prediction,
        notes=tuple(_notes(_part(checked), prediction, measured)),
    )


def _as_compiled(options: PredictOptions, checked: PredictOptions) -> PredictOptions:
    """Return options that predict inference as compiled."""
    if options.compile.requested is not Fidelity.AUTO or checked.compile.requested is Fidelity.AUTO:
        return options
    fidelity = (
        WITHOUT_COMPILER if why_not_compiled(str(checked.estimate.node)) else Fidelity.COMPILED
    )
    return replace(options, compile=replace(options.compile, fidelity=fidelity))


def _notes(part: str | None, prediction: Prediction, measured: Measurement) -> Iterator[str]:
    if part is not None and not is_of_part(measured.device_kind, part):
        yield (
            f"measured on {measured.device_kind}, predicted for {part}: by their names they are "
            "not the same"
        )
    if prediction.devices != measured.devices:
        yield f"measured on {measured.devices} devices, predicted for {prediction.devices}"


def is_of_part(device_kind: str, part: str) -> bool:
    """Return whether JAX's name of a device fits a part.

    >>> is_of_part("NVIDIA A100-SXM4-40GB", "A100_SXM_40GB"), is_of_part("TPU v5 lite", "TPUv5e")
    (True, True)
    >>> is_of_part("NVIDIA H100 80GB HBM3", "H200_141GB")
    False
    """
    kind = _bare_name(device_kind)
    chip = _bare_name(part.partition("_")[0])
    # A v5 that is neither lite nor named further is a v5p.
    return chip in kind or (chip.endswith("p") and kind == chip.removesuffix("p"))


def _bare_name(name: str) -> str:
    """Return a lower-case name, without TPUs' v and lite."""
    letters = _NOT_LETTERS.sub("", name.lower())
    return letters.replace("tpuv", "tpu").replace("lite", "e") if "tpu" in letters else letters
