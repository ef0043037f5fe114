"""The figures of a long run."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from hespas.base.fields import refuse_unused
from hespas.base.units import DAY_S, format_amount, format_quantity, format_time
from hespas.errors import ConfigError, option
from hespas.hardware.interconnect import Dimensions
from hespas.hardware.system import interconnect_of
from hespas.prediction.figures.schema import GoodputReport, PlayedReport, Quantiles
from hespas.prediction.goodput import (
    CHECKPOINT_BYTES_PER_S,
    CHECKPOINT_SOURCE,
    DEFAULT_REPAIR_S,
    DEFAULT_START_S,
    TOKENS,
    CheckpointMode,
    FailureRate,
    GoodputOptions,
    LongRun,
    best_interval_s,
    failure_interval,
    goodput_of,
)
from hespas.prediction.hazards import Cause, Hazards, hazards_of
from hespas.prediction.machines import host_bandwidth
from hespas.prediction.result import Prediction
from hespas.program.program import Program
from hespas.program.types import size_bytes

if TYPE_CHECKING:
    from hespas.prediction.answer import PipelinePrediction
    from hespas.prediction.long_run import Floats

    AnyPrediction = Prediction | PipelinePrediction

_SEARCH_SEEDS = 100
"""Seeds with which the number of spares is searched for."""


_WITH_COPIES = "every device's part is in the checkpoint, copies of it too"
_SAVED_ROLES = ("parameter", "optimizer_state")


def goodput_report(
    prediction: AnyPrediction, *, energy_j: float | None = None, idle_w: float = 0.0
) -> GoodputReport:
    """Return the shares of a long run's time.

    ``energy_j`` is that of a device in a step, ``idle_w`` its power while it waits. Raises
    `ConfigError` for unknown failures, nothing to save, and an interval below a step.
    """
    options, assumed = prediction.options.long_run, list[str]()
    if isinstance(prediction, Prediction):
        size = _checkpoint_bytes(prediction, assumed)
    else:
        size = prediction.checkpoint_bytes
    step_s, devices, tokens = prediction.step_time_s, prediction.devices, prediction.work.tokens
    rate = failure_interval(options, prediction.device_name)
    hazards = _hazards(prediction, rate, assumed)
    run = _long_run(prediction, size, _interval_between(hazards, rate, devices), assumed)
    reached = goodput_of(run)
    steps_per_day = DAY_S * reached.productive / step_s
    tokens_per_day = None if tokens is None else tokens * steps_per_day
    days = _days(options, tokens_per_day)
    price = options.device_hour_usd
    if price is not None and days is None and options.run_days is None:
        raise ConfigError(
            f"{option('device_hour_usd')} has no effect without the days of the run",
            hint=f"give {option('train_tokens')} or {option('run_days')}",
        )
    return GoodputReport(
        productive=reached.productive,
        saving=reached.saving,
        lost=reached.lost,
        starting=reached.starting,
        loading=reached.loading,
        waiting=reached.waiting,
        failure_interval_s=run.failure_interval_s,
        checkpoint_interval_s=run.interval_s,
        checkpoint_bytes=size,
        checkpoint_s=run.save_s,
        tokens_per_day=tokens_per_day,
        steps_per_day=steps_per_day,
        days=days,
        usd=None
        if days is None or price is None
        else 24 * days * price * _paid_devices(prediction, hazards),
        assumptions=assumed,
        played=None
        if options.run_days is None
        else _played(prediction, run, hazards, energy_j=energy_j, idle_w=idle_w),
    )


def _interval_between(hazards: Hazards | None, rate: FailureRate | None, devices: int) -> float:
    """Return the mean time between interruptions of the whole run."""
    if rate is not None:
        return rate.device_interval_s / devices
    return inf if hazards is None else hazards.interval_s


def _hazards(
    prediction: AnyPrediction, rate: FailureRate | None, assumed: list[str]
) -> Hazards | None:
    """Return the hazards of the runs to play, if any."""
    options, devices = prediction.options.long_run, prediction.devices
    if rate is not None and rate.source:
        hours = format_amount(rate.device_interval_s / 3600).strip()
        assumed.append(f"a device fails every {hours} hours: {rate.source}")
    if options.run_days is None:
        return None
    size = _node_devices(prediction)
    if options.hazards is not None:
        assumed.append(f"what fails: {options.hazards.source}")
        return hazards_of(options.hazards, devices=devices, node_devices=size)
    if rate is None:
        raise AssertionError("failure_interval has one without hazards")
    cause = Cause(name="a device", interval_s=rate.device_interval_s / devices)
    return Hazards(causes=(cause,), nodes=-(-devices // (size or devices)))


def _node_devices(prediction: AnyPrediction) -> int | None:
    """Return the devices of a node, if they are known."""
    device = prediction.device
    host = None if device is None or device.power is None else device.power.host
    return None if host is None else host.devices


def _paid_devices(prediction: AnyPrediction, hazards: Hazards | None) -> float:
    """Return the number of devices that are paid, spares included."""
    devices, spares = prediction.devices, prediction.options.long_run.spare_nodes or 0
    nodes = -(-devices // (_node_devices(prediction) or devices))
    return devices * (1 + spares / (nodes if hazards is None else hazards.nodes))


def _long_run(
    prediction: AnyPrediction, size: int, failure_interval_s: float, assumed: list[str]
) -> LongRun:
    options = prediction.options.long_run
    save_s, behind_s, load_s = _checkpoint_times(prediction, size, assumed)
    interval_s = _interval_s(prediction.step_time_s, options, failure_interval_s, save_s, behind_s)
    if options.restart_time == DEFAULT_START_S:
        assumed.append(f"starting again takes {format_time(DEFAULT_START_S)} (--restart-time)")
    if options.spare_nodes is None:
        assumed.append("a node that failed is replaced at once (--spare-nodes)")
    elif options.repair_time == DEFAULT_REPAIR_S:
        assumed.append("a node that failed is back after a day (--repair-time)")
    if options.elastic_nodes is not None:
        if options.run_days is None:
            raise ConfigError(
                f"{option('elastic_nodes')} has no effect on closed forms, which wait for nodes",
                hint=f"give {option('run_days')}, or drop it",
            )
        assumed.append(
            f"runs that are played go on without copies of {options.elastic_nodes} nodes, at as "
            "much of their speed; the figures above them wait"
        )
    assumed.append(f"failures come at random, and {_WAITS[options.checkpoint_mode]}")
    return LongRun(
        failure_interval_s=failure_interval_s,
        start_s=options.restart_time,
        load_s=load_s,
        save_s=save_s,
        interval_s=interval_s,
        spares=options.spare_nodes,
        repair_s=options.repair_time,
        behind_s=behind_s,
        elastic_nodes=options.elastic_nodes,
    )


_WAITS = {
    CheckpointMode.SYNCHRONOUS: "training waits while a checkpoint is saved",
    CheckpointMode.ASYNCHRONOUS: (
        "training waits while a checkpoint is copied to the hosts; they write it beside training"
    ),
    CheckpointMode.MEMORY: (
        "training waits while a checkpoint is copied to the hosts; another node's host has a "
        "second copy, and no failure takes both"
    ),
}


def _checkpoint_times(
    prediction: AnyPrediction, size: int, assumed: list[str]
) -> tuple[float, float, float]:
    """Return the times that a checkpoint takes.

    They are those that training waits, until the checkpoint is complete, and to load it.
    """
    options, devices = prediction.options.long_run, prediction.devices
    mode = options.checkpoint_mode
    if mode is CheckpointMode.MEMORY and options.checkpoint_bandwidth is not None:
        raise ConfigError(
            f"{option('checkpoint_bandwidth')} has no effect: hosts keep the checkpoints",
            hint=f"drop it, or give another {option('checkpoint_mode')}",
        )
    copied_s = 0.0
    if mode is not CheckpointMode.SYNCHRONOUS:
        to_host = host_bandwidth(prediction.options.estimate)
        if to_host is None:
            raise ConfigError(
                f"the link of {prediction.device_name or 'the device'} to its host is not known",
                hint="add host_bandwidth_bytes_per_s to the node's file",
            )
        copied_s = size / devices / to_host
    if mode is CheckpointMode.MEMORY:
        moved_s = size / devices / _outer_bandwidth(prediction)
        return copied_s, moved_s, moved_s + copied_s
    bandwidth = options.checkpoint_bandwidth
    if bandwidth is None:
        bandwidth = CHECKPOINT_BYTES_PER_S * devices
        assumed.append(
            f"checkpoints are written and read at {format_quantity(bandwidth, 'B/s')}, "
            f"{format_quantity(CHECKPOINT_BYTES_PER_S, 'B/s')} for each device: {CHECKPOINT_SOURCE}"
        )
    written_s = size / bandwidth
    if mode is CheckpointMode.ASYNCHRONOUS:
        return copied_s, written_s, written_s
    return written_s, 0.0, written_s


def _outer_bandwidth(prediction: AnyPrediction) -> float:
    """Return the bandwidth of a device's link to other nodes."""
    system = prediction.system
    fabric = None if system is None else interconnect_of(system).fabric
    if not isinstance(fabric, Dimensions):
        raise ConfigError(
            "the bandwidth between nodes is not known, and checkpoints are copied over it",
            hint=f"give another {option('checkpoint_mode')}",
        )
    return fabric.dimensions[-1].bandwidth_bytes_per_s


