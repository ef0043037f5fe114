"""A prediction of a step, as ``hespas run`` reports it: JSON and text."""

from __future__ import annotations

from hespas.estimate.estimate import OpEstimate
from hespas.prediction import Prediction
from hespas.report.assumptions import assumption_lines
from hespas.units import format_quantity, format_time

_SHOWN_KINDS = 8


def run_json(prediction: Prediction) -> dict[str, object]:
    """Return the documented object; FLOPs and energy are those of one device."""
    total = prediction.estimates.total
    return {
        "step_time_s": prediction.step_time_s,
        "compute_s": prediction.compute_s,
        "communication_s": prediction.communication_s,
        "exposed_communication_s": prediction.exposed_communication_s,
        "straggler_s": prediction.straggler_s,
        "devices": prediction.devices,
        "flops": total.total.flops,
        "energy_j": total.total.energy_j,
        "peak_memory_bytes": prediction.memory.peak_bytes,
        "per_op": {
            kind: {
                "count": int(op.count) if op.count.is_integer() else op.count,
                "time_s": op.time_s,
                "flops": op.flops,
                "bytes": op.bytes_moved,
            }
            for kind, op in sorted(total.per_op.items())
        },
        "assumptions": list(prediction.assumptions),
        "warnings": list(prediction.warnings),
    }


def run_text(prediction: Prediction, device: str) -> str:
    """Return the prediction as lines of text, every figure with its unit."""
    system = prediction.system
    where = f"{prediction.devices} x {device}" + (f" on {system.name}" if system else "")
    parts = [
        f"{prediction.graph.program.source}: one step on {where}",
        "",
        *_times(prediction),
        "",
        *_dominating(prediction),
        "",
        *_work(prediction),
        *_memory(prediction),
        "",
        *assumption_lines(prediction.assumptions, prediction.warnings),
    ]
    return "\n".join(parts)


def _times(prediction: Prediction) -> list[str]:
    step_s = prediction.step_time_s
    lines = [("Step time", step_s, "")]
    lines.append(("  compute", prediction.compute_s, _share(prediction.compute_s, step_s)))
    hidden = ""
    if prediction.communication_s > 0:
        exposed_s = prediction.exposed_communication_s
        hidden_s = max(0.0, prediction.communication_s - exposed_s)
        hidden = f"{format_time(hidden_s) if hidden_s else 'none'} of it hidden behind computation"
        lines.append(("  exposed communication", exposed_s, _share(exposed_s, step_s)))
    if prediction.timeline is not None and prediction.timeline.as_specified is not None:
        straggler_s = prediction.straggler_s
        lines.append(("  stragglers", straggler_s, _share(straggler_s, step_s)))
    if hidden:
        lines.append(("Communication", prediction.communication_s, f"  {hidden}"))
    return [f"{name:<24}{format_time(time_s):>12}  {note}".rstrip() for name, time_s, note in lines]


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:5.1f} %" if whole > 0 else ""


def _dominating(prediction: Prediction) -> list[str]:
    per_op = prediction.estimates.total.per_op
    ordered = sorted(per_op.items(), key=lambda pair: (-pair[1].time_s, pair[0]))
    shown, rest = ordered[:_SHOWN_KINDS], ordered[_SHOWN_KINDS:]
    rows = [(kind, op.time_s, f"{op.count:.6g}") for kind, op in shown if op.time_s > 0]
    if rest:
        name = f"{len(rest)} other kinds"
        count = sum(op.count for _, op in rest)
        rows.append((name, sum(op.time_s for _, op in rest), f"{count:.6g}"))
    width = max([24, *(len(name) for name, _, _ in rows)])
    lines = [
        f"{'The computation, by operation':<{width + 2}}{'time':>12}{'share':>10}{'count':>10}"
    ]
    for name, time_s, count in rows:
        share = _share(time_s, prediction.compute_s)
        lines.append(f"  {name:<{width}}{format_time(time_s):>12}{share:>10}{count:>10}")
    return lines


def _of_peak(total: OpEstimate, utilisation: float) -> str:
    return f"{100 * utilisation:.1f} % of peak" if total.knows_peaks else ""


def _work(prediction: Prediction) -> list[str]:
    total = prediction.estimates.total.total
    arithmetic = format_quantity(total.flops, "FLOP")
    moved = format_quantity(total.bytes_moved, "B")
    rows = [
        ("Arithmetic", arithmetic, _of_peak(total, total.flops_utilisation)),
        ("Memory traffic", moved, _of_peak(total, total.memory_utilisation)),
    ]
    if total.energy_j is not None:
        rows.append(("Energy", format_quantity(total.energy_j, "J"), ""))
    lines = [f"  {name:<22}{figure:>12}   {note}".rstrip() for name, figure, note in rows]
    return ["Per device, while it computes:", *lines]


def _memory(prediction: Prediction) -> list[str]:
    """Return a line on memory for compiled programs; before fusion the peak would be too high."""
    if not prediction.graph.program.is_scheduled:
        return []
    peak = format_quantity(prediction.memory.peak_bytes, "B")
    capacity_bytes = prediction.memory_capacity_bytes
    of = f"of {format_quantity(capacity_bytes, 'B')}" if capacity_bytes else ""
    return [f"  {'Memory, at the peak':<22}{peak:>12}   {of}".rstrip()]
