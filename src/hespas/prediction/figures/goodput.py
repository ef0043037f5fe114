"""What a long run of predicted steps reaches on devices that fail."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from hespas.base.units import format_amount, format_quantity, format_time
from hespas.errors import ConfigError, option
from hespas.prediction.figures.schema import GoodputReport
from hespas.prediction.goodput import (
    CHECKPOINT_BYTES_PER_S,
    CHECKPOINT_SOURCE,
    DEFAULT_REPAIR_S,
    DEFAULT_START_S,
    GoodputOptions,
    LongRun,
    best_interval_s,
    failure_interval,
    goodput_of,
)
from hespas.prediction.result import Prediction
from hespas.program.types import size_bytes

if TYPE_CHECKING:
    from hespas.prediction.answer import PipelinePrediction

_DAY_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What a long run repeats: ``tokens`` are those that it takes in, None where not known."""

    time_s: float
    devices: int
    device_name: str
    tokens: int | None


def goodput_report(prediction: Prediction) -> GoodputReport | None:
    """Return what a long run reaches, None where it is not asked for.

    Raises `ConfigError` for unknown failures, nothing to save, and an interval below a step.
    """
    given = prediction.options.long_run
    if not given.goodput:
        return None
    assumed: list[str] = []
    size = _checkpoint_bytes(prediction, assumed)
    return _report(_step_of(prediction), given, size, assumed)


def pipeline_goodput(prediction: PipelinePrediction) -> GoodputReport | None:
    """Return the same of a pipeline: checkpoints hold the weights and states of all stages once."""
    given = prediction.options.long_run
    if not given.goodput:
        return None
    return _report(_step_of(prediction), given, prediction.checkpoint_bytes, [])


def _step_of(prediction: Prediction | PipelinePrediction) -> _Step:
    return _Step(
        time_s=prediction.step_time_s,
        devices=prediction.devices,
        device_name=prediction.device_name,
        tokens=prediction.work.tokens,
    )


def _report(step: _Step, given: GoodputOptions, size: int, assumed: list[str]) -> GoodputReport:
    rate = failure_interval(given, step.device_name)
    if rate.source:
        hours = format_amount(rate.device_interval_s / 3600).strip()
        assumed.append(f"a device fails every {hours} hours: {rate.source}")
    failure_interval_s = rate.device_interval_s / step.devices
    bandwidth = given.checkpoint_bandwidth
    if bandwidth is None:
        bandwidth = CHECKPOINT_BYTES_PER_S * step.devices
        assumed.append(
            f"checkpoints are written and read at {format_quantity(bandwidth, 'B/s')}, "
            f"{format_quantity(CHECKPOINT_BYTES_PER_S, 'B/s')} for each device: {CHECKPOINT_SOURCE}"
        )
    save_s = size / bandwidth
    interval_s = _interval_s(step.time_s, given, failure_interval_s, save_s)
    if given.restart_time == DEFAULT_START_S:
        assumed.append(f"starting again takes {format_time(DEFAULT_START_S)} (--restart-time)")
    if given.spare_nodes is None:
        assumed.append("a node that failed is replaced at once (--spare-nodes)")
    elif given.repair_time == DEFAULT_REPAIR_S:
        assumed.append("a node that failed is back after a day (--repair-time)")
    assumed.append("failures come at random, and training waits while a checkpoint is saved")
    found = goodput_of(
        LongRun(
            failure_interval_s=failure_interval_s,
            start_s=given.restart_time,
            load_s=save_s,
            save_s=save_s,
            interval_s=interval_s,
            spares=given.spare_nodes,
            repair_s=given.repair_time,
        )
    )
    steps_per_day = _DAY_S * found.productive / step.time_s
    tokens_per_day = None if step.tokens is None else step.tokens * steps_per_day
    days = _days(given, tokens_per_day)
    price = given.device_hour_usd
    return GoodputReport(
        productive=found.productive,
        saving=found.saving,
        lost=found.lost,
        starting=found.starting,
        loading=found.loading,
        waiting=found.waiting,
        failure_interval_s=failure_interval_s,
        checkpoint_interval_s=interval_s,
        checkpoint_bytes=size,
        checkpoint_s=save_s,
        tokens_per_day=tokens_per_day,
        steps_per_day=steps_per_day,
        days=days,
        usd=None if days is None or price is None else 24 * days * price * step.devices,
        assumptions=assumed,
    )


def _checkpoint_bytes(prediction: Prediction, assumed: list[str]) -> int:
    """Return what a step hands to the next one: outputs written over arguments, each once."""
    program = prediction.graph.program
    arguments = {alias.argument for alias in program.aliases}
    whole = program.whole.inputs
    if not arguments:
        raise ConfigError(
            "the step hands nothing to the next one that a checkpoint would hold",
            location=program.source,
            hint="donate what it updates: jax.jit(step, donate_argnums=0)",
        )
    if len(whole) > max(arguments):
        return sum(size_bytes(whole[argument]) for argument in arguments)
    assumed.append("every device's part is in the checkpoint, copies of it too")
    return prediction.memory.alias_bytes * prediction.devices


def _interval_s(
    step_s: float, given: GoodputOptions, failure_interval_s: float, save_s: float
) -> float:
    chosen = given.checkpoint_interval
    if chosen is None:
        best_s = best_interval_s(failure_interval_s=failure_interval_s, save_s=save_s)
        return step_s if best_s == inf else max(step_s, best_s)
    if chosen < step_s:
        raise ConfigError(
            f"{option('checkpoint_interval')} of {format_time(chosen)} is shorter than a step",
            hint=f"give {format_time(step_s)} or more",
        )
    return chosen


def _days(given: GoodputOptions, tokens_per_day: float | None) -> float | None:
    if given.train_tokens is None:
        return None
    if tokens_per_day is None:
        raise ConfigError(
            f"{option('train_tokens')} has no effect: the tokens of a step are not known",
            hint=f"give {option('tokens')}",
        )
    return given.train_tokens / tokens_per_day
