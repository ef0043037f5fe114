"""The figures of a step.

A device draws what its kernels make it draw while it computes
(`hespas.hardware.power.BoardPower`), and its idle power for the rest of the step. The machine
around it and the switches between machines draw the same all the while. All utilisations of one
answer divide by the same peak: that of the type of most of the FLOPs.
"""

from __future__ import annotations

from collections import defaultdict
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
    SUMS,
    breakdown,
    joined_breakdown,
    kind_rows,
    layer_rows,
    phase_rows,
    with_sums_of_gradients,
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
class RepeatedProgram:
    """A program that a device runs repeatedly in a step.

    It runs ``times`` times. ``exposed_share`` is the part of its exposed communication that stays
    exposed in the step, ``exchange_share`` that of all-to-alls between experts, and
    ``collective_share`` that of all else.
    """

    prediction: Prediction
    times: int = 1
    exposed_share: float = 1.0
    exchange_share: float = 1.0
    collective_share: float = 1.0


def energy_parts(
    prediction: Prediction | PipelinePrediction, programs: Sequence[RepeatedProgram]
) -> EnergyParts | None:
    """Return a step's energy parts, if power is known.

    Each of ``programs`` runs at a clock of its own; the clock shown is their mean over time.
    """
    device = prediction.device
    if device is None or device.power is None:
        return None
    power, step_s = device.power, prediction.step_time_s
    compute_j, memory_j, clocked_s, computed_s, limit_w = 0.0, 0.0, 0.0, 0.0, 0.0
    for program in programs:
        estimates, times = program.prediction.estimates, program.times
        if (sustained := estimates.sustained) is None:
            return None
        board = energy(power, draw_of(estimates.total.total), sustained.clock)
        compute_j += board.compute_j * times
        memory_j += board.memory_j * times
        clocked_s += sustained.clock * estimates.total.time_s * times
        computed_s += estimates.total.time_s * times
        limit_w = sustained.limit_w
    idle_j = power.idle_w * step_s
    board_j = compute_j + memory_j + idle_j
    host = power.host
    node_j = None if host is None else host.device_w * step_s
    network_j = None if host is None else network_w(host, prediction.devices) * step_s
    machine_j = board_j + (node_j or 0.0) + (network_j or 0.0)
    device_w = board_j / step_s if step_s > 0 else 0.0
    return EnergyParts(
        compute_j=compute_j,
        memory_j=memory_j,
        idle_j=idle_j,
        node_j=node_j,
        network_j=network_j,
        facility_j=(prediction.options.energy.pue - 1) * machine_j,
        device_w=device_w,
        node_w=None if host is None else host.devices * (device_w + host.device_w),
        node_devices=None if host is None else host.devices,
        clock=clocked_s / computed_s if computed_s > 0 else 1.0,
        power_limit_w=limit_w,
    )


