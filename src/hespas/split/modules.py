"""One module for each distinct region: its canonical text, and its StableHLO."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from hespas.program.canonical import fingerprint, structure_key
from hespas.program.program import Op, Program, Value, called_functions, nested_ops
from hespas.program.text import TypeText, function_text, module_text, private_function_text
from hespas.program.types import plain_text
from hespas.split.regions import Collective, Region, RegionGraph, operations_of
from hespas.split.standalone import lowered, normalised

_DEVICE_QUERIES = frozenset({"partition_id", "replica_id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionModule:
    """What all regions that compute the same have in common.

    ``first_region`` is the lowest id among them. ``fingerprint`` is the SHA-256 of the
    canonical text, in which values are numbered and nothing names its program.
    """

    first_region: int
    fingerprint: str
    canonical_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionModules:
    """The distinct modules of a graph, and which one each region equals."""

    modules: tuple[RegionModule, ...]
    module_of_region: tuple[int, ...]


def region_modules(graph: RegionGraph) -> RegionModules:
    """Find the distinct regions of a graph, in time linear in its operations.

    The rounds of an opened loop share operations, which are looked at once.
    """
    by_identity: dict[tuple[Op, ...], int] = {}
    by_structure: dict[Hashable, int] = {}
    by_fingerprint: dict[str, int] = {}
    modules: list[RegionModule] = []
    module_of_region: list[int] = []
    for region in graph.regions:
        known = by_identity.get(operations_of(region)) if graph.program.is_scheduled else None
        if known is not None:
            module_of_region.append(known)
            continue
        operations = (*region.constants, *map(normalised, operations_of(region)))
        key = structure_key(operations, region.outputs)
        number = by_structure.get(key)
        if number is None:
            text = canonical_text(region, graph.program)
            mark = fingerprint(text)
            number = by_fingerprint.setdefault(mark, len(modules))
            by_structure[key] = number
            if number == len(modules):
                modules.append(
                    RegionModule(first_region=region.id, fingerprint=mark, canonical_text=text)
                )
        by_identity[operations_of(region)] = number
        module_of_region.append(number)
    return RegionModules(modules=tuple(modules), module_of_region=tuple(module_of_region))


def canonical_text(region: Region, program: Program) -> str:
    """Print a region as a module: equal regions of any programs give equal texts."""
    operations = [normalised(op) for op in (*region.constants, *operations_of(region))]
    return _module(region, operations, region.outputs, program)


def stablehlo_text(region: Region, program: Program) -> str:
    """Print a region as a StableHLO module that any StableHLO tool can compile."""
    kept = [normalised(op) for op in (*region.constants, *operations_of(region))]
    operations, renaming = lowered(kept)
    outputs = [renaming.get(value, value) for value in region.outputs]
    return _module(region, operations, outputs, program, type_text=plain_text)


def _module(
    region: Region,
    operations: Sequence[Op],
    outputs: Sequence[Value],
    program: Program,
    *,
    type_text: TypeText = str,
) -> str:
    main = function_text("main", region.inputs, operations, outputs, type_text=type_text)
    helpers = "".join(
        private_function_text(program.function(name), type_text=type_text)
        for name in _helpers(operations, program)
    )
    return module_text(main + helpers, attributes=_device_counts(region, operations, program))


def _helpers(operations: Sequence[Op], program: Program) -> list[str]:
    """Return the functions that operations name, callers before callees, each once."""
    names: dict[str, None] = {}
    pending = list(called_functions(_with_nested(operations)))
    while pending:
        name = pending.pop(0)
        if name not in names:
            names[name] = None
            pending.extend(called_functions(_with_nested(program.function(name).body.operations)))
    return list(names)


def _with_nested(operations: Sequence[Op]) -> Iterator[Op]:
    for op in operations:
        yield op
        for region in op.regions:
            yield from nested_ops(region)


def _device_counts(region: Region, operations: Sequence[Op], program: Program) -> str:
    """Return module attributes, where the meaning depends on the number of devices."""
    if not isinstance(region, Collective) and not any(
        op.kind in _DEVICE_QUERIES for op in _with_nested(operations)
    ):
        return ""
    counts = {
        "mhlo.num_partitions": program.partitions or 1,
        "mhlo.num_replicas": program.replicas or 1,
    }
    return ", ".join(f"{name} = {count} : i32" for name, count in counts.items())