def _played(
    prediction: AnyPrediction,
    run: LongRun,
    hazards: Hazards | None,
    *,
    energy_j: float | None,
    idle_w: float,
) -> PlayedReport | None:
    """Play the run, and search for the best spares."""
    # Few ask for runs that are played, which need NumPy.
    from hespas.prediction.long_run import (  # noqa: PLC0415
        CATEGORIES,
        best_spares,
        check_playable,
        played,
    )

    options, devices = prediction.options.long_run, prediction.devices
    step_s = prediction.step_time_s
    if options.run_days is None or hazards is None:
        return None
    run_s = options.run_days * DAY_S
    check_playable(hazards, run_s=run_s, seeds=options.run_seeds)
    runs = played(run, hazards, run_s=run_s, seeds=options.run_seeds, seed=options.run_seed)
    tokens, price = prediction.work.tokens, options.device_hour_usd
    trained_s = runs.seconds["productive"] + runs.seconds["lost"]
    energy = None
    if energy_j is not None:
        steps = trained_s / step_s
        energy = devices * (energy_j * steps + idle_w * (run_s - trained_s))
    spares: tuple[int, float] | None = None
    if hazards.nodes > 1 and any(cause.nodes for cause in hazards.causes):
        seeds = min(options.run_seeds, _SEARCH_SEEDS)
        spares = best_spares(run, hazards, run_s=run_s, seeds=seeds, seed=options.run_seed)
    return PlayedReport(
        days=options.run_days,
        seeds=options.run_seeds,
        goodput=_quantiles(runs.goodput),
        shares={name: runs.share(name) for name in CATEGORIES},
        interruptions=_quantiles(sum(runs.struck.values(), start=0.0 * runs.goodput)),
        causes={name: float(count.mean()) for name, count in runs.struck.items()},
        unequal_share=None if runs.worst is None else float(runs.worst.mean()),
        tokens_per_day=None
        if tokens is None
        else _quantiles(tokens * runs.goodput * (DAY_S / step_s)),
        energy_j=None if energy is None else _quantiles(energy),
        usd=None
        if price is None
        else 24 * options.run_days * price * _paid_devices(prediction, hazards),
        best_interval_s=_best_interval_s(step_s, run.failure_interval_s, run.save_s, run.behind_s),
        best_spare_nodes=None if spares is None else spares[0],
        best_spare_goodput=None if spares is None else spares[1],
    )