def _energy_j(parts: EnergyParts) -> float:
    parts_j = (parts.compute_j, parts.memory_j, parts.idle_j, parts.node_j, parts.network_j)
    return sum(part_j for part_j in parts_j if part_j is not None) + parts.facility_j


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
    # Sums of gradients read and write memory, in no program.
    sums_s = 0.0 if isinstance(prediction, Prediction) else prediction.accumulation_s
    parts = {
        "compute": bound.compute_s,
        "memory": bound.memory_s + sums_s,
        "launch": bound.launch_s + prediction.launch_wait_s,
        "exposed_communication": prediction.exposed_communication_s,
        "stage_wait": prediction.stage_wait_s,
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
"""The program has a key of its own; the others change no figure."""


def _given_options(options: PredictOptions) -> dict[str, Any]:
    """Return changed options by name, as JSON values.

    >>> from hespas.prediction.options import EstimateOptions
    >>> _given_options(PredictOptions(estimate=EstimateOptions(node="H100_80GB", threads=4)))
    {'node': 'H100_80GB'}
    """
    return {
        field.name: _json_value(value)
        for field, value in changed_options(options)
        if field.name not in _WITHOUT_EFFECT
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
            return {name: _json_value(item) for name, item in pairs.items()}
        case Sequence():
            return [_json_value(item) for item in cast("Sequence[object]", value)]
        case _:
            return str(value)


def explain_rows(changes: Sequence[Change]) -> list[ExplainRow]:
    """Return the rows of ``explain``.

    >>> (row,) = explain_rows([Change(change="link bandwidth doubled", step_time_s=0.9, gain=0.1)])
    >>> row.change, row.gain
    ('link bandwidth doubled', 0.1)
    """
    return [
        ExplainRow(change=change.change, step_time_s=change.step_time_s, gain=change.gain)
        for change in changes
    ]


def run_report(
    prediction: Prediction | PipelinePrediction, *, with_tables: bool = True
) -> RunReport:
    """Return the report of one or several programs' step.

    Figures of computation are those of one device; a pipeline's is of the stage that computes
    longest. A program with folded loops has no tables, nor has one without ``with_tables``;
    pipelines always have that of communication.
    """
    shown = prediction.options.report
    if not isinstance(prediction, Prediction):
        # Few models are divided into stages.
        from hespas.prediction.figures import pipeline  # noqa: PLC0415

        programs = pipeline.programs_of(prediction)
        rows = pipeline.communication_of(prediction, programs)
        report, sums_s = _summary(prediction, programs), prediction.accumulation_s
        sums = {SUMS: OpRow(count=0, time_s=sums_s, flops=0.0, bytes=0.0)} if sums_s else {}
        report = msgspec.structs.replace(
            report,
            per_op=report.per_op | sums,
            communication=rows,
            communication_s=sum(row.time_s for row in rows if row.kind not in {IDLE, SLOWED}),
            pipeline=pipeline.pipeline_rows(prediction),
        )
    else:
        programs = [RepeatedProgram(prediction=prediction)]
        limit = prediction.graph.program.overlap
        report = msgspec.structs.replace(
            _summary(prediction, programs),
            communication_s=prediction.communication_s,
            scheduler=None if limit is None else SchedulerLimit(**msgspec.structs.asdict(limit)),
        )
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
        if prediction.stages:
            # Few steps are recorded in stages.
            from hespas.prediction.figures.recorded_stages import stage_rows  # noqa: PLC0415

            report = msgspec.structs.replace(report, pipeline=stage_rows(prediction))
    report = _on_real_devices(report, prediction)
    if not with_tables:
        return report
    parts = joined_breakdown(
        (breakdown(program.prediction), program.times, program.exposed_share)
        for program in programs
    )
    if not isinstance(prediction, Prediction):
        parts = with_sums_of_gradients(parts, prediction.accumulation_s)
    return msgspec.structs.replace(
        report,
        kinds=kind_rows(parts),
        phases=phase_rows(parts),
        layers=layer_rows(parts, depth=shown.depth, each_layer=shown.each_layer),
    )


def _on_real_devices(report: RunReport, prediction: Prediction | PipelinePrediction) -> RunReport:
    """Add the effects of unequal and failing devices."""
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


def _summary(
    prediction: Prediction | PipelinePrediction, programs: Sequence[RepeatedProgram]
) -> RunReport:
    """Return the report's figures, without tables."""
    program, total = programs[0].prediction, Estimate()
    for part in programs:
        total += part.prediction.estimates.total * part.times
    cost, work, step_s = total.total, prediction.work, prediction.step_time_s
    compute_s, devices = prediction.compute_s, prediction.devices
    peak, moved_s = _peak(prediction, cost), cost.memory_time_at_peak_s
    known_peak = peak if cost.knows_peaks else None
    bytes_per_s = cost.bytes_moved / moved_s if moved_s > 0 else None
    tokens_per_s = _rate(work.tokens, step_s)
    groups = assumptions_of_step(prediction, total)
    energy_of, pue = energy_parts(prediction, programs), prediction.options.energy.pue
    board_j = None if cost.energy_j is None else cost.energy_j * pue
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
        stage_wait_s=prediction.stage_wait_s,
        host_transfer_s=sum(part.prediction.host_transfer_s * part.times for part in programs),
        exposed_host_transfer_s=prediction.exposed_host_transfer_s,
        straggler_s=prediction.straggler_s,
        bound=_bound_shares(prediction, cost),
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=_rate(tokens_per_s, devices),
        samples_per_s=_rate(work.samples, step_s),
        samples=work.sample_name,
        mfu=_share(work.model_flops, devices * step_s, peak),
        hardware_utilisation=_share(cost.flops, step_s, known_peak),
        flops=cost.flops,
        flops_utilisation=_share(cost.flops, compute_s, known_peak),
        memory_traffic_bytes=cost.bytes_moved,
        memory_utilisation=_share(cost.bytes_moved, compute_s, bytes_per_s),
        # Without a clock, of the board while it computes.
        energy_j=board_j if energy_of is None else _energy_j(energy_of),
        energy=energy_of,
        peak_memory_bytes=prediction.peak_memory_bytes,
        memory_capacity_bytes=prediction.memory_capacity_bytes,
        host_memory_bytes=prediction.host_memory_bytes,
        host_transfer_bytes=sum(
            part.prediction.host_transfer_bytes * part.times for part in programs
        ),
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
        peak_type=cost.main_type if peak else None,
        peak_flops_per_s=peak,
        peak_bytes_per_s=bytes_per_s,
        # Where no allocator reserves more, the peak is live.
        live_memory_bytes=program.memory.live_bytes if program.graph.program.is_recorded else None,
        launch_wait_s=prediction.launch_wait_s,
        holders=_holder_rows(program),
        expected_error=expected_error(prediction, step_s),
    )


def _rate(amount: float | None, over: float) -> float | None:
    return None if amount is None or over <= 0 else amount / over


def _op_row(op: OpEstimate) -> OpRow:
    count = int(op.count) if op.count.is_integer() else op.count
    return OpRow(count=count, time_s=op.time_s, flops=op.flops, bytes=op.bytes_moved)


def _holder_rows(prediction: Prediction) -> list[HolderRow]:
    """Return a recorded program's memory by role and module."""
    if not prediction.graph.program.is_recorded:
        return []
    sizes: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for buffer in prediction.memory.held:
        path = "/".join(merged_layers(buffer.location.split("/")))
        sizes[buffer.role, path].append(buffer.size_bytes)
    rows = [
        HolderRow(role=role, path=path, count=len(listed), bytes=sum(listed))
        for (role, path), listed in sizes.items()
    ]
    return sorted(rows, key=lambda row: (-row.bytes, row.role, row.path))
