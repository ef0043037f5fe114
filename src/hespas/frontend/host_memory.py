"""Mark the values that a program keeps on the host.

JAX states the placement of values by custom calls (``annotate_device_placement``) and by the memory
kind of arguments; a compiler derives which buffers that concerns. A value is on the host if a
placement puts it there, if it is sliced, reshaped or joined from a value there, or if a loop
carries it there, until a placement moves it to the device. As in XLA, the buffer of a constant on
the host that is overwritten part by part is allocated and not moved.

Source: openxla/xla, ``xla/hlo/transforms/host_offloader.cc``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from hespas.errors import UnsupportedError
from hespas.program.attrs import (
    PARTITIONER_MARKERS,
    CaseAttrs,
    CustomCallAttrs,
    WhileAttrs,
)
from hespas.program.program import (
    Block,
    Function,
    Op,
    Program,
    Value,
    all_ops,
    called_functions,
    nested_ops,
)
from hespas.program.rewrite import plain_op, with_calls_opened
from hespas.program.types import HOST_MEMORY, TensorType
from hespas.program.uses import Uses

_ON_HOST = {"device": False, "pinned_host": True, "unpinned_host": True}
"""JAX's memory kinds."""

_TARGETS = {"MoveToDevice": False, "MoveToHost": True}
_ANNOTATION = "annotate_device_placement"
_KIND = re.compile(r'_xla_buffer_placement ?= ?"([^"]*)"')

# If the first operand is on the host, so is the result.
_FORWARD = frozenset(
    {
        "bitcast",
        "broadcast_in_dim",
        "concatenate",
        "copy",
        "dynamic_slice",
        "dynamic_update_slice",
        "optimization_barrier",
        "pad",
        "reshape",
        "reverse",
        "slice",
        "transpose",
    }
)
_FILLED = frozenset({"broadcast_in_dim", "constant", "iota"})


def is_on_host(kind: str, *, location: str) -> bool:
    """Return whether a memory kind is the host's.

    Raises `UnsupportedError` for an unknown kind.

    >>> is_on_host("pinned_host", location="step.mlir"), is_on_host("device", location="step.mlir")
    (True, False)
    """
    if kind not in _ON_HOST:
        raise UnsupportedError(
            f"memory kind {kind!r} is not known",
            location=location,
            hint=f"kinds are {', '.join(sorted(_ON_HOST))}",
        )
    return _ON_HOST[kind]


def placed_on_host(op: Op) -> bool | None:
    """Return whether a placement targets the host, or None."""
    if not isinstance(op.attrs, CustomCallAttrs):
        return None
    target = op.attrs.target
    if target != _ANNOTATION:
        return _TARGETS.get(target)
    text = next((text for _, text in op.attributes if _KIND.search(text)), "")
    match = _KIND.search(text)
    if match is None:
        raise UnsupportedError("it does not say where to place its operand", location=op.location)
    return is_on_host(match[1], location=op.location)


def with_host_memory(
    program: Program, *, arguments: Collection[int] = (), results: Collection[int] = ()
) -> Program:
    """Return the program with values on the host typed.

    ``arguments`` of the main function are on the host when it starts, ``results`` when it ends. A
    program that a compiler scheduled states memory spaces itself and is returned unchanged. Calls
    are inlined, because a function may be called with values in either memory. Raises
    `UnsupportedError` for an unknown memory kind.
    """
    if program.is_scheduled:
        return program
    is_given = arguments or results
    if not is_given and not any(placed_on_host(op) for op in all_ops(program)):
        return program
    main = with_calls_opened(program)
    search = _HostValues(host={main.body.arguments[number] for number in arguments})
    while search.grows(main.body):
        pass
    misplaced = [number for number in results if main.results[number] not in search.host]
    if misplaced:
        main = _with_results_placed(main, misplaced)
        search.grows(main.body)
    retyped = Function(name=main.name, body=_Retyper(host=search.host).block(main.body))
    return replace(program, functions=dict(_reached(program, retyped)))


def _with_results_placed(main: Function, results: Collection[int]) -> Function:
    *body_operations, end = main.body.operations
    returned = list(end.operands)
    for number in results:
        placed = Value(type=returned[number].type)
        body_operations.append(_call("MoveToHost", (returned[number],), placed))
        returned[number] = placed
    operations = (*body_operations, replace(end, operands=tuple(returned)))
    return Function(
        name=main.name, body=Block(arguments=main.body.arguments, operations=operations)
    )


def _call(target: str, operands: tuple[Value, ...], result: Value) -> Op:
    return Op(
        dialect="stablehlo",
        kind="custom_call",
        operands=operands,
        results=(result,),
        attrs=CustomCallAttrs(target=target),
        attributes=(("call_target_name", f'"{target}"'),),
    )