def _best_interval_s(
    step_s: float, failure_interval_s: float, save_s: float, behind_s: float
) -> float:
    best_s = best_interval_s(failure_interval_s=failure_interval_s, save_s=save_s)
    return step_s if best_s == inf else max(step_s, best_s, behind_s)


def _quantiles(values: Floats) -> Quantiles:
    import numpy as np  # noqa: PLC0415 - as above

    low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))
    return Quantiles(p5=float(low), p50=float(middle), p95=float(high), mean=float(values.mean()))


def _checkpoint_bytes(prediction: Prediction, assumed: list[str]) -> int:
    """Return the bytes that a step hands to the next."""
    program = prediction.graph.program
    if program.recorded is not None:
        assumed.append(_WITH_COPIES)
        if not prediction.stages:
            return _saved_bytes(program) * prediction.devices
        return sum(
            _saved_bytes(stage.prediction.graph.program) * len(stage.devices)
            for stage in prediction.stages
        )
    arguments = {alias.argument for alias in program.aliases}
    inputs = program.global_facts.inputs
    if not arguments:
        raise ConfigError(
            "the step hands nothing to the next one that a checkpoint would hold",
            location=program.source,
            hint="donate what it updates: jax.jit(step, donate_argnums=0)",
        )
    if len(inputs) > max(arguments):
        return sum(size_bytes(inputs[argument]) for argument in arguments)
    assumed.append(_WITH_COPIES)
    return prediction.memory.alias_bytes * prediction.devices


def _saved_bytes(program: Program) -> int:
    """Return the weights and states of a device of a recorded step; `ConfigError` without any."""
    storages = () if program.recorded is None else program.recorded.storages
    saved = sum(storage.size_bytes for storage in storages if storage.role in _SAVED_ROLES)
    if saved == 0:
        raise ConfigError(
            "the step has no parameters that a checkpoint would hold",
            location=program.source,
            hint=f"drop {option('goodput')}",
        )
    return saved


def _interval_s(
    step_s: float,
    options: GoodputOptions,
    failure_interval_s: float,
    save_s: float,
    behind_s: float,
) -> float:
    chosen = options.checkpoint_interval
    if chosen is None:
        return _best_interval_s(step_s, failure_interval_s, save_s, behind_s)
    if chosen < behind_s:
        raise ConfigError(
            f"{option('checkpoint_interval')} of {format_time(chosen)} is shorter than it takes to "
            f"write a checkpoint, {format_time(behind_s)}",
            hint=f"give that or more, or a higher {option('checkpoint_bandwidth')}",
        )
    if chosen < step_s:
        raise ConfigError(
            f"{option('checkpoint_interval')} of {format_time(chosen)} is shorter than a step",
            hint=f"give {format_time(step_s)} or more",
        )
    return chosen


def _days(options: GoodputOptions, tokens_per_day: float | None) -> float | None:
    refuse_unused(options, {TOKENS: tokens_per_day is None})
    if options.train_tokens is None or tokens_per_day is None:
        return None
    return options.train_tokens / tokens_per_day
