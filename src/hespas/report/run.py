"""A prediction of a step, as ``hespas run`` reports it: a value, its JSON, and sections of text.

`run_report` gathers all figures once. Text and JSON are made from that alone: `SECTIONS` lists the
parts of the text, each a function from the report to lines; a part without lines is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from hespas.base.units import format_quantity, format_time
from hespas.base.version import __version__
from hespas.frontend.load import PARTITIONED
from hespas.prediction.explain.changes import main_changes
from hespas.prediction.result import Prediction
from hespas.price.estimate import OpEstimate
from hespas.program.overlap import OverlapLimit
from hespas.report.assumptions import assumptions_of_step, step_assumption_lines
from hespas.report.communication import communication_lines, communication_rows
from hespas.report.energy import energy_j, energy_parts
from hespas.report.explain import explain_rows, main_change_lines
from hespas.report.goodput import goodput_lines, goodput_report
from hespas.report.headline import bound_shares, headline_lines
from hespas.report.layers import (
    breakdown,
    kind_lines,
    kind_rows,
    layer_lines,
    layer_rows,
    phase_lines,
    phase_rows,
)
from hespas.report.options import given_options
from hespas.report.schema import SCHEMA_VERSION, OpRow, RunReport, SchedulerLimit
from hespas.report.stages import stage_lines
from hespas.report.utilisation import peak_text, utilisation_of


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


def run_json(report: RunReport) -> dict[str, object]:
    """Return the documented object: `hespas.report.schema` describes it."""
    return msgspec.to_builtins(report)


def run_text(report: RunReport, *, verbose: bool = False) -> str:
    """Return a report as lines of text, every figure with its unit.

    Of the assumptions it has those that decide most, or all if it is ``verbose``.
    """
    found = [lines for section in SECTIONS if (lines := section(report))]
    groups, warnings = report.assumption_groups, report.warnings
    found.append(step_assumption_lines(groups, warnings, verbose=verbose))
    return "\n\n".join("\n".join(lines) for lines in found)


def _work(report: RunReport) -> list[str]:
    bandwidth = report.peak_bytes_per_s
    rows = [
        (
            "Arithmetic",
            format_quantity(report.flops, "FLOP"),
            report.flops_utilisation,
            peak_text(report),
        ),
        (
            "Memory traffic",
            format_quantity(report.memory_traffic_bytes, "B"),
            report.memory_utilisation,
            "" if bandwidth is None else format_quantity(bandwidth, "B/s"),
        ),
    ]
    lines = [
        f"  {name:<22}{figure:>12}   {_of_peak(share, peak)}".rstrip()
        for name, figure, share, peak in rows
    ]
    return [f"Per device, in the {format_time(report.compute_s)} in which it computes:", *lines]


def _of_peak(share: float | None, peak: str) -> str:
    return "" if share is None else f"{100 * share:.1f} % of {peak or 'peak'}"


SECTIONS: tuple[Callable[[RunReport], list[str]], ...] = (
    headline_lines,
    stage_lines,
    kind_lines,
    phase_lines,
    layer_lines,
    lambda report: communication_lines(report.communication),
    _work,
    main_change_lines,
    goodput_lines,
)
"""The parts of the text before the assumptions, in order."""
