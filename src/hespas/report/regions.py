"""The documented files of a split: modules, their descriptions, and the region graph."""

from __future__ import annotations

import json
from pathlib import Path

from hespas.base.files import json_bytes
from hespas.program.program import Value
from hespas.program.text import module_text, private_function_text
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
"""With more distinct compute regions, only ``regions.json`` describes them: writing the small
files would take most of the time."""


def write_region_files(graph: RegionGraph, modules: RegionModules, directory: Path) -> None:
    """Write one StableHLO module for each distinct region, and the regions' descriptions.

    ``mini_module_<id>.mlir`` carries the lowest id of the regions that equal each other, and so
    does ``mini_module_<id>.json``, one for each distinct compute region up to
    `MOST_DESCRIPTION_FILES`. ``regions.json`` holds all these descriptions, and lists every
    region with its module and producers.
    """
    for module in modules.modules:
        text = stablehlo_text(graph.regions[module.first_region], graph.program)
        (directory / module_file(module.first_region)).write_text(text)
    described = module_descriptions(graph, modules)
    if len(described) <= MOST_DESCRIPTION_FILES:
        for number, description in described.items():
            (directory / f"mini_module_{number}.json").write_bytes(json_bytes(description))
    listed = {"modules": list(described.values()), "regions": region_descriptions(graph, modules)}
    (directory / "regions.json").write_text(_one_line_each(listed))
    (directory / "private_functions.mlir").write_text(_private_functions(graph))
    (directory / "dependency_graph.dot").write_text(_dot(graph))


def module_descriptions(graph: RegionGraph, modules: RegionModules) -> dict[int, dict[str, object]]:
    """Return the description of each distinct compute region, by its lowest region id."""
    equals = _regions_of_module(modules)
    return {
        module.first_region: _described(region, graph, regions)
        for module, regions in zip(modules.modules, equals, strict=True)
        if isinstance(region := graph.regions[module.first_region], Compute)
    }


def module_file(region: int) -> str:
    """Return the name of the file that holds a region's module."""
    return f"mini_module_{region}.mlir"


def file_of_region(region: int, modules: RegionModules) -> str:
    """Return the name of the module file that a region shares with equal regions."""
    return module_file(modules.modules[modules.module_of_region[region]].first_region)


def _regions_of_module(modules: RegionModules) -> list[list[int]]:
    regions: list[list[int]] = [[] for _ in modules.modules]
    for region, module in enumerate(modules.module_of_region):
        regions[module].append(region)
    return regions


def _described(region: Compute, graph: RegionGraph, equals: list[int]) -> dict[str, object]:
    return {
        "id": region.id,
        "regions": equals,
        "block_type": "NodeType.COMP_NODE",
        "collective": False,
        "module_file": module_file(region.id),
        "parent_module": Path(graph.program.source).name,
        "op_count": len(region.operations),
        "input_dims": _types(region.inputs),
        "output_dims": _types(region.outputs),
    }


def _types(values: tuple[Value, ...]) -> list[str]:
    return [str(value.type) for value in values]


def region_descriptions(graph: RegionGraph, modules: RegionModules) -> list[dict[str, object]]:
    """Return, for each region, its kind, its module's file and its producers."""
    return [_line(region, graph.producers[region.id], modules) for region in graph.regions]


def _one_line_each(lists: dict[str, list[dict[str, object]]]) -> str:
    """Return an object of lists as JSON, each member of a list on a line of its own."""
    parts = [
        f'"{name}": [\n' + ",\n".join(json.dumps(member) for member in members) + "\n]"
        for name, members in lists.items()
    ]
    return "{" + ",\n".join(parts) + "}\n"


def _line(region: Region, producers: tuple[int, ...], modules: RegionModules) -> dict[str, object]:
    return {
        "id": region.id,
        "block_type": f"NodeType.{_node_type(region)}_NODE",
        "module_file": file_of_region(region.id, modules),
        "op_count": len(operations_of(region)),
        "producers": list(producers),
    }


def _node_type(region: Region) -> str:
    match region:
        case Compute():
            return "COMP"
        case Collective():
            return "COMM_COLL"
        case HostTransfer(traffic=traffic):
            return "MEM_STORE" if traffic.to_host_bytes else "MEM_LOAD"


def _private_functions(graph: RegionGraph) -> str:
    functions = graph.program.functions
    return module_text(
        "".join(private_function_text(functions[name]) for name in functions if name != "main")
    )


def _dot(graph: RegionGraph) -> str:
    nodes = [f'  {region.id} [label="{_label(region)}"];' for region in graph.regions]
    edges = [
        f"  {producer} -> {region.id};"
        for region in graph.regions
        for producer in graph.producers[region.id]
    ]
    return "\n".join(["digraph regions {", *nodes, *edges, "}", ""])


def _label(region: Region) -> str:
    match region:
        case Collective(operation=operation) | HostTransfer(operation=operation):
            return f"{region.id}: {operation.kind}"
        case Compute(operations=(single,)):
            return f"{region.id}: {single.kind}"
        case Compute(operations=operations):
            return f"{region.id}: {len(operations)} operations"
