"""Errors of predictions of published steps."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import msgspec

from hespas.compile.targets import compute_capability
from hespas.hardware.presets import PRESETS_DIRECTORY, device_names
from hespas.prediction.figures.breakdown import breakdown
from hespas.prediction.figures.schema import ExpectedError, PublishedErrors
from hespas.prediction.result import Prediction, StepKind
from hespas.sources.source import platform_of
from hespas.work.attention import attentions
from hespas.work.convolution import convolutions

if TYPE_CHECKING:
    from hespas.prediction.answer import PipelinePrediction

_FILE = PRESETS_DIRECTORY / "published" / "errors.json"
_OF_ENGINES = _FILE.with_name("serving_errors.json")
_WITH_EXPERTS = "library_experts"
_STEPS = {
    "xla_gpu": "steps of XLA on {} GPUs",
    "xla_tpu": "steps of XLA on {} TPUs",
    "library": "steps of PyTorch on {} GPUs",
    _WITH_EXPERTS: "steps of PyTorch with experts on {} GPUs",
    "recorded": "steps of Llama 3.1 8B in PyTorch, recorded for {} GPUs",
}
_GROUPS = {
    ("compiled", "cuda"): "xla_gpu",
    ("fused", "cuda"): "xla_gpu",
    ("compiled", "tpu"): "xla_tpu",
    ("fused", "tpu"): "xla_tpu",
    ("library", "cuda"): "library",
    ("recorded", "cuda"): "recorded",
}
"""By fidelity and platform."""


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    steps: int
    mean_absolute: float
    median: float
    least: float
    most: float
    low: float
    high: float
    devices: tuple[int, int]
    parts: tuple[str, ...]


class _Modelled(msgspec.Struct, frozen=True, kw_only=True):
    programs: int
    mean_absolute: float


class _Errors(msgspec.Struct, frozen=True, kw_only=True):
    groups: dict[str, _Group]
    modelled: _Modelled


@cache
def _errors() -> _Errors:
    return msgspec.json.decode(_FILE.read_bytes(), type=_Errors)


@cache
def engine_errors() -> dict[str, PublishedErrors]:
    """Return the errors for published points, by engine."""
    return msgspec.json.decode(_OF_ENGINES.read_bytes(), type=dict[str, PublishedErrors])


def expected_error(
    prediction: Prediction | PipelinePrediction, step_time_s: float
) -> ExpectedError:
    """Return the errors of the most similar published steps.

    From ten of them on, it says how long eight of ten steps are that are to their predictions as
    published ones were.
    """
    chosen = _group_name(prediction)
    if chosen is None and _is_decoded(prediction):
        return ExpectedError(text=_of_engines())
    if chosen is None:
        return ExpectedError(text="not known: no step of its kind is published")
    group, modelled = _errors().groups[chosen], _errors().modelled
    least, most = group.devices
    part = prediction.device_name
    steps = _STEPS[chosen].format(f"{least:,} to {most:,}")
    lack = "" if part in group.parts else f" (none on {part})"
    text = (
        f"{100 * group.mean_absolute:.1f} % in the mean of {group.steps} published {steps}{lack}, "
        f"{100 * group.least:+.0f} to {100 * group.most:+.0f} %"
    )
    is_modelled = prediction.fidelity == "fused" and chosen == "xla_gpu"
    if is_modelled:
        text += f"; modelled kernels: {100 * modelled.mean_absolute:.1f} % more"
    is_known = group.steps >= _FEWEST
    return ExpectedError(
        text=text,
        steps=group.steps,
        mean_absolute=group.mean_absolute,
        median=group.median,
        least=group.least,
        most=group.most,
        modelled=modelled.mean_absolute if is_modelled else None,
        likely_from_s=step_time_s / (1 + group.high) if is_known else None,
        likely_to_s=step_time_s / (1 + group.low) if is_known else None,
    )


_FEWEST = 10
"""Of published steps, for shares of them to be known."""


def _is_decoded(prediction: Prediction | PipelinePrediction) -> bool:
    """Return whether an engine decodes on an NVIDIA part."""
    part, work = prediction.device_name, prediction.work
    is_served = prediction.fidelity == "library" and work.kind is StepKind.INFERENCE
    is_token = work.tokens is not None and work.tokens == work.samples
    return is_served and is_token and compute_capability(part) is not None


def _of_engines() -> str:
    """Describe the errors of engines' times between tokens."""
    engines = engine_errors()
    medians = [errors.tpot for errors in engines.values()]
    return (
        f"{100 * min(medians):.0f} to {100 * max(medians):.0f} %: medians of the times between "
        f"tokens of {sum(errors.points for errors in engines.values())} published points of "
        f"{len(engines)} engines"
    )


def _is_like_recorded(prediction: Prediction | PipelinePrediction) -> bool:
    """Return whether a recorded step is as the published ones.

    They have attention, no experts and no convolutions, and none waits for its launches, or for
    other stages.
    """
    if not isinstance(prediction, Prediction) or prediction.stages:
        return False
    operations = prediction.graph.program.main.body.operations
    is_launched_late = prediction.launch_wait_s > _LATE * prediction.step_time_s
    has_experts = any(operation.kind in _OF_EXPERTS for operation in operations)
    if is_launched_late or has_experts or not any(map(attentions, operations)):
        return False
    has_convolutions = any(map(convolutions, operations))
    return not has_convolutions or _convolved(prediction) <= _FEW_CONVOLUTIONS


_FEW_CONVOLUTIONS = 0.05
"""The share of the computation that convolutions take where a model has patches of images."""


def _convolved(prediction: Prediction) -> float:
    """Return the share of convolutions in the time of the computation."""
    times_s = {kind: amount.time_s for kind, amount in breakdown(prediction).by_kind.items()}
    return times_s.get("convolution", 0.0) / (sum(times_s.values()) or 1.0)


_OF_EXPERTS = ("aten::topk", "ragged_dot")
"""Recorded operations that choose experts, or are products of each expert's rows."""

_LATE = 0.1
"""The share of a step that waits for launches, from which they decide it."""


def _group_name(prediction: Prediction | PipelinePrediction) -> str | None:
    """Return the comparable group of published steps, if any."""
    part, kind = prediction.device_name, prediction.work.kind
    platform = platform_of(part) if part in device_names() else ""
    name = _GROUPS.get((prediction.fidelity, platform))
    is_compared = prediction.options.estimate.method is None and kind is not StepKind.INFERENCE
    # On TPUs, modelled kernels of other programs than models are several times too short or long.
    is_other = name == "xla_tpu" and prediction.fidelity == "fused" and kind is StepKind.UNKNOWN
    is_unlike = prediction.fidelity == "recorded" and not _is_like_recorded(prediction)
    if name is None or not is_compared or is_other or is_unlike:
        return None
    return _WITH_EXPERTS if name == "library" and kind is StepKind.TRAINING_WITH_EXPERTS else name
