"""Pieces that texts share: headline, tables, wrapped lines, assumptions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import fill

from hespas.base.frozen import frozen
from hespas.base.units import format_amount, format_energy, format_quantity, format_time
from hespas.prediction.figures.schema import (
    AssumptionGroup,
    EnergyParts,
    ExpectedError,
    RunReport,
)

_SHOWN = 3
_WIDTH = 100


def group_text(group: AssumptionGroup) -> str:
    """Return a group as a sentence with what it decides."""
    decided = [_OTHER_EFFECTS[topic] for topic in group.about if topic in _OTHER_EFFECTS]
    if group.step_share is not None:
        decided.insert(0, f"{_per_cent(group.step_share)} of the step")
    elif group.share is not None:
        decided.insert(0, f"{_per_cent(group.share)} of the computation")
    if decided:
        joined = " and ".join(filter(None, (", ".join(decided[:-1]), decided[-1])))
        return f"{group.text} (decides {joined})"
    return f"{group.text} (share of the step not known)" if group.about else group.text


_OTHER_EFFECTS = {"memory": "what fits", "overlap": "what is hidden"}


def step_assumption_lines(
    groups: Sequence[AssumptionGroup], warnings: Iterable[str], *, verbose: bool
) -> list[str]:
    """Return the decisive assumptions and the warnings.

    An assumption is shown if it decides most of the step, what fits, or what is hidden; ``verbose``
    shows all.
    """
    shown_groups = list(groups)
    if not verbose:
        shown_groups = [
            group
            for number, group in enumerate(groups)
            if number < _SHOWN or not _OTHER_EFFECTS.keys().isdisjoint(group.about)
        ]
    lines = assumption_lines(map(group_text, shown_groups), warnings)
    if len(shown_groups) < len(groups):
        lines[0] = (
            f"Assumed ({len(shown_groups)} of {len(groups)}, by the share of the step that each "
            "decides; --verbose shows all):"
        )
    return lines


def _per_cent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "less than 1 %"


def assumption_lines(assumptions: Iterable[str], warnings: Iterable[str]) -> list[str]:
    """Return the assumptions under their heading, and the warnings below.

    >>> assumption_lines(["the device never waits"], ["it does"])
    ['Assumed:', '  - the device never waits', 'warning: it does']
    """
    items = [wrapped(f"  - {assumption}", "    ") for assumption in assumptions]
    heading = ["Assumed:"] if items else []
    return [*heading, *items, *[wrapped(f"warning: {warning}", "  ") for warning in warnings]]


def wrapped(text: str, indent: str) -> str:
    """Wrap a text to 100 columns, with a hanging indent."""
    return fill(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


_NAME_START, _NAME_END = 44, 18


def _short(name: str) -> str:
    longest = _NAME_START + _NAME_END + len("..")
    return name if len(name) <= longest else f"{name[:_NAME_START]}..{name[-_NAME_END:]}"


def table_lines(
    title: str, columns: Mapping[str, int], rows: Sequence[Sequence[str]], *, least: int = 24
) -> list[str]:
    """Return a table: names on the left, cells right-aligned.

    ``columns`` has the cells' widths by their titles. Of names that are too long for a screen the
    middle is left out.

    >>> table_lines("Kinds", {"time": 8}, [("copy", "1 s")], least=6)
    ['Kinds       time', '  copy       1 s']
    """
    named = [(_short(name), *cells) for name, *cells in rows]
    width = max([least, len(title) - 2, *(len(name) for name, *_ in named)])
    lines = [(title, *columns), *((f"  {name}", *cells) for name, *cells in named)]
    return [
        "".join([f"{name:<{width + 2}}", *map(str.rjust, cells, columns.values())]).rstrip()
        for name, *cells in lines
    ]


_FIDELITIES = {
    "compiled": "compiled",
    "fused": "fused by a model of the compiler",
    "library": "by kernels of libraries",
    "exported": "as exported",
    "recorded": "as PyTorch was recorded",
}
_PART_NAMES = {
    "compute": "arithmetic",
    "memory": "memory",
    "launch": "launches",
    "exposed_communication": "exposed communication",
    "stage_wait": "waiting for stages",
    "exposed_host_transfer": "exposed host transfers",
    "straggler": "stragglers",
    "other": "other",
}


@frozen
class Headline:
    """The title of a prediction and its first figures."""

    title: str
    rows: tuple[tuple[str, str], ...]


def headline(report: RunReport) -> Headline:
    """Return the headline figures, memory first if too small."""
    machine = f"{report.devices} x {report.node}"
    if report.system not in (None, f"{report.devices}x{report.node}"):
        machine += f" on {report.system}"
    memory = list(_memory(report))
    rows = [
        *_times(report),
        *_expected(report.expected_error),
        ("Bound by", _per_cents(bound_parts(report))),
        *_throughput(report),
        *_utilisation(report),
        *_energy(report),
    ]
    return Headline(
        title=f"{report.program}: one step on {machine} ({_FIDELITIES[report.fidelity]})",
        rows=tuple([*rows, *memory] if _fits(report) else [*memory, *rows]),
    )


def headline_lines(report: RunReport) -> list[str]:
    """Return the first lines of the text."""
    head = headline(report)
    return [head.title, "", *[f"{name:<26}{text}" for name, text in head.rows]]


def _times(report: RunReport) -> Iterator[tuple[str, str]]:
    step_s, waits_s = report.step_time_s, report.stage_wait_s
    exposed_s = report.exposed_communication_s
    host_s = report.exposed_host_transfer_s
    communicates, moves = report.communication_s > 0, report.host_transfer_s > 0
    yield "Step time", format_time(step_s)
    parts = (
        ("compute", report.compute_s, True),
        ("exposed communication", exposed_s, communicates),
        ("waiting for stages", waits_s, waits_s > 0),
        ("exposed host transfers", host_s, moves),
        ("waiting for launches", report.launch_wait_s, report.launch_wait_s > 0),
        ("stragglers", report.straggler_s, report.straggler_s != 0),
    )
    for name, part_s, is_shown in parts:
        if is_shown:
            yield f"  {name}", _time_text(part_s, share_text(part_s, step_s))
    if communicates:
        hidden_s = max(0.0, report.communication_s - exposed_s)
        hidden = f"{format_time(hidden_s) if hidden_s else 'none'} of it hidden behind computation"
        yield "Communication", _time_text(report.communication_s, hidden)
    if moves:
        hidden_s = max(0.0, report.host_transfer_s - host_s)
        hidden = f"{format_time(hidden_s)} of it" if hidden_s else "nothing"
        moved = format_quantity(report.host_transfer_bytes, "B")
        note = f"for {moved} a device, {hidden} hidden"
        yield "Host transfers", _time_text(report.host_transfer_s, note)


def _expected(error: ExpectedError | None) -> Iterator[tuple[str, str]]:
    if error is None:
        return
    yield "Expected error", error.text
    if error.likely_from_s is not None and error.likely_to_s is not None:
        span = f"{format_time(error.likely_from_s)} to {format_time(error.likely_to_s)}"
        yield "Likely step time", f"{span}, as 8 of 10 of these steps were to their predictions"


def _time_text(time_s: float, note: str) -> str:
    return f"{format_time(time_s):<10} {note}".rstrip()


def _throughput(report: RunReport) -> list[tuple[str, str]]:
    rate_texts: list[str] = []
    tokens, per_device = report.tokens_per_s, report.tokens_per_s_per_device
    if tokens is not None and per_device is not None:
        rate_texts.append(
            f"{format_amount(tokens)}tokens/s, {format_amount(per_device)}tokens/s/device"
        )
    # A step that makes a token of each sequence completes no sequence.
    if report.samples_per_s is not None and report.samples_per_s != tokens:
        rate_texts.append(f"{format_amount(report.samples_per_s)}{report.samples}/s")
    return [("Throughput", ", ".join(rate_texts))] if rate_texts else []


def _energy(report: RunReport) -> Iterator[tuple[str, str]]:
    if report.energy_j is None:
        return
    total, parts = f"{format_energy(report.energy_j)} a device", report.energy
    if parts is None:
        yield "Energy", f"{total}, while it computes"
        return
    power = f"{parts.device_w:.0f} W a device"
    if parts.node_w is not None:
        power += f", {parts.node_w / 1000:.3g} kW a machine of {parts.node_devices}"
    limit = f"limit {parts.power_limit_w:g} W, clock {100 * parts.clock:.1f} %"
    yield "Power", f"{power} ({limit} of boost)"
    yield "Energy", f"{total}: {energy_shares(parts)}"


def energy_shares(energy: EnergyParts) -> str:
    """Return an energy's parts in whole per cent, largest first."""
    parts = {
        "arithmetic": energy.compute_j,
        "memory": energy.memory_j,
        "idle": energy.idle_j,
        "machine": energy.node_j or 0.0,
        "network": energy.network_j or 0.0,
        "facility": energy.facility_j,
    }
    total_j = sum(parts.values())
    if total_j <= 0:
        return "nothing is computed"
    return _per_cents({name: part_j / total_j for name, part_j in parts.items()})