def _reached(program: Program, main: Function) -> Iterator[tuple[str, Function]]:
    yield "main", main
    pending, seen = called_functions(nested_ops(main.body)), {"main"}
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        function = program.function(name)
        yield name, function
        pending.extend(called_functions(nested_ops(function.body)))


@dataclass(slots=True, kw_only=True)
class _HostValues:
    """The values known to be on the host."""

    host: set[Value] = field(default_factory=set[Value])

    def grows(self, block: Block) -> bool:
        """Search a block once and return whether values were added."""
        count_before = len(self.host)
        for op in block.operations:
            self._op(op)
            for region in op.regions:
                self.grows(region)
        return len(self.host) > count_before

    def _op(self, op: Op) -> None:
        placed = placed_on_host(op)
        if placed is not None:
            self.host.update(op.results if placed else ())
        elif isinstance(op.attrs, WhileAttrs):
            condition, body = op.regions
            returned = body.operations[-1].operands
            carried = (op.operands, condition.arguments, body.arguments, returned, op.results)
            for operand, *inner_values in zip(*carried, strict=True):
                if operand in self.host or not self.host.isdisjoint(inner_values):
                    condition_value, argument, _, result = inner_values
                    self.host.update((condition_value, argument, result))
        elif isinstance(op.attrs, CaseAttrs):
            for region in op.regions:
                self._pairwise(region.operations[-1].operands, op.results)
        elif op.kind == "optimization_barrier":
            self._pairwise(op.operands, op.results)
        elif _passes_on(op) and not self.host.isdisjoint(_sources(op)):
            self.host.update(op.results)

    def _pairwise(self, sources: Iterable[Value], results: Iterable[Value]) -> None:
        pairs = zip(sources, results, strict=True)
        self.host.update(result for source, result in pairs if source in self.host)


def _passes_on(op: Op) -> bool:
    if isinstance(op.attrs, CustomCallAttrs):
        return op.attrs.target in PARTITIONER_MARKERS
    return op.kind in _FORWARD


def _sources(op: Op) -> Sequence[Value]:
    """Return the operands whose data the result holds, without indices."""
    if op.kind == "concatenate":
        return op.operands
    return op.operands[: 2 if op.kind == "dynamic_update_slice" else 1]


@dataclass(slots=True, kw_only=True)
class _Retyper:
    """Copies operations with host types and new host buffers."""

    host: set[Value]
    renamed: dict[Value, Value] = field(default_factory=dict[Value, Value])
    uses: Uses = field(default_factory=Uses)

    def block(self, block: Block) -> Block:
        arguments = self._values(block.arguments)
        operations: list[Op] = []
        for op in block.operations:
            self.uses.add(op)
            operands = list(self._renamed(op.operands))
            for position in self._buffers(op):
                buffer = self._host_buffer(op, op.operands[position], operands[position])
                operations.append(buffer)
                operands[position] = buffer.results[0]
            regions = tuple([self.block(region) for region in op.regions])
            results = self._values(op.results)
            operations.append(
                replace(op, operands=tuple(operands), results=results, regions=regions)
            )
        return Block(arguments=arguments, operations=tuple(operations))

    def _renamed(self, values: Iterable[Value]) -> Iterator[Value]:
        return (self.renamed.get(value, value) for value in values)

    def _values(self, values: Iterable[Value]) -> tuple[Value, ...]:
        for value in values:
            if value in self.host and isinstance(value.type, TensorType):
                self.renamed[value] = Value(type=replace(value.type, memory_space=HOST_MEMORY))
        return tuple(self._renamed(values))

    def _buffers(self, op: Op) -> Iterator[int]:
        if isinstance(op.attrs, WhileAttrs):
            pairs = zip(op.operands, op.results, strict=True)
        elif op.kind == "dynamic_update_slice":
            pairs = zip(op.operands[:1], op.results, strict=True)
        else:
            return
        for position, (operand, result) in enumerate(pairs):
            if result in self.host and operand not in self.host:
                yield position

    def _host_buffer(self, op: Op, operand: Value, renamed: Value) -> Op:
        """Return a host buffer's allocation if it is filled, else a copy."""
        kind = operand.type
        if not isinstance(kind, TensorType):
            raise UnsupportedError(f"{kind} on the host", location=op.location)
        result = Value(type=replace(kind, memory_space=HOST_MEMORY))
        producer = self.uses.producer(operand)
        if producer is not None and producer.kind in _FILLED:
            allocation = _call("AllocateBuffer", (), result)
            return replace(allocation, source_location=op.source_location, scope=op.scope)
        return replace(plain_op(op, "copy", (renamed,), result), dialect="mhlo")
