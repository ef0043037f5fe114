"""The figures of a step: totals, shares, energy, utilisation, and the options that decide them.

A device draws what its kernels make it draw while it computes
(`hespas.hardware.power.BoardPower`), and its idle power for the rest of the step. The machine
around it and the switches between machines draw the same all the while. All utilisations of one
answer divide by the same peak: that of the type of most of the FLOPs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

import msgspec

from hespas.base.fields import option_of
from hespas.base.version import __version__
from hespas.frontend.load import PARTITIONED
from hespas.hardware.cluster import Cluster
from hespas.hardware.device import Device
from hespas.hardware.power import energy, network_w
from hespas.hardware.system import System
from hespas.prediction.answer import PipelinePrediction
from hespas.prediction.explain.changes import Change, main_changes
from hespas.prediction.figures.assumptions import assumptions_of_step
from hespas.prediction.figures.breakdown import breakdown, kind_rows, layer_rows, phase_rows
from hespas.prediction.figures.communication import communication_rows
from hespas.prediction.figures.goodput import goodput_report
from hespas.prediction.figures.schema import (
    SCHEMA_VERSION,
    BoundShares,
    EnergyParts,
    ExplainRow,
    OpRow,
    RunReport,
    SchedulerLimit,
)
from hespas.prediction.options import PredictOptions
from hespas.prediction.result import Prediction
from hespas.price.estimate import Bound, OpEstimate
from hespas.price.graph import draw_of
from hespas.program.program import OverlapLimit


def energy_parts(prediction: Prediction) -> EnergyParts | None:
    """Return the parts of the energy of a step; None where the clock doesn't follow from power."""
    sustained, device = prediction.estimates.sustained, prediction.device
    if sustained is None or device is None or device.power is None:
        return None
    power, step_s = device.power, prediction.step_time_s
    board = energy(power, draw_of(prediction.estimates.total.total), sustained.clock)
    idle_j = power.idle_w * step_s
    board_j = board.compute_j + board.memory_j + idle_j
    host = power.host
    node_j = None if host is None else host.device_w * step_s
    network_j = None if host is None else network_w(host, prediction.devices) * step_s
    machine_j = board_j + (node_j or 0.0) + (network_j or 0.0)
    device_w = board_j / step_s if step_s > 0 else 0.0
    return EnergyParts(
        compute_j=board.compute_j,
        memory_j=board.memory_j,
        idle_j=idle_j,
        node_j=node_j,
        network_j=network_j,
        facility_j=(prediction.options.energy.pue - 1) * machine_j,
        device_w=device_w,
        node_w=None if host is None else host.devices * (device_w + host.device_w),
        node_devices=None if host is None else host.devices,
        clock=sustained.clock,
        power_limit_w=sustained.limit_w,
    )


def energy_j(prediction: Prediction) -> float | None:
    """Return the energy of a step: the sum of its parts, where they are known.

    Elsewhere it is what the method says of the board while it computes; None if it says nothing.
    """
    parts = energy_parts(prediction)
    if parts is None:
        return with_facility(prediction.estimates.total.total.energy_j, prediction.options)
    known = (parts.compute_j, parts.memory_j, parts.idle_j, parts.node_j, parts.network_j)
    return sum(each for each in known if each is not None) + parts.facility_j


