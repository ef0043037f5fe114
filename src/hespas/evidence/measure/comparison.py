"""A measured step against its prediction."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hespas.errors import ConfigError, option
from hespas.evidence.measure.measured import Measurement
from hespas.evidence.measure.options import MeasureOptions, Platform
from hespas.hardware.presets import is_tpu, part_of
from hespas.prediction import checks, composition, machines
from hespas.prediction.options import PredictOptions
from hespas.prediction.result import Prediction
from hespas.price.methods import method_named

_NOT_LETTERS = re.compile(r"[^a-z0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was measured of a step, and what is predicted for it.

    ``notes`` say why the two may not be of the same thing.
    """

    measured: Measurement
    prediction: Prediction
    notes: tuple[str, ...] = ()

    @property
    def error(self) -> float:
        """Predicted over measured, less one; negative is too fast."""
        return self.measured.error_of(self.prediction)


def is_compared(options: PredictOptions) -> bool:
    """Return whether the options say for what the step is to be predicted."""
    network, estimate = options.network, options.estimate
    named = (
        network.cluster,
        network.system,
        estimate.node,
        estimate.method,
        estimate.hardware,
        estimate.peak_flops,
        estimate.memory_bandwidth,
    )
    return any(each is not None for each in named)


def check_comparison(options: PredictOptions, how: MeasureOptions) -> MeasureOptions:
    """Return on what to run, so that a prediction can be held against it.

    Raises what `hespas.prediction.checks.checked` raises, and `ConfigError` where the platform is
    another than that of the part that is predicted, as virtual devices of the CPU always are.
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
    """Return the preset of the device that is predicted; None for one's own, and for this one."""
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
    prediction = composition.predict(options)
    return Comparison(
        measured=measured,
        prediction=prediction,
        notes=tuple(_notes(_part(checks.checked(options)), prediction, measured)),
    )


def _notes(part: str | None, prediction: Prediction, measured: Measurement) -> Iterator[str]:
    if part is not None and not is_of_part(measured.device_kind, part):
        yield (
            f"measured on {measured.device_kind}, predicted for {part}: by their names they are "
            "not the same"
        )
    if prediction.devices != measured.devices:
        yield f"measured on {measured.devices} devices, predicted for {prediction.devices}"


def is_of_part(device_kind: str, part: str) -> bool:
    """Return whether JAX's name of a device can be that of a part.

    >>> is_of_part("NVIDIA A100-SXM4-40GB", "A100_SXM_40GB"), is_of_part("TPU v5 lite", "TPUv5e")
    (True, True)
    >>> is_of_part("NVIDIA H100 80GB HBM3", "H200_141GB")
    False
    """
    kind = _bare(device_kind)
    chip = _bare(part.partition("_")[0])
    # A v5 that is neither lite nor named further is a v5p.
    return chip in kind or (chip.endswith("p") and kind == chip.removesuffix("p"))


def _bare(name: str) -> str:
    """Return a name in small letters, without the v of versions; lite TPUs are called e."""
    letters = _NOT_LETTERS.sub("", name.lower())
    return letters.replace("tpuv", "tpu").replace("lite", "e") if "tpu" in letters else letters
