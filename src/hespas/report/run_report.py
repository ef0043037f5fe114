"""The answer of ``hespas run``, for people and for programs."""

from __future__ import annotations

from hespas.prediction import Prediction
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
        "devices": prediction.devices,
        "flops": total.total.flops,
        "energy_j": total.total.energy_j,
        "per_op": {
            kind: {
                "count": op.count,
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
    """Return the answer as lines of text, every figure with its unit."""
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
        "",
        "Assumed:",
        *[f"  - {assumption}" for assumption in prediction.assumptions],
        *[f"warning: {warning}" for warning in prediction.warnings],
    ]
    return "\n".join(parts)


def _times(prediction: Prediction) -> list[str]:
    step_s = prediction.step_time_s
    exposed_s = prediction.exposed_communication_s
    hidden_s = max(0.0, prediction.communication_s - exposed_s)
    lines = [
        ("Step time", format_time(step_s), ""),
        ("  compute", format_time(prediction.compute_s), _share(prediction.compute_s, step_s)),
        ("  exposed communication", format_time(exposed_s), _share(exposed_s, step_s)),
        (
            "Communication",
            format_time(prediction.communication_s),
            f"{format_time(hidden_s)} of it hidden behind computation",
        ),
    ]
    return [f"{name:<24}{value:>12}   {note}".rstrip() for name, value, note in lines]


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:5.1f} %" if whole > 0 else ""


def _dominating(prediction: Prediction) -> list[str]:
    per_op = prediction.estimates.total.per_op
    ordered = sorted(per_op.items(), key=lambda pair: (-pair[1].time_s, pair[0]))
    lines = ["What dominates the computation (time, share, count):"]
    for kind, op in ordered[:_SHOWN_KINDS]:
        share = _share(op.time_s, prediction.compute_s)
        lines.append(f"  {kind:<30}{format_time(op.time_s):>12}  {share}  {op.count:8.0f}")
    if len(ordered) > _SHOWN_KINDS:
        rest_s = sum(op.time_s for _, op in ordered[_SHOWN_KINDS:])
        name = f"{len(ordered) - _SHOWN_KINDS} other kinds"
        share = _share(rest_s, prediction.compute_s)
        lines.append(f"  {name:<30}{format_time(rest_s):>12}  {share}")
    return lines


def _work(prediction: Prediction) -> list[str]:
    total = prediction.estimates.total.total
    flops = f"{format_quantity(total.flops, 'FLOP')}"
    flops_share = f"{100 * total.flops_utilisation:.1f} % of peak while computing"
    moved = f"{format_quantity(total.bytes_moved, 'B')} moved"
    moved_share = f"{100 * total.memory_utilisation:.1f} % of peak bandwidth"
    lines = [f"Per device: {flops} ({flops_share}), {moved} ({moved_share})"]
    if total.energy_j is not None:
        lines.append(f"Energy of the computation, per device: {total.energy_j:.4g} J")
    return lines