def with_facility(energy_j: float | None, options: PredictOptions) -> float | None:
    """Return an energy with what the site needs for it; None where it is not known."""
    return None if energy_j is None else energy_j * options.energy.pue


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Shares of the peak rates, and the rates; None is what is not known.

    ``mfu`` and ``executed`` are over the step, ``computing`` and ``memory`` over the time in which
    a device computes.
    """

    mfu: float | None
    executed: float | None
    computing: float | None
    memory: float | None
    peak_type: str | None
    flops_per_s: float | None
    bytes_per_s: float | None


def utilisation_of(prediction: Prediction | PipelinePrediction, total: OpEstimate) -> Utilisation:
    """Return the shares of the peaks that a step uses.

    ``total`` is what one device computes in it.
    """
    step_s, compute_s = prediction.step_time_s, prediction.compute_s
    flops_per_s, moved_s = _peak(prediction, total), total.memory_time_at_peak_s
    executed_per_s = flops_per_s if total.knows_peaks else None
    bytes_per_s = total.bytes_moved / moved_s if moved_s > 0 else None
    return Utilisation(
        mfu=_share(prediction.work.model_flops, prediction.devices * step_s, flops_per_s),
        executed=_share(total.flops, step_s, executed_per_s),
        computing=_share(total.flops, compute_s, executed_per_s),
        memory=_share(total.bytes_moved, compute_s, bytes_per_s),
        peak_type=total.main_type if flops_per_s else None,
        flops_per_s=flops_per_s,
        bytes_per_s=bytes_per_s,
    )


def _peak(prediction: Prediction | PipelinePrediction, total: OpEstimate) -> float | None:
    """Return the peak rate of the type of most of the FLOPs; None where it is not known."""
    name, device = total.main_type, prediction.device
    if not name:
        return None
    if device is not None:
        return device.rate(name)
    done = total.per_type[name]
    return done.flops / done.time_at_peak_s if done.time_at_peak_s > 0 else None


def _share(amount: float | None, time_s: float, peak_per_s: float | None) -> float | None:
    if amount is None or peak_per_s is None or time_s <= 0:
        return None
    return amount / (time_s * peak_per_s)


def bound_shares(prediction: Prediction) -> BoundShares:
    """Return what the step's time goes to, as shares that add to 1."""
    return shares(
        prediction.estimates.total.total,
        exposed_communication_s=prediction.exposed_communication_s,
        exposed_host_transfer_s=prediction.exposed_host_transfer_s,
        straggler_s=prediction.straggler_s,
    )


def shares(
    total: OpEstimate,
    *,
    exposed_communication_s: float,
    exposed_host_transfer_s: float = 0.0,
    straggler_s: float = 0.0,
) -> BoundShares:
    """Return what a step's time goes to, from its computation and the rest.

    A step of no time is all ``other``.
    """
    bound: Bound = total.bound
    parts = {
        "compute": bound.compute_s,
        "memory": bound.memory_s,
        "launch": bound.launch_s,
        "exposed_communication": exposed_communication_s,
        "exposed_host_transfer": exposed_host_transfer_s,
        "straggler": straggler_s,
        "other": total.other_s,
    }
    whole_s = sum(parts.values())
    if whole_s <= 0:
        parts, whole_s = {**dict.fromkeys(parts, 0.0), "other": 1.0}, 1.0
    return BoundShares(**{name: part / whole_s for name, part in parts.items()})


_WITHOUT_EFFECT = frozenset(
    {
        *("mlir_file", "disable_cache", "in_memory_only_cache", "cache_dir", "threads", "output"),
        "verbose",
    }
)
"""The program has a key of its own; the others change where answers are kept and shown alone."""


def given_options(options: PredictOptions) -> dict[str, Any]:
    """Return the options that differ from their defaults, by name, as JSON values.

    >>> from hespas.prediction.options import EstimateOptions
    >>> given_options(PredictOptions(estimate=EstimateOptions(node="H100_80GB", threads=4)))
    {'node': 'H100_80GB'}
    """
    return {name: value for name, value in _given(options) if name not in _WITHOUT_EFFECT}


