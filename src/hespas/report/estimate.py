"""An estimate of computation: the documented summary, and ``module_stats.json``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hespas.base.units import format_quantity
from hespas.prediction.figures.assumptions import grouped_assumptions
from hespas.price.estimate import OpEstimate
from hespas.price.graph import GraphEstimate, ModuleEstimate
from hespas.report.assumptions import assumption_lines, group_text
from hespas.report.regions import module_file
from hespas.split.modules import RegionModules

WALL_TIMES = ("estimation_time", "uncached_time")
"""The fields with times measured on this machine, which differ from run to run."""

_SHOWN_SHARE = 0.0005


def estimate_summary(
    result: GraphEstimate, assumptions: Iterable[str], *, times: bool = False
) -> str:
    """Return the documented summary of an estimate, one figure per line, and its assumptions.

    Cache figures appear only if something was reused, energy only if the power is known. With
    ``times`` a line says what the estimator took, and what it would have taken without reuse.
    """
    total = result.total.total
    rate = total.flops / total.time_s if total.time_s else 0.0
    bandwidth = total.bytes_moved / total.time_s if total.time_s else 0.0
    lines = [
        *_reuse_lines(result),
        *(_time_lines(result) if times else []),
        *_utilisation(total),
        f"Average FLOPS/s: {format_quantity(rate, 'FLOPS/s', '.3f')}",
        f"Average Memory Bandwidth: {format_quantity(bandwidth, 'B/s', '.3f')}",
        f"Compute Runtime Estimation: {total.time_s * 1e6:.3f} us",
    ]
    if total.energy_j is not None:
        lines.append(f"Energy: {format_quantity(total.energy_j, 'J')}")
    groups = grouped_assumptions(assumptions, result.total.noted_s, result.total.time_s)
    assumed = assumption_lines(map(group_text, groups), result.total.warnings)
    return "\n".join([*lines, *_proportions(result), *assumed])


def _utilisation(total: OpEstimate) -> list[str]:
    """Return lines on the share of the peaks that is used; none if peaks are unknown."""
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


def _time_lines(result: GraphEstimate) -> list[str]:
    """Return the documented line; none where a cache on disk had answers: their time is lost."""
    if any(each.from_store for each in result.modules):
        return []
    reuse = result.reuse
    taken, whole = _time(reuse.elapsed_s), _time(reuse.elapsed_without_reuse_s)
    saved = f"{round(100 * reuse.time_reduction, 3)} % reduction"
    compared = f"{taken} vs total time (without caching): {whole}"
    return [f"Total estimator time taken vs cached time: {compared} ({saved})"]


def _time(seconds: float) -> str:
    """Return a time to the millisecond, or a shorter one to three digits."""
    return f"{round(seconds, 3)} s" if seconds >= 1 else f"{seconds:.3g} s"


def _proportions(result: GraphEstimate) -> list[str]:
    whole = result.total.time_s
    if not whole:
        return []
    shares = {kind: op.time_s / whole for kind, op in result.total.per_op.items()}
    ordered = sorted(shares.items(), key=lambda pair: (-pair[1], pair[0]))
    lines = [f"    {kind}: {share:.3f}" for kind, share in ordered if share >= _SHOWN_SHARE]
    return ["Op time proportions:", *lines]


def module_stats(
    result: GraphEstimate, modules: RegionModules, *, estimation_time_s: float
) -> dict[str, object]:
    """Return the documented fields; seconds, FLOP and bytes, unrounded.

    Figures of the whole program count every region; those under ``per_module`` are of one region of
    the module, which ``uses`` regions share. `WALL_TIMES` differ from run to run.
    """
    reuse = result.reuse
    total = result.total.total
    stats: dict[str, object] = {
        "estimation_time": estimation_time_s,
        "uncached_time": reuse.elapsed_without_reuse_s,
        "modules_processed": reuse.regions,
        "operators_processed": reuse.operations,
        **_totals(total),
    }
    if reuse.region_hits:
        stats |= {
            "cache_hits": reuse.region_hits,
            "cache_hit_prop": reuse.block_reuse_rate,
            "cache_op_hits": reuse.operation_hits,
            "cache_op_hit_prop": reuse.operator_reuse_factor,
        }
    per_module = {
        module_file(modules.modules[each.module].first_region): _module(each)
        for each in _joined(result.modules)
    }
    return {**stats, **_energy(total), "per_module": per_module}


def _joined(estimates: tuple[ModuleEstimate, ...]) -> list[ModuleEstimate]:
    """Return the estimates with those of equal modules joined."""
    joined: dict[int, ModuleEstimate] = {}
    for each in estimates:
        first = joined.get(each.module)
        joined[each.module] = replace(first, uses=first.uses + each.uses) if first else each
    return list(joined.values())


def _module(module: ModuleEstimate) -> dict[str, object]:
    per_op = {
        kind: {
            "runtime": op.time_s,
            "count": _whole(op.count),
            "flops": op.flops,
            "mem_bytes": op.bytes_moved,
            "per_datatype": _per_datatype(op),
        }
        for kind, op in module.estimate.per_op.items()
    }
    total = module.estimate.total
    return {"uses": module.uses, **_totals(total), **_energy(total), "per_op": per_op}


def _whole(count: float) -> int | float:
    """Return a count as an integer, unless branch weights made it a fraction."""
    return int(count) if count.is_integer() else count


def _energy(total: OpEstimate) -> dict[str, float]:
    return {} if total.energy_j is None else {"total_energy": total.energy_j}


def _totals(total: OpEstimate) -> dict[str, object]:
    return {
        "runtime": total.time_s,
        "flops": total.flops,
        "mem_bytes": total.bytes_moved,
        "flops_util": total.flops_utilisation if total.knows_peaks else None,
        "mem_bw_util": total.memory_utilisation if total.knows_peaks else None,
        "avg_flopss": total.flops / total.time_s if total.time_s else 0.0,
        "avg_mem_bw": total.bytes_moved / total.time_s if total.time_s else 0.0,
        "per_datatype": _per_datatype(total),
    }


def _per_datatype(op: OpEstimate) -> dict[str, dict[str, float]]:
    return {
        key: {
            "flops": totals.flops,
            "runtime": totals.time_at_peak_s,
            "flops_util": min(1.0, totals.time_at_peak_s / op.time_s) if op.time_s else 0.0,
        }
        for key, totals in sorted(op.per_type.items())
    }
