"""The figures of a step: totals, shares, energy, utilisation, options.

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

from hespas.base.fields import changed_options
from hespas.base.frozen import frozen
from hespas.base.version import __version__
from hespas.hardware.cluster import Cluster
from hespas.hardware.device import Device
from hespas.hardware.power import energy, network_w
from hespas.hardware.system import System
from hespas.hardware.variation import EQUAL
from hespas.prediction.explain.changes import Change, main_changes
from hespas.prediction.figures.assumptions import assumptions_of_step
from hespas.prediction.figures.breakdown import (
    breakdown,
    joined_breakdown,
    kind_rows,
    layer_rows,
    phase_rows,
)
from hespas.prediction.figures.communication import communication_rows
from hespas.prediction.figures.expected import expected_error
from hespas.prediction.figures.schema import (
    IDLE,
    SCHEMA_VERSION,
    SLOWED,
    BoundShares,
    EnergyParts,
    ExplainRow,
    HolderRow,
    OpRow,
    RunReport,
    SchedulerLimit,
)
from hespas.prediction.options import PredictOptions
from hespas.prediction.result import Prediction
from hespas.price.estimate import Estimate, OpEstimate
from hespas.price.graph import draw_of
from hespas.program.scopes import merged_layers

if TYPE_CHECKING:
    from hespas.prediction.answer import PipelinePrediction


@frozen
class Ran:
    """A program that a device runs ``times`` times in a step.

    ``both`` is the share of its exposed communication that stays exposed in the step,
    ``exchanges`` that of all-to-alls between experts, ``others`` that of all else.
    """

    prediction: Prediction
    times: int = 1
    both: float = 1.0
    exchanges: float = 1.0
    others: float = 1.0


def energy_parts(prediction: Prediction) -> EnergyParts | None:
    """Return a step's energy parts; None if power doesn't set the clock."""
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


def _bound_shares(prediction: Prediction | PipelinePrediction, total: OpEstimate) -> BoundShares:
    bound = total.bound
    parts = {
        "compute": bound.compute_s,
        "memory": bound.memory_s,
        "launch": bound.launch_s + prediction.launch_wait_s,
        "exposed_communication": prediction.exposed_communication_s,
        "exposed_host_transfer": prediction.exposed_host_transfer_s,
        "straggler": prediction.straggler_s,
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
        given.name: _json_value(value)
        for given, value in changed_options(options)
        if given.name not in _WITHOUT_EFFECT
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
    """Return the rows of ``explain``: the change, its step and its gain.

    >>> (row,) = explain_rows([Change(change="link bandwidth doubled", step_time_s=0.9, gain=0.1)])
    >>> row.change, row.gain
    ('link bandwidth doubled', 0.1)
    """
    return [
        ExplainRow(change=each.change, step_time_s=each.step_time_s, gain=each.gain)
        for each in changes
    ]


def run_report(
    prediction: Prediction | PipelinePrediction, *, with_tables: bool = True
) -> RunReport:
    """Return the report of a step of one or several programs.

    Figures of computation are those of one device, of a pipeline one of the stage that computes
    longest. A program of which rounds are folded has no tables, nor has one without
    ``with_tables``; a pipeline keeps that of communication.
    """
    shown = prediction.options.report
    if not isinstance(prediction, Prediction):
        # Few models are divided into stages.
        from hespas.prediction.figures import pipeline  # noqa: PLC0415

        ran = pipeline.ran_of(prediction)
        rows = pipeline.communication_of(prediction, ran)
        report = msgspec.structs.replace(
            _summary(prediction, ran),
            communication=rows,
            communication_s=sum(row.time_s for row in rows if row.kind not in {IDLE, SLOWED}),
            pipeline=pipeline.pipeline_rows(prediction),
        )
    else:
        ran = [Ran(prediction=prediction)]
        report = _with_energy(_summary(prediction, ran), prediction)
        if prediction.graph.is_folded and with_tables:
            note = (
                f"a step has {prediction.graph.kernels:,} kernels: a few rounds of each loop were "
                "simulated, which are as long as the others, and tables are left out"
            )
            report = _on_real_devices(report, prediction)
            return msgspec.structs.replace(report, warnings=[*report.warnings, note])
        if with_tables:
            report = msgspec.structs.replace(
                report,
                communication=communication_rows(prediction),
                explain=explain_rows(main_changes(prediction)),
            )
    report = _on_real_devices(report, prediction)
    if not with_tables:
        return report
    parts = joined_breakdown((breakdown(each.prediction), each.times, each.both) for each in ran)
    return msgspec.structs.replace(
        report,
        kinds=kind_rows(parts),
        phases=phase_rows(parts),
        layers=layer_rows(parts, depth=shown.depth, each_layer=shown.each_layer),
    )


def _on_real_devices(report: RunReport, prediction: Prediction | PipelinePrediction) -> RunReport:
    """Return a report with the effects of unequal and failing devices."""
    if prediction.options.network.variation != EQUAL:
        # Few ask for devices that are not equal.
        from hespas.prediction.figures.variation import variation_report  # noqa: PLC0415

        report = msgspec.structs.replace(report, variation=variation_report(prediction))
    if not prediction.options.long_run.goodput:
        return report
    # Few ask for long runs.
    from hespas.prediction.figures.long_run import goodput_report  # noqa: PLC0415

    energy_j, parts = report.energy_j, report.energy
    idle_j = 0.0 if parts is None else _energy_j(parts) - parts.compute_j - parts.memory_j
    idle_w = idle_j / report.step_time_s if report.step_time_s > 0 else 0.0
    run = goodput_report(prediction, energy_j=energy_j, idle_w=idle_w)
    return msgspec.structs.replace(report, goodput=run)


def _with_energy(report: RunReport, prediction: Prediction) -> RunReport:
    """Return a report with what is known of one program alone."""
    parts, limit = energy_parts(prediction), prediction.graph.program.overlap
    return msgspec.structs.replace(
        report,
        communication_s=prediction.communication_s,
        energy_j=report.energy_j if parts is None else _energy_j(parts),
        energy=parts,
        scheduler=None if limit is None else SchedulerLimit(**msgspec.structs.asdict(limit)),
    )


# As long as the report has figures.
def _summary(prediction: Prediction | PipelinePrediction, ran: Sequence[Ran]) -> RunReport:
    """Return the figures alone; energy is that of the board while it computes."""
    program, total = ran[0].prediction, Estimate()
    for each in ran:
        total += each.prediction.estimates.total * each.times
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
        program=prediction.name,
        node=prediction.device_name,
        system=None if prediction.system is None else prediction.system.name,
        method=program.estimates.method,
        fidelity=prediction.fidelity,
        devices=devices,
        step_time_s=step_s,
        compute_s=compute_s,
        communication_s=0.0,
        exposed_communication_s=prediction.exposed_communication_s,
        host_transfer_s=sum(each.prediction.host_transfer_s * each.times for each in ran),
        exposed_host_transfer_s=prediction.exposed_host_transfer_s,
        straggler_s=prediction.straggler_s,
        bound=_bound_shares(prediction, whole),
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
        peak_memory_bytes=prediction.peak_memory_bytes,
        memory_capacity_bytes=prediction.memory_capacity_bytes,
        host_memory_bytes=prediction.host_memory_bytes,
        host_transfer_bytes=sum(each.prediction.host_transfer_bytes * each.times for each in ran),
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
        live_memory_bytes=_live_memory_bytes(program),
        launch_wait_s=prediction.launch_wait_s,
        holders=_holder_rows(program),
        expected_error=expected_error(prediction),
    )


def _rate(amount: float | None, over: float) -> float | None:
    return None if amount is None or over <= 0 else amount / over


def _op_row(op: OpEstimate) -> OpRow:
    count = int(op.count) if op.count.is_integer() else op.count
    return OpRow(count=count, time_s=op.time_s, flops=op.flops, bytes=op.bytes_moved)


def _live_memory_bytes(prediction: Prediction) -> int | None:
    """Return the live bytes at the peak; None where no allocator reserves more."""
    return prediction.memory.live_bytes if prediction.graph.program.is_recorded else None


def _holder_rows(prediction: Prediction) -> list[HolderRow]:
    """Return rows by role and module, equal layers together, the largest first."""
    if not prediction.graph.program.is_recorded:
        return []
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for buffer in prediction.memory.held:
        key = buffer.role, "/".join(merged_layers(buffer.location.split("/")))
        count, size = found.get(key, (0, 0))
        found[key] = count + 1, size + buffer.size_bytes
    rows = [
        HolderRow(role=role, path=path, count=count, bytes=size)
        for (role, path), (count, size) in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.bytes, row.role, row.path))
