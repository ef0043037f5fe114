"""What a long run of predicted steps reaches on devices that fail."""

from __future__ import annotations

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


def goodput_report(prediction: Prediction | PipelinePrediction) -> GoodputReport | None:
    """Return what a long run reaches, None where it is not asked for.

    Raises `ConfigError` for unknown failures, nothing to save, and an interval below a step.
    """
    given, assumed = prediction.options.long_run, list[str]()
    if not given.goodput:
        return None
    if isinstance(prediction, Prediction):
        size = _checkpoint_bytes(prediction, assumed)
    else:
        size = prediction.checkpoint_bytes
    step_s, devices, tokens = prediction.step_time_s, prediction.devices, prediction.work.tokens
    rate = failure_interval(given, prediction.device_name)
    if rate.source:
        hours = format_amount(rate.device_interval_s / 3600).strip()
        assumed.append(f"a device fails every {hours} hours: {rate.source}")
    failure_interval_s = rate.device_interval_s / devices
    bandwidth = given.checkpoint_bandwidth
    if bandwidth is None:
        bandwidth = CHECKPOINT_BYTES_PER_S * devices
        assumed.append(
            f"checkpoints are written and read at {format_quantity(bandwidth, 'B/s')}, "
            f"{format_quantity(CHECKPOINT_BYTES_PER_S, 'B/s')} for each device: {CHECKPOINT_SOURCE}"
        )
    save_s = size / bandwidth
    interval_s = _interval_s(step_s, given, failure_interval_s, save_s)
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
    steps_per_day = _DAY_S * found.productive / step_s
    tokens_per_day = None if tokens is None else tokens * steps_per_day
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
        usd=None if days is None or price is None else 24 * days * price * devices,
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
