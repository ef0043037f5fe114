"""Write a split and its estimate as the documented files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from hespas.base.files import json_bytes
from hespas.base.units import format_quantity
from hespas.prediction.figures.assumptions import grouped_assumptions
from hespas.price.estimate import OpEstimate
from hespas.price.graph import GraphEstimate, ModuleEstimate
from hespas.program.attrs import CallAttrs
from hespas.program.program import Op, Program
from hespas.program.text import module_text, private_function_text
from hespas.report.text import assumption_lines, group_text, plain_number
from hespas.split.modules import RegionModules, stablehlo_text
from hespas.split.regions import (
    Collective,
    Compute,
    HostTransfer,
    Region,
    RegionGraph,
    operations_of,
)

MOST_DESCRIPTION_FILES = 256
"""The most distinct compute regions with files of their own.

With more, only ``regions.json`` describes them: writing the small files would take most of the
time.
"""
WALL_TIMES = ("estimation_time", "uncached_time")
"""The fields with times measured on this machine, which differ from run to run."""
_SHOWN_SHARE = 0.0005
_EXPANDED_KINDS = frozenset({"async_start", "fusion", "while", "case", "if"})


def write_region_files(graph: RegionGraph, modules: RegionModules, directory: Path) -> None:
    """Write the regions' modules and descriptions.

    ``mini_module_<id>.mlir`` carries the lowest id of the regions that equal each other, and so
    does ``mini_module_<id>.json``, one for each distinct compute region up to
    `MOST_DESCRIPTION_FILES`. ``regions.json`` holds all these descriptions, and lists every region
    with its module and producers.
    """
    for module in modules.modules:
        text = stablehlo_text(graph.regions[module.first_region], graph.program)
        (directory / module_file(module.first_region)).write_text(text)
    described = module_descriptions(graph, modules)
    if len(described) <= MOST_DESCRIPTION_FILES:
        for number, description in described.items():
            (directory / f"mini_module_{number}.json").write_bytes(json_bytes(description))
    figures = {
        "modules": list(described.values()),
        "regions": region_descriptions(graph, modules),
    }
    # Each member of a list stands on a line of its own.
    members = [
        f'"{name}": [\n' + ",\n".join(map(json.dumps, values)) + "\n]"
        for name, values in figures.items()
    ]
    (directory / "regions.json").write_text("{" + ",\n".join(members) + "}\n")
    functions = graph.program.functions
    private = [private_function_text(functions[name]) for name in functions if name != "main"]
    (directory / "private_functions.mlir").write_text(module_text("".join(private)))
    (directory / "dependency_graph.dot").write_text(_dot(graph))


def module_descriptions(graph: RegionGraph, modules: RegionModules) -> dict[int, dict[str, object]]:
    """Return descriptions of distinct compute regions, by lowest id."""
    equals: list[list[int]] = [[] for _ in modules.modules]
    for number, module in enumerate(modules.module_of_region):
        equals[module].append(number)
    return {
        region.id: {
            "id": region.id,
            "regions": regions,
            "block_type": "NodeType.COMP_NODE",
            "collective": False,
            "module_file": module_file(region.id),
            "parent_module": Path(graph.program.source).name,
            "op_count": len(region.operations),
            "input_dims": [str(value.type) for value in region.inputs],
            "output_dims": [str(value.type) for value in region.outputs],
        }
        for module, regions in zip(modules.modules, equals, strict=True)
        if isinstance(region := graph.regions[module.first_region], Compute)
    }


def module_file(region: int) -> str:
    """Return the file name of a region's module."""
    return f"mini_module_{region}.mlir"


def file_of_region(region: int, modules: RegionModules) -> str:
    """Return the module file that equal regions share."""
    return module_file(modules.modules[modules.module_of_region[region]].first_region)


def region_descriptions(graph: RegionGraph, modules: RegionModules) -> list[dict[str, object]]:
    """Describe each region: kind, module file and producers."""
    return [
        {
            "id": region.id,
            "block_type": f"NodeType.{_node_type(region)}_NODE",
            "module_file": file_of_region(region.id, modules),
            "op_count": len(operations_of(region)),
            "producers": list(graph.producers[region.id]),
        }
        for region in graph.regions
    ]


def _node_type(region: Region) -> str:
    match region:
        case Compute():
            return "COMP"
        case Collective():
            return "COMM_COLL"
        case HostTransfer(traffic=traffic):
            return "MEM_STORE" if traffic.to_host_bytes else "MEM_LOAD"


def _dot(graph: RegionGraph) -> str:
    lines: list[str] = []
    for region in graph.regions:
        operations = operations_of(region)
        text = operations[0].kind if len(operations) == 1 else f"{len(operations)} operations"
        lines.append(f'  {region.id} [label="{region.id}: {text}"];')
    for region in graph.regions:
        lines += [f"  {producer} -> {region.id};" for producer in graph.producers[region.id]]
    return "\n".join(["digraph regions {", *lines, "}", ""])