def _fits(report: RunReport) -> bool:
    capacity_bytes = report.memory_capacity_bytes
    return capacity_bytes is None or report.peak_memory_bytes <= capacity_bytes


def _memory(report: RunReport) -> Iterator[tuple[str, str]]:
    peak_bytes, capacity_bytes = report.peak_memory_bytes, report.memory_capacity_bytes
    is_fused = report.fidelity != "exported"
    peak = f"{'' if is_fused else 'at most '}{format_quantity(peak_bytes, 'B')}"
    if capacity_bytes is None:
        yield "Memory", f"{peak} a device"
    else:
        usage = f"{peak} of {format_quantity(capacity_bytes, 'B')} a device"
        difference = format_quantity(abs(capacity_bytes - peak_bytes), "B")
        unfused = "" if is_fused else "; a compiler that fuses needs less"
        too_much = f"does not fit, {difference} too much{unfused}"
        yield "Memory", f"{usage}, {difference} free" if _fits(report) else f"{usage}: {too_much}"
    if report.live_memory_bytes is not None:
        live = format_quantity(report.live_memory_bytes, "B")
        yield "  live at the peak", f"{live}; the caching allocator reserves the rest"
    if report.host_memory_bytes:
        yield "Host memory", f"{format_quantity(report.host_memory_bytes, 'B')} a device"


