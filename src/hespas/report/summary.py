"""What the documents print about an estimate."""

from __future__ import annotations

from collections.abc import Iterable

from hespas.estimate.estimate import OpEstimate
from hespas.estimate.graph import GraphEstimate
from hespas.report.assumed import assumed_lines
from hespas.units import format_quantity

_SHOWN_SHARE = 0.0005


def estimate_summary(result: GraphEstimate, assumptions: Iterable[str]) -> str:
    """Return the documented summary of an estimate, one figure a line, and what it rests on.

    Cache figures stand only where something was reused, energy only where power is known.
    """
    total = result.total.total
    rate = total.flops / total.time_s if total.time_s else 0.0
    bandwidth = total.bytes_moved / total.time_s if total.time_s else 0.0
    lines = [
        *_reuse_lines(result),
        *_utilisation(total),
        f"Average FLOPS/s: {format_quantity(rate, 'FLOPS/s', '.3f')}",
        f"Average Memory Bandwidth: {format_quantity(bandwidth, 'B/s', '.3f')}",
        f"Compute Runtime Estimation: {total.time_s * 1e6:.3f} us",
    ]
    if total.energy_j is not None:
        lines.append(f"Energy: {format_quantity(total.energy_j, 'J')}")
    assumed = assumed_lines(assumptions, result.total.warnings)
    return "\n".join([*lines, *_proportions(result), *assumed])


def _utilisation(total: OpEstimate) -> list[str]:
    """Say which part of the peaks is used, where peaks are known."""
    if not total.knows_peaks:
        return []
    return [
        f"FLOPS/s utilisation: {total.flops_utilisation:.3f}",
        f"Memory bandwidth utilisation: {total.memory_utilisation:.3f}",
    ]


def _reuse_lines(result: GraphEstimate) -> list[str]:
    reuse = result.reuse
    if not reuse.region_hits:
        return []
    blocks = f"{reuse.region_hits}/{reuse.regions}"
    operations = f"{reuse.operation_hits}/{reuse.operations}"
    return [
        f"Cache hits: {reuse.region_hits}",
        f"Basic block reuse rate: {reuse.block_reuse_rate:.3f} ({blocks})",
        f"Operator reuse factor: {reuse.operator_reuse_factor:.3f} ({operations})",
    ]


def _proportions(result: GraphEstimate) -> list[str]:
    whole = result.total.time_s
    if not whole:
        return []
    shares = {kind: op.time_s / whole for kind, op in result.total.per_op.items()}
    ordered = sorted(shares.items(), key=lambda pair: (-pair[1], pair[0]))
    lines = [f"    {kind}: {share:.3f}" for kind, share in ordered if share >= _SHOWN_SHARE]
    return ["Op time proportions:", *lines]