def count_operators(program: Program, *, expand: bool, signatures: bool) -> dict[str, int]:
    """Count operations by name, most frequent first, then by name.

    Without ``expand``, only the top-level operations of ``main`` count, including its return. With
    it, the operations of called functions and fusions count at each use, and the bodies of loops
    and branches once, without their terminators. ``signatures`` distinguishes operations by their
    operand types.
    """
    operations = _expand_operations(program) if expand else iter(program.main.body.operations)
    names = Counter(
        f"{op.name}({', '.join(str(value.type) for value in op.operands)})"
        if signatures
        else op.name
        for op in operations
    )
    return dict(sorted(names.items(), key=lambda pair: (-pair[1], pair[0])))


def _expand_operations(program: Program) -> Iterator[Op]:
    pending = list(reversed(program.main.body.operations))
    while pending:
        op = pending.pop()
        bodies = op.regions if op.kind in _EXPANDED_KINDS else ()
        if isinstance(op.attrs, CallAttrs):
            bodies = (program.function(op.attrs.callee, location=op.location).body,)
        elif op.kind != "fusion":
            yield op
        for body in reversed(bodies):
            pending.extend(reversed(body.operations[:-1]))


def estimate_summary(
    result: GraphEstimate, assumptions: Iterable[str], *, times: bool = False
) -> str:
    """Summarize an estimate and its assumptions, one figure per line.

    With ``times`` a line has the estimator's time, with and without reuse.
    """
    total = result.total.total
    rate, bandwidth = _mean_rates(total)
    lines = [*_reuse_lines(result), *(_time_lines(result) if times else [])]
    if total.knows_peaks:
        lines.append(f"FLOPS/s utilisation: {total.flops_utilisation:.3f}")
        lines.append(f"Memory bandwidth utilisation: {total.memory_utilisation:.3f}")
    lines += [
        f"Average FLOPS/s: {format_quantity(rate, 'FLOPS/s', '.3f')}",
        f"Average Memory Bandwidth: {format_quantity(bandwidth, 'B/s', '.3f')}",
        f"Compute Runtime Estimation: {total.time_s * 1e6:.3f} us",
    ]
    if total.energy_j is not None:
        lines.append(f"Energy: {format_quantity(total.energy_j, 'J')}")
    whole_s = result.total.time_s
    if whole_s:
        shares = {kind: op.time_s / whole_s for kind, op in result.total.per_op.items()}
        ordered = sorted(shares.items(), key=lambda pair: (-pair[1], pair[0]))
        lines.append("Op time proportions:")
        lines += [f"    {kind}: {share:.3f}" for kind, share in ordered if share >= _SHOWN_SHARE]
    groups = grouped_assumptions(assumptions, result.total.noted_s, result.total.time_s)
    return "\n".join([*lines, *assumption_lines(map(group_text, groups), result.total.warnings)])


def _mean_rates(total: OpEstimate) -> tuple[float, float]:
    if not total.time_s:
        return 0.0, 0.0
    return total.flops / total.time_s, total.bytes_moved / total.time_s


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
    """Return the line of estimator times; empty after disk hits."""
    if any(module.from_store for module in result.modules):
        return []
    reuse = result.reuse
    elapsed, without_reuse = _time(reuse.elapsed_s), _time(reuse.elapsed_without_reuse_s)
    saved = f"{round(100 * reuse.time_reduction, 3)} % reduction"
    compared = f"{elapsed} vs total time (without caching): {without_reuse}"
    return [f"Total estimator time taken vs cached time: {compared} ({saved})"]


def _time(seconds: float) -> str:
    return f"{round(seconds, 3)} s" if seconds >= 1 else f"{seconds:.3g} s"


def module_stats(
    result: GraphEstimate, modules: RegionModules, *, estimation_time_s: float
) -> dict[str, object]:
    """Return the documented fields; seconds, FLOP and bytes, unrounded.

    Those under ``per_module`` are of one region, of ``uses``. `WALL_TIMES` differ from run to run.
    """
    reuse, total = result.reuse, result.total.total
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
    joined: dict[int, ModuleEstimate] = {}
    for module in result.modules:
        first = joined.get(module.module)
        uses = module.uses if first is None else first.uses + module.uses
        joined[module.module] = replace(first or module, uses=uses)
    per_module = {
        module_file(modules.modules[module.module].first_region): _module(module)
        for module in joined.values()
    }
    return {**stats, **_energy(total), "per_module": per_module}


def _module(module: ModuleEstimate) -> dict[str, object]:
    per_op = {
        kind: {
            "runtime": op.time_s,
            "count": plain_number(op.count),
            "flops": op.flops,
            "mem_bytes": op.bytes_moved,
            "per_datatype": _per_datatype(op),
        }
        for kind, op in module.estimate.per_op.items()
    }
    total = module.estimate.total
    return {"uses": module.uses, **_totals(total), **_energy(total), "per_op": per_op}


def _energy(total: OpEstimate) -> dict[str, float]:
    return {} if total.energy_j is None else {"total_energy": total.energy_j}


def _totals(total: OpEstimate) -> dict[str, object]:
    rate, bandwidth = _mean_rates(total)
    return {
        "runtime": total.time_s,
        "flops": total.flops,
        "mem_bytes": total.bytes_moved,
        "flops_util": total.flops_utilisation if total.knows_peaks else None,
        "mem_bw_util": total.memory_utilisation if total.knows_peaks else None,
        "avg_flopss": rate,
        "avg_mem_bw": bandwidth,
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