def _given(section: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(section):
        value: Any = getattr(section, field.name)
        option = option_of(field)
        if option is not None and value != _default(field):
            yield option.name or field.name, _json_value(value)
        elif option is None and dataclasses.is_dataclass(value):
            yield from _given(value)


def _default(field: dataclasses.Field[Any]) -> object:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _json_value(value: object) -> object:
    match value:
        case bool() | int() | float() | str() | None | Enum():
            return msgspec.to_builtins(value)
        case Path() | Device() | System() | Cluster():
            return Path(value.source).name if isinstance(value, Cluster) else value.name
        case msgspec.Struct():
            return _json_value(msgspec.structs.asdict(value))
        case Mapping():
            pairs = cast("Mapping[str, object]", value)
            return {name: _json_value(each) for name, each in pairs.items()}
        case Sequence():
            return [_json_value(each) for each in cast("Sequence[object]", value)]
        case _:
            return str(value)


def explain_rows(changes: Sequence[Change]) -> list[ExplainRow]:
    """Return the rows of ``explain``: what was changed, the step then, and what that gains of it.

    >>> (row,) = explain_rows([Change(change="link bandwidth doubled", step_time_s=0.9, gain=0.1)])
    >>> row.change, row.gain
    ('link bandwidth doubled', 0.1)
    """
    return [
        ExplainRow(change=each.change, step_time_s=each.step_time_s, gain=each.gain)
        for each in changes
    ]


def run_report(prediction: Prediction) -> RunReport:
    """Return all that is reported of a prediction; FLOPs and energy are those of one device.

    Where rounds of loops stand for others, it has no tables, and a warning says so.
    """
    if prediction.graph.is_folded:
        return _folded_report(prediction)
    found = breakdown(prediction)
    shown = prediction.options.report
    return msgspec.structs.replace(
        run_summary(prediction),
        kinds=kind_rows(found),
        phases=phase_rows(found),
        layers=layer_rows(found, depth=shown.depth, each_layer=shown.each_layer),
        communication=communication_rows(prediction),
        explain=explain_rows(main_changes(prediction)),
        goodput=goodput_report(prediction),
    )


def report_without_tables(prediction: Prediction) -> RunReport:
    """Return the same without the tables of kernels, modules, communication and changes."""
    return msgspec.structs.replace(run_summary(prediction), goodput=goodput_report(prediction))


def _folded_report(prediction: Prediction) -> RunReport:
    report = report_without_tables(prediction)
    rounds = f"a step has {prediction.graph.kernels:,} kernels: a few rounds of each loop were"
    note = f"{rounds} simulated, which are as long as the others, and tables are left out"
    return msgspec.structs.replace(report, warnings=[*report.warnings, note])


def run_summary(prediction: Prediction) -> RunReport:
    """Return the figures alone."""
    total = prediction.estimates.total
    whole = total.total
    step_s, work = prediction.step_time_s, prediction.work
    used = utilisation_of(prediction, whole)
    tokens_per_s = rate_of(work.tokens, step_s)
    groups = assumptions_of_step(prediction, total)
    return RunReport(
        schema_version=SCHEMA_VERSION,
        program=Path(prediction.graph.program.source).name.removesuffix(PARTITIONED),
        node=prediction.device_name,
        system=None if prediction.system is None else prediction.system.name,
        method=prediction.estimates.method,
        fidelity=prediction.graph.program.fidelity,
        devices=prediction.devices,
        step_time_s=prediction.step_time_s,
        compute_s=prediction.compute_s,
        communication_s=prediction.communication_s,
        exposed_communication_s=prediction.exposed_communication_s,
        host_transfer_s=prediction.host_transfer_s,
        exposed_host_transfer_s=prediction.exposed_host_transfer_s,
        straggler_s=prediction.straggler_s,
        bound=bound_shares(prediction),
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=rate_of(tokens_per_s, prediction.devices),
        samples_per_s=rate_of(work.samples, step_s),
        samples=work.what,
        mfu=used.mfu,
        hardware_utilisation=used.executed,
        flops=whole.flops,
        flops_utilisation=used.computing,
        memory_traffic_bytes=whole.bytes_moved,
        memory_utilisation=used.memory,
        energy_j=energy_j(prediction),
        energy=energy_parts(prediction),
        peak_memory_bytes=prediction.memory.peak_bytes,
        memory_capacity_bytes=prediction.memory_capacity_bytes,
        host_memory_bytes=prediction.memory.host_bytes,
        host_transfer_bytes=prediction.host_transfer_bytes,
        per_op={kind: op_row(op) for kind, op in sorted(total.per_op.items())},
        kinds=[],
        phases=[],
        layers=[],
        communication=[],
        explain=[],
        assumptions=[group.text for group in groups],
        assumption_groups=groups,
        warnings=list(prediction.warnings),
        options=given_options(prediction.options),
        versions={"hespas": __version__, **prediction.graph.program.compiler_versions},
        model_flops=work.model_flops,
        peak_type=used.peak_type,
        peak_flops_per_s=used.flops_per_s,
        peak_bytes_per_s=used.bytes_per_s,
        scheduler=_scheduler(prediction.graph.program.overlap),
    )


def _scheduler(limit: OverlapLimit | None) -> SchedulerLimit | None:
    return None if limit is None else SchedulerLimit(**msgspec.structs.asdict(limit))


def rate_of(amount: float | None, over: float) -> float | None:
    """Return an amount over a time; None where one is not known or there is none."""
    return None if amount is None or over <= 0 else amount / over


def op_row(op: OpEstimate) -> OpRow:
    """Return the row of one kind of operation."""
    return OpRow(
        count=int(op.count) if op.count.is_integer() else op.count,
        time_s=op.time_s,
        flops=op.flops,
        bytes=op.bytes_moved,
    )
