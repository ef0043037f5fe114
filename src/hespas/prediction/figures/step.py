"""The figures of a step: totals, shares, energy, utilisation, and the options that decide them.

A device draws what its kernels make it draw while it computes
(`hespas.hardware.power.BoardPower`), and its idle power for the rest of the step. The machine
around it and the switches between machines draw the same all the while. All utilisations of one
answer divide by the same peak: that of the type of most of the FLOPs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from hespas.base.fields import given_options
from hespas.base.version import __version__
from hespas.frontend.load import PARTITIONED
from hespas.hardware.cluster import Cluster
from hespas.hardware.device import Device
from hespas.hardware.power import energy, network_w
from hespas.hardware.system import System
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
from hespas.price.estimate import Estimate, OpEstimate
from hespas.price.graph import draw_of

if TYPE_CHECKING:
    from hespas.prediction.answer import PipelinePrediction


def energy_parts(prediction: Prediction) -> EnergyParts | None:
    """Return the parts of a step's energy; None where the clock doesn't follow from power."""
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


def _energy_j(parts: EnergyParts) -> float:
    known = (parts.compute_j, parts.memory_j, parts.idle_j, parts.node_j, parts.network_j)
    return sum(part for part in known if part is not None) + parts.facility_j


def _peak(prediction: Prediction | PipelinePrediction, total: OpEstimate) -> float | None:
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


def _bound_shares(
    prediction: Prediction | PipelinePrediction, total: OpEstimate, straggler_s: float
) -> BoundShares:
    bound = total.bound
    parts = {
        "compute": bound.compute_s,
        "memory": bound.memory_s,
        "launch": bound.launch_s,
        "exposed_communication": prediction.exposed_communication_s,
        "exposed_host_transfer": prediction.exposed_host_transfer_s,
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


def _given_options(options: PredictOptions) -> dict[str, Any]:
    """Return the options that differ from their defaults, by name, as JSON values.

    >>> from hespas.prediction.options import EstimateOptions
    >>> _given_options(PredictOptions(estimate=EstimateOptions(node="H100_80GB", threads=4)))
    {'node': 'H100_80GB'}
    """
    return {
        option.name: _json_value(value)
        for option, value in given_options(options)
        if option.name not in _WITHOUT_EFFECT
    }


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
    """Return all that is reported of a prediction; one of folded rounds has no tables."""
    if prediction.graph.is_folded:
        report = report_without_tables(prediction)
        note = (
            f"a step has {prediction.graph.kernels:,} kernels: a few rounds of each loop were "
            "simulated, which are as long as the others, and tables are left out"
        )
        return msgspec.structs.replace(report, warnings=[*report.warnings, note])
    parts, shown = breakdown(prediction), prediction.options.report
    return msgspec.structs.replace(
        report_without_tables(prediction),
        kinds=kind_rows(parts),
        phases=phase_rows(parts),
        layers=layer_rows(parts, depth=shown.depth, each_layer=shown.each_layer),
        communication=communication_rows(prediction),
        explain=explain_rows(main_changes(prediction)),
    )


def report_without_tables(prediction: Prediction) -> RunReport:
    """Return the same without the tables of kernels, modules, communication and changes."""
    return msgspec.structs.replace(run_summary(prediction), goodput=goodput_report(prediction))


def run_summary(prediction: Prediction) -> RunReport:
    """Return the figures alone."""
    graph, straggler_s = prediction.graph, prediction.straggler_s
    name = Path(graph.program.source).name.removesuffix(PARTITIONED)
    parts, limit = energy_parts(prediction), graph.program.overlap
    report = summary(prediction, prediction.estimates.total, prediction, name, straggler_s)
    return msgspec.structs.replace(
        report,
        communication_s=prediction.communication_s,
        host_transfer_s=prediction.host_transfer_s,
        energy_j=report.energy_j if parts is None else _energy_j(parts),
        energy=parts,
        peak_memory_bytes=prediction.memory.peak_bytes,
        host_memory_bytes=prediction.memory.host_bytes,
        host_transfer_bytes=prediction.host_transfer_bytes,
        scheduler=None if limit is None else SchedulerLimit(**msgspec.structs.asdict(limit)),
    )


def summary(
    prediction: Prediction | PipelinePrediction,
    total: Estimate,
    program: Prediction,
    name: str,
    straggler_s: float = 0.0,
) -> RunReport:
    """Return the figures that a step of one program and of several have alike.

    ``total`` is what one device computes, ``program`` one that it runs. Energy is that of the board
    while it computes.
    """
    whole, work, step_s = total.total, prediction.work, prediction.step_time_s
    compute_s, devices = prediction.compute_s, prediction.devices
    peak, moved_s = _peak(prediction, whole), whole.memory_time_at_peak_s
    known_peak = peak if whole.knows_peaks else None
    bytes_per_s = whole.bytes_moved / moved_s if moved_s > 0 else None
    tokens_per_s = _rate(work.tokens, step_s)
    groups = assumptions_of_step(prediction, total)
    pue = prediction.options.energy.pue
    return RunReport(
        schema_version=SCHEMA_VERSION,
        program=name,
        node=prediction.device_name,
        system=None if prediction.system is None else prediction.system.name,
        method=program.estimates.method,
        fidelity=program.fidelity,
        devices=devices,
        step_time_s=step_s,
        compute_s=compute_s,
        communication_s=0.0,
        exposed_communication_s=prediction.exposed_communication_s,
        host_transfer_s=0.0,
        exposed_host_transfer_s=prediction.exposed_host_transfer_s,
        straggler_s=straggler_s,
        bound=_bound_shares(prediction, whole, straggler_s),
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=_rate(tokens_per_s, devices),
        samples_per_s=_rate(work.samples, step_s),
        samples=work.what,
        mfu=_share(work.model_flops, devices * step_s, peak),
        hardware_utilisation=_share(whole.flops, step_s, known_peak),
        flops=whole.flops,
        flops_utilisation=_share(whole.flops, compute_s, known_peak),
        memory_traffic_bytes=whole.bytes_moved,
        memory_utilisation=_share(whole.bytes_moved, compute_s, bytes_per_s),
        energy_j=None if whole.energy_j is None else whole.energy_j * pue,
        energy=None,
        peak_memory_bytes=0,
        memory_capacity_bytes=prediction.memory_capacity_bytes,
        host_memory_bytes=0,
        host_transfer_bytes=0,
        per_op={kind: _op_row(op) for kind, op in sorted(total.per_op.items())},
        kinds=[],
        phases=[],
        layers=[],
        communication=[],
        explain=[],
        assumptions=[group.text for group in groups],
        assumption_groups=groups,
        warnings=list(prediction.warnings),
        options=_given_options(prediction.options),
        versions={"hespas": __version__, **program.graph.program.compiler_versions},
        model_flops=work.model_flops,
        peak_type=whole.main_type if peak else None,
        peak_flops_per_s=peak,
        peak_bytes_per_s=bytes_per_s,
    )


def _rate(amount: float | None, over: float) -> float | None:
    return None if amount is None or over <= 0 else amount / over


def _op_row(op: OpEstimate) -> OpRow:
    count = int(op.count) if op.count.is_integer() else op.count
    return OpRow(count=count, time_s=op.time_s, flops=op.flops, bytes=op.bytes_moved)
