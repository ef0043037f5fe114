"""What share of its peak rates a step uses: FLOPs over (time x peak).

All shares of one answer divide by the same peak: that of the type of most of the FLOPs. They are
above 1 where much of the work is of a type that is faster, and so divide out with the figures that
stand beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

from hespas.base.units import format_quantity, format_time
from hespas.prediction.answer import PipelinePrediction
from hespas.prediction.result import Prediction
from hespas.price.estimate import OpEstimate
from hespas.report.schema import RunReport


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


def utilisation_rows(report: RunReport) -> list[tuple[str, str]]:
    """Return what of the peak a step uses as rows of text, each with what it divides by."""
    step, peak = format_time(report.step_time_s), peak_text(report)
    rows: list[tuple[str, str]] = []
    if report.mfu is not None and report.model_flops is not None:
        over = f"{step} x {report.devices} x {peak}" if report.devices > 1 else f"{step} x {peak}"
        quotient = f"{format_quantity(report.model_flops, 'FLOP')} / ({over})"
        rows.append(("Utilisation, model (MFU)", _timed(report.mfu, quotient)))
    if report.hardware_utilisation is not None:
        each = " a device" if report.devices > 1 else ""
        quotient = f"{format_quantity(report.flops, 'FLOP')}{each} / ({step} x {peak})"
        rows.append(("Utilisation, executed", _timed(report.hardware_utilisation, quotient)))
    return rows


def _timed(share: float, quotient: str) -> str:
    return f"{f'{100 * share:.1f} %':<11}{quotient}"


def peak_text(report: RunReport) -> str:
    """Return the peak that utilisations divide by; empty where it is not known.

    Results of earlier versions don't say it.
    """
    if report.peak_flops_per_s is None:
        return ""
    return f"{format_quantity(report.peak_flops_per_s, 'FLOP/s')} of {report.peak_type}"
