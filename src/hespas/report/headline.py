"""The first lines of a report: how long the step takes, what it needs, and what bounds it."""

from __future__ import annotations

from dataclasses import dataclass

from hespas.base.units import format_amount, format_energy, format_quantity, format_time
from hespas.prediction.figures.communication import IDLE
from hespas.prediction.figures.schema import EnergyParts, RunReport

_FIDELITIES = {
    "compiled": "compiled",
    "fused": "fused by a model of the compiler",
    "library": "by kernels of libraries",
    "exported": "as exported",
}
_PART_NAMES = {
    "compute": "arithmetic",
    "memory": "memory",
    "launch": "launches",
    "exposed_communication": "exposed communication",
    "exposed_host_transfer": "exposed host transfers",
    "straggler": "stragglers",
    "other": "other",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """What is predicted, and the first figures of the answer, by name."""

    title: str
    rows: tuple[tuple[str, str], ...]


def headline(report: RunReport) -> Headline:
    """Return the answer itself; memory stands first where it is too small."""
    where = f"{report.devices} x {report.node}"
    if report.system not in (None, f"{report.devices}x{report.node}"):
        where += f" on {report.system}"
    memory = [("Memory", _memory(report)), *_host_memory(report)]
    rows = [
        *_times(report),
        ("Bound by", _bound(report)),
        *_throughput(report),
        *utilisation_rows(report),
        *_energy(report),
    ]
    return Headline(
        title=f"{report.program}: one step on {where} ({_FIDELITIES[report.fidelity]})",
        rows=tuple([*rows, *memory] if _fits(report) else [*memory, *rows]),
    )


def headline_lines(report: RunReport) -> list[str]:
    """Return the first lines of the text."""
    head = headline(report)
    return [head.title, "", *[f"{name:<26}{text}" for name, text in head.rows]]


def _times(report: RunReport) -> list[tuple[str, str]]:
    step_s, waits_s = report.step_time_s, waiting_s(report)
    exposed_s = report.exposed_communication_s - waits_s
    rows = [
        ("Step time", format_time(step_s)),
        ("  compute", _timed(report.compute_s, share_text(report.compute_s, step_s))),
    ]
    if report.communication_s > 0:
        rows.append(("  exposed communication", _timed(exposed_s, share_text(exposed_s, step_s))))
    if waits_s > 0:
        rows.append(("  waiting for stages", _timed(waits_s, share_text(waits_s, step_s))))
    if report.host_transfer_s > 0:
        host_s = report.exposed_host_transfer_s
        rows.append(("  exposed host transfers", _timed(host_s, share_text(host_s, step_s))))
    if report.straggler_s:
        share = share_text(report.straggler_s, step_s)
        rows.append(("  stragglers", _timed(report.straggler_s, share)))
    if report.communication_s > 0:
        hidden_s = max(0.0, report.communication_s - exposed_s)
        hidden = f"{format_time(hidden_s) if hidden_s else 'none'} of it hidden behind computation"
        rows.append(("Communication", _timed(report.communication_s, hidden)))
    if report.host_transfer_s > 0:
        rows.append(("Host transfers", _timed(report.host_transfer_s, _host_moves(report))))
    return rows


def _host_moves(report: RunReport) -> str:
    hidden_s = max(0.0, report.host_transfer_s - report.exposed_host_transfer_s)
    moved = format_quantity(report.host_transfer_bytes, "B")
    hidden = f"{format_time(hidden_s)} of it" if hidden_s else "nothing"
    return f"for {moved} a device, {hidden} hidden"


def _timed(time_s: float, note: str) -> str:
    return f"{format_time(time_s):<11}{note}".rstrip()


def _throughput(report: RunReport) -> list[tuple[str, str]]:
    shown: list[str] = []
    tokens, each = report.tokens_per_s, report.tokens_per_s_per_device
    if tokens is not None and each is not None:
        shown.append(f"{format_amount(tokens)}tokens/s, {format_amount(each)}tokens/s/device")
    # A step that makes a token of each sequence completes none.
    if report.samples_per_s is not None and report.samples_per_s != tokens:
        shown.append(f"{format_amount(report.samples_per_s)}{report.samples}/s")
    return [("Throughput", ", ".join(shown))] if shown else []


def _energy(report: RunReport) -> list[tuple[str, str]]:
    if report.energy_j is None:
        return []
    if report.energy is None:
        return [("Energy", f"{format_energy(report.energy_j)} a device, while it computes")]
    power = f"{report.energy.device_w:.0f} W a device"
    if report.energy.node_w is not None:
        machine = f"a machine of {report.energy.node_devices}"
        power += f", {report.energy.node_w / 1000:.3g} kW {machine}"
    limit = f"limit {report.energy.power_limit_w:g} W, clock {100 * report.energy.clock:.1f} %"
    return [
        ("Power", f"{power} ({limit} of boost)"),
        ("Energy", f"{format_energy(report.energy_j)} a device: {energy_shares(report.energy)}"),
    ]


def energy_shares(energy: EnergyParts) -> str:
    """Return the parts of an energy in whole per cent that add to 100, the largest first."""
    parts = {
        "arithmetic": energy.compute_j,
        "memory": energy.memory_j,
        "idle": energy.idle_j,
        "machine": energy.node_j or 0.0,
        "network": energy.network_j or 0.0,
        "facility": energy.facility_j,
    }
    whole_j = sum(parts.values())
    if whole_j <= 0:
        return "nothing is computed"
    rounded = whole_per_cents({name: part / whole_j for name, part in parts.items()})
    ordered = sorted(rounded, key=lambda name: -parts[name])
    return ", ".join(f"{name} {rounded[name]} %" for name in ordered if rounded[name])


def _fits(report: RunReport) -> bool:
    capacity_bytes = report.memory_capacity_bytes
    return capacity_bytes is None or report.peak_memory_bytes <= capacity_bytes


def _host_memory(report: RunReport) -> list[tuple[str, str]]:
    if not report.host_memory_bytes:
        return []
    return [("Host memory", f"{format_quantity(report.host_memory_bytes, 'B')} a device")]


def _memory(report: RunReport) -> str:
    peak_bytes, capacity_bytes = report.peak_memory_bytes, report.memory_capacity_bytes
    peak = format_quantity(peak_bytes, "B")
    if report.fidelity == "exported":
        peak = f"at most {peak}"
    if capacity_bytes is None:
        return f"{peak} a device"
    of = f"{peak} of {format_quantity(capacity_bytes, 'B')} a device"
    if _fits(report):
        return f"{of}, {format_quantity(capacity_bytes - peak_bytes, 'B')} free"
    lacking = format_quantity(peak_bytes - capacity_bytes, "B")
    unfused = "; a compiler that fuses needs less" if report.fidelity == "exported" else ""
    return f"{of}: does not fit, {lacking} too much{unfused}"


def waiting_s(report: RunReport) -> float:
    """Return how long a stage of a pipeline waits for others; 0 for a step of one program.

    It is a part of the exposed communication that the report has.
    """
    if report.pipeline is None:
        return 0.0
    return sum(row.exposed_s for row in report.communication if row.kind == IDLE)


def bound_parts(report: RunReport) -> dict[str, float]:
    """Return what the step's time goes to, as shares that add to 1, by their names in texts."""
    shares, waits_s = report.bound, waiting_s(report)
    parts = {name: getattr(shares, field) for field, name in _PART_NAMES.items()}
    if waits_s:
        parts["waiting for stages"] = waits_s / report.step_time_s
        parts[_PART_NAMES["exposed_communication"]] -= waits_s / report.step_time_s
    return parts


def _bound(report: RunReport) -> str:
    parts = bound_parts(report)
    rounded = whole_per_cents(parts)
    ordered = sorted(rounded, key=lambda name: -parts[name])
    return ", ".join(f"{name} {rounded[name]} %" for name in ordered if rounded[name])


def whole_per_cents(shares: dict[str, float]) -> dict[str, int]:
    """Return shares that add to 1 as whole per cent that add to 100.

    Those with the largest remainders are rounded up.

    >>> whole_per_cents({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    {'a': 34, 'b': 33, 'c': 33}
    """
    floors = {name: int(100 * share // 1) for name, share in shares.items()}
    missing = 100 - sum(floors.values())
    by_remainder = sorted(shares, key=lambda name: floors[name] - 100 * shares[name])
    for name in by_remainder[:missing]:
        floors[name] += 1
    return floors


def share_text(part: float, whole: float) -> str:
    """Return a part in per cent of a whole; nothing where there is no whole."""
    return f"{100 * part / whole:5.1f} %" if whole > 0 else ""


def utilisation_rows(report: RunReport) -> list[tuple[str, str]]:
    """Return what of the peak a step uses as rows of text, each with what it divides by."""
    step, peak = format_time(report.step_time_s), peak_text(report)
    rows: list[tuple[str, str]] = []
    if report.mfu is not None and report.model_flops is not None:
        over = f"{step} x {report.devices} x {peak}" if report.devices > 1 else f"{step} x {peak}"
        quotient = f"{format_quantity(report.model_flops, 'FLOP')} / ({over})"
        rows.append(("Utilisation, model (MFU)", _with_quotient(report.mfu, quotient)))
    if report.hardware_utilisation is not None:
        each = " a device" if report.devices > 1 else ""
        quotient = f"{format_quantity(report.flops, 'FLOP')}{each} / ({step} x {peak})"
        rows.append(
            ("Utilisation, executed", _with_quotient(report.hardware_utilisation, quotient))
        )
    return rows


def _with_quotient(share: float, quotient: str) -> str:
    return f"{f'{100 * share:.1f} %':<11}{quotient}"


def peak_text(report: RunReport) -> str:
    """Return the peak that utilisations divide by; empty where it is not known.

    Results of earlier versions don't say it.
    """
    if report.peak_flops_per_s is None:
        return ""
    return f"{format_quantity(report.peak_flops_per_s, 'FLOP/s')} of {report.peak_type}"