def bound_parts(report: RunReport) -> dict[str, float]:
    """Return the shares of the step's parts, by name."""
    return {name: getattr(report.bound, field) for field, name in _PART_NAMES.items()}


def _per_cents(shares: dict[str, float]) -> str:
    rounded = whole_per_cents(shares)
    ordered = sorted(rounded, key=lambda name: -shares[name])
    return ", ".join(f"{name} {rounded[name]} %" for name in ordered if rounded[name])


def whole_per_cents(shares: dict[str, float]) -> dict[str, int]:
    """Round shares to whole per cent that add to 100.

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


def others_text(count: int, noun: str = "") -> str:
    """Name a row that joins others.

    >>> others_text(1), others_text(7), others_text(7, "kind")
    ('1 other', '7 others', '7 other kinds')
    """
    return f"{count} {f'other {noun}'.strip()}{'s' if count > 1 else ''}"


def share_text(part: float, total: float) -> str:
    """Return a part in per cent of a positive total."""
    return f"{100 * part / total:5.1f} %" if total > 0 else ""


def _utilisation(report: RunReport) -> Iterator[tuple[str, str]]:
    """Yield the utilisations of a step, each with its quotient."""
    step, peak, devices = format_time(report.step_time_s), peak_text(report), report.devices
    if report.mfu is not None and report.model_flops is not None:
        over = f"{step} x {devices} x {peak}" if devices > 1 else f"{step} x {peak}"
        quotient = f"{format_quantity(report.model_flops, 'FLOP')} / ({over})"
        yield "Utilisation, model (MFU)", f"{f'{100 * report.mfu:.1f} %':<11}{quotient}"
    if report.hardware_utilisation is not None:
        per_device = " a device" if devices > 1 else ""
        share = f"{100 * report.hardware_utilisation:.1f} %"
        quotient = f"{format_quantity(report.flops, 'FLOP')}{per_device} / ({step} x {peak})"
        yield "Utilisation, executed", f"{share:<11}{quotient}"


def peak_text(report: RunReport) -> str:
    """Return the peak of utilisations; empty if unknown."""
    if report.peak_flops_per_s is None:
        return ""
    return f"{format_quantity(report.peak_flops_per_s, 'FLOP/s')} of {report.peak_type}"


def plain_number(number: float) -> float:
    """Return whole numbers as int; branch weights make fractions."""
    return int(number) if number == int(number) else number


def short_place(location: str, source: str) -> str:
    """Return a location without its program's name or ``-``."""
    return location.removeprefix(f"{source}:").removeprefix("-:")
