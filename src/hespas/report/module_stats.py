"""``module_stats.json``: the documented statistics of an estimate."""

from __future__ import annotations

from collections.abc import Mapping

from hespas.estimate.estimate import Estimate, OpEstimate, TypeTotals
from hespas.estimate.graph import GraphEstimate, ModuleEstimate


def module_stats(result: GraphEstimate, *, estimation_time_s: float) -> dict[str, object]:
    """Return the documented fields; seconds, FLOP and bytes, unrounded.

    ``estimation_time`` and ``uncached_time`` are times taken on this machine, the only fields
    that differ from run to run.
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
    if total.energy_j is not None:
        stats["total_energy"] = total.energy_j
    per_module = {f"mini_module_{each.first_region}.mlir": _module(each) for each in result.modules}
    return {**stats, "per_module": per_module}


def _module(module: ModuleEstimate) -> dict[str, object]:
    """One region's figures, not times the number of regions that equal it."""
    estimate: Estimate = module.estimate
    per_op = {
        kind: {
            "runtime": op.time_s,
            "count": op.count,
            "flops": op.flops,
            "mem_bytes": op.bytes_moved,
            "per_datatype": _per_datatype(op),
        }
        for kind, op in estimate.per_op.items()
    }
    return {"uses": module.uses, **_totals(estimate.total), "per_op": per_op}


def _totals(total: OpEstimate) -> dict[str, object]:
    return {
        "runtime": total.time_s,
        "flops": total.flops,
        "mem_bytes": total.bytes_moved,
        "flops_util": total.flops_utilisation,
        "mem_bw_util": total.memory_utilisation,
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
