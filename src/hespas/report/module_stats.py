"""``module_stats.json``: the documented statistics of an estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hespas.estimate.estimate import OpEstimate, TypeTotals
from hespas.estimate.graph import GraphEstimate, ModuleEstimate
from hespas.report.region_files import module_file
from hespas.split.modules import RegionModules

WALL_TIMES = ("estimation_time", "uncached_time")
"""The fields that hold times taken on this machine: they differ from run to run."""


def module_stats(
    result: GraphEstimate, modules: RegionModules, *, estimation_time_s: float
) -> dict[str, object]:
    """Return the documented fields; seconds, FLOP and bytes, unrounded.

    Figures of the whole count each region; those under ``per_module`` are of one region of the
    module, of which ``uses`` tells how many there are. `WALL_TIMES` differ from run to run.
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
    """Join equal regions that were estimated each by itself."""
    joined: dict[int, ModuleEstimate] = {}
    for each in estimates:
        known = joined.get(each.module)
        joined[each.module] = replace(known, uses=known.uses + each.uses) if known else each
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
    types: Mapping[str, TypeTotals] = op.per_type
    return {
        key: {
            "flops": totals.flops,
            "runtime": totals.time_at_peak_s,
            "flops_util": min(1.0, totals.time_at_peak_s / op.time_s) if op.time_s else 0.0,
        }
        for key, totals in sorted(types.items())
    }
