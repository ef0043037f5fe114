"""Print one module per distinct region: canonical text and StableHLO.

Operations are first detached from their program. `normalised` removes channel numbers and mesh
names, which does not change what an operation computes. `lowered` replaces XLA's own operations by
equivalent StableHLO, so that any StableHLO tool can read, verify and compile the result.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.errors import UnsupportedError
from hespas.program.attrs import NO_ATTRS, BitcastAttrs, CollectiveAttrs, PermuteAttrs
from hespas.program.groups import ReplicaGroups
from hespas.program.program import Block, Op, Program, Value, called_functions, nested_ops
from hespas.program.rewrite import Renaming
from hespas.program.text import (
    TypeText,
    array_text,
    fingerprint,
    function_text,
    module_text,
    private_function_text,
    structure_key,
)
from hespas.program.types import ElementType, TensorType, plain_text
from hespas.split.regions import Collective, Region, RegionGraph, operations_of

_DEVICE_QUERIES = frozenset({"partition_id", "replica_id"})
_CHANNEL = "#stablehlo.channel_handle<handle = 1, type = 1>"
_CHANNEL_NAMES = frozenset({"channel_handle", "channel_id"})
_LAYOUTS = frozenset({"result_layout", "source_layout", "xla_shape"})


@frozen
class RegionModule:
    """The module of all regions with equal computations.

    ``first_region`` is their lowest id. ``fingerprint`` is the SHA-256 of the canonical text, in
    which values are numbered and no name comes from the program.
    """

    first_region: int
    fingerprint: str
    canonical_text: str


@frozen
class RegionModules:
    """The distinct modules of a graph, and each region's index."""

    modules: tuple[RegionModule, ...]
    module_of_region: tuple[int, ...]


def region_modules(graph: RegionGraph) -> RegionModules:
    """Find the distinct regions of a graph.

    Iterations of an unrolled loop share their operations, which are examined once.
    """
    by_identity: dict[tuple[Op, ...], int] = {}
    by_structure: dict[Hashable, int] = {}
    by_fingerprint: dict[str, int] = {}
    modules: list[RegionModule] = []
    module_of_region: list[int] = []
    for region in graph.regions:
        known_module = (
            by_identity.get(operations_of(region)) if graph.program.is_scheduled else None
        )
        if known_module is not None:
            module_of_region.append(known_module)
            continue
        operations = (*region.constants, *map(normalised, operations_of(region)))
        key = structure_key(operations, region.outputs)
        number = by_structure.get(key)
        if number is None:
            text = canonical_text(region, graph.program)
            digest = fingerprint(text)
            number = by_fingerprint.setdefault(digest, len(modules))
            by_structure[key] = number
            if number == len(modules):
                modules.append(
                    RegionModule(first_region=region.id, fingerprint=digest, canonical_text=text)
                )
        by_identity[operations_of(region)] = number
        module_of_region.append(number)
    return RegionModules(modules=tuple(modules), module_of_region=tuple(module_of_region))


def canonical_text(region: Region, program: Program) -> str:
    """Return a region's canonical text, identical for equal regions."""
    operations = [normalised(op) for op in (*region.constants, *operations_of(region))]
    return _module(region, operations, region.outputs, program)


def stablehlo_text(region: Region, program: Program) -> str:
    """Return a region as a StableHLO module."""
    normal = [normalised(op) for op in (*region.constants, *operations_of(region))]
    operations, renaming = lowered(normal)
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
    """Return the device counts as attributes, if the region depends on them."""
    if not isinstance(region, Collective) and not any(
        op.kind in _DEVICE_QUERIES for op in _with_nested(operations)
    ):
        return ""
    counts = {
        "mhlo.num_partitions": program.partitions or 1,
        "mhlo.num_replicas": program.replicas or 1,
    }
    return ", ".join(f"{name} = {count} : i32" for name, count in counts.items())


def normalised(op: Op) -> Op:
    """Return a collective with channel 1 and listed groups.

    Other operations are returned unchanged.
    """
    attrs = op.attrs
    if not isinstance(attrs, CollectiveAttrs | PermuteAttrs):
        return op
    groups = attrs.groups if isinstance(attrs, CollectiveAttrs) else None
    kept_attributes = tuple([pair for pair in op.attributes if pair[0] not in _CHANNEL_NAMES])
    return replace(
        op, attributes=_normal_attributes(kept_attributes, groups, attrs.channel is not None)
    )


@lru_cache(maxsize=1024)
def _normal_attributes(
    attributes: tuple[tuple[str, str], ...], groups: ReplicaGroups | None, has_channel: bool
) -> tuple[tuple[str, str], ...]:
    changed = dict(attributes)
    if groups is not None:
        changed["replica_groups"] = _dense(groups)
    if has_channel:
        changed["channel_handle"] = _CHANNEL
    return tuple(sorted(changed.items()))


@lru_cache(maxsize=16)
def _dense(replica_groups: ReplicaGroups) -> str:
    """Print groups; StableHLO pads rows of unequal length with -1."""
    groups = replica_groups.listed()
    width = max((len(group) for group in groups), default=0)
    rows = ", ".join(str([*group, *[-1] * (width - len(group))]) for group in groups)
    kind = f"tensor<{len(groups)}x{width}xi64>"
    return f"dense<[{rows}]> : {kind}" if width else f"dense<> : {kind}"


def lowered(operations: Iterable[Op]) -> tuple[tuple[Op, ...], Renaming]:
    """Return operations in pure StableHLO and the renamed values.

    Raises `UnsupportedError` for a bitcast of types other than tensors.
    """
    lowering = _Lowering(renaming={})
    for op in operations:
        lowering.lower(op)
    return tuple(lowering.operations), lowering.renaming


@dataclass(slots=True, kw_only=True)
class _Lowering:
    renaming: Renaming
    operations: list[Op] = field(default_factory=list[Op])

    def lower(self, op: Op) -> None:
        operands = tuple([self.renaming.get(value, value) for value in op.operands])
        match op.kind, op.attrs:
            case "fusion", _:
                self._inline(op.regions[0], operands, op.results)
            case "copy", _:
                self.operations.append(_stablehlo("optimization_barrier", operands, op.results))
            case "bitcast", BitcastAttrs():
                self._bitcast(op, operands[0])
            case "reduce_scatter", CollectiveAttrs() if len(operands) > 1:
                self.operations.extend(_one_by_one(self._without_layouts(op, operands)))
            case _:
                self.operations.append(self._without_layouts(op, operands))

    def _inline(
        self, block: Block, operands: tuple[Value, ...], results: tuple[Value, ...]
    ) -> None:
        self.renaming.update(zip(block.arguments, operands, strict=True))
        for op in block.operations[:-1]:
            self.lower(op)
        for result, value in zip(results, block.operations[-1].operands, strict=True):
            self.renaming[result] = self.renaming.get(value, value)

    def _without_layouts(self, op: Op, operands: tuple[Value, ...]) -> Op:
        plain = not any(name in _LAYOUTS for name, _ in op.attributes)
        if plain and not op.regions and operands == op.operands:
            return op
        attributes = tuple(pair for pair in op.attributes if pair[0] not in _LAYOUTS)
        regions = tuple([self._block(region) for region in op.regions])
        return replace(op, operands=operands, attributes=attributes, regions=regions)

    def _block(self, block: Block) -> Block:
        inner_lowering = _Lowering(renaming=self.renaming)
        for op in block.operations:
            inner_lowering.lower(op)
        return Block(arguments=block.arguments, operations=tuple(inner_lowering.operations))

    def _bitcast(self, op: Op, operand: Value) -> None:
        """Append a bitcast as transpose, reshape, transpose.

        The bytes stay in place: read in memory order (major dimension first), the operand and the
        result are the same list of elements.
        """
        source, result, attrs = op.operands[0].type, op.results[0].type, op.attrs
        if not (
            isinstance(attrs, BitcastAttrs)
            and isinstance(source, TensorType)
            and isinstance(result, TensorType)
        ):
            raise UnsupportedError("only tensors can be bitcast", location=op.location)
        from_memory = _major_first(attrs.result_layout, result.rank)
        linear = self._transposed(operand, _major_first(attrs.source_layout, source.rank))
        linear = self._recast(linear, source, result.element)
        stored = TensorType(element=result.element, shape=_permuted(result.shape, from_memory))
        reshaped = self._append("reshape", linear, stored)
        inverse = tuple(sorted(range(result.rank), key=from_memory.__getitem__))
        permutation = (("permutation", array_text(inverse)),)
        self.operations.append(_stablehlo("transpose", (reshaped,), op.results, permutation))

    def _recast(self, value: Value, source: TensorType, element: ElementType) -> Value:
        """Reinterpret a list of elements as a wider or narrower type."""
        if source.element == element:
            return value
        count, bits = source.element_count, source.element.bits
        wider, narrower = element.bits // bits, bits // element.bits
        shape = (count // wider, wider) if wider > 1 else (count,)
        split = (count, narrower) if narrower > 1 else shape[:1]
        flat = self._append("reshape", value, TensorType(element=source.element, shape=shape))
        return self._append("bitcast_convert", flat, TensorType(element=element, shape=split))

    def _transposed(self, value: Value, order: tuple[int, ...]) -> Value:
        kind = value.type
        if not isinstance(kind, TensorType) or order == tuple(range(len(order))):
            return value
        transposed_type = TensorType(element=kind.element, shape=_permuted(kind.shape, order))
        return self._append(
            "transpose", value, transposed_type, (("permutation", array_text(order)),)
        )

    def _append(
        self,
        kind: str,
        operand: Value,
        result_type: TensorType,
        attributes: tuple[tuple[str, str], ...] = (),
    ) -> Value:
        result = Value(type=result_type)
        self.operations.append(_stablehlo(kind, (operand,), (result,), attributes))
        return result


def _one_by_one(op: Op) -> Iterator[Op]:
    """Split a combined operation by operand; StableHLO has no combined form."""
    for operand, result in zip(op.operands, op.results, strict=True):
        yield replace(op, operands=(operand,), results=(result,))


def _stablehlo(
    kind: str,
    operands: tuple[Value, ...],
    results: tuple[Value, ...],
    attributes: tuple[tuple[str, str], ...] = (),
) -> Op:
    return Op(
        dialect="stablehlo",
        kind=kind,
        operands=operands,
        results=results,
        attrs=NO_ATTRS,
        attributes=attributes,
    )


def _major_first(layout: tuple[int, ...] | None, rank: int) -> tuple[int, ...]:
    return tuple(range(rank)) if layout is None else tuple(reversed(layout))


def _permuted(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in order)
