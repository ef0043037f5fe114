"""Cut the elementwise end of a sharded program off, to divide it without a partitioner.

A training step ends with its optimiser: elementwise operations of gradients and states, and sums of
whole arrays. Gradients are divided as the states that they change, which the arguments say. So a
partitioner has to divide what stands before alone, the head, which returns them divided so.

A program that leaves the division of what it computes to the partitioner may get another one of its
gradients (tests of `hespas.lower` have one whose step would be 12 % too short), so that only steps
of hespas' models are cut, which were compared with whole partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.frontend.mesh import Mesh
from hespas.frontend.stablehlo.elementwise import Axes, Dividing, axes_of, is_divisible
from hespas.frontend.stablehlo.sharding import argument_shardings
from hespas.program.attrs import CallAttrs
from hespas.program.program import Block, Function, Op, Program, Value, shape_of
from hespas.program.rewrite import Renaming, renamed_op, with_calls_opened
from hespas.xla.mlir.heads import HeadResult

_FEWEST = 50
"""The fewest operations that are worth two programs."""
_ON_HOST = "memory_kind"


@frozen
class Tail:
    """The end of a program for one device: ``count`` operations of the main function.

    The head returns ``head_results``: what the tail takes of it, beside the main function's
    ``arguments`` (by number), then the whole program's results at ``passed``. The tail's ``body``,
    of one device, returns the other results.
    """

    undivided: Program
    count: int
    head_results: tuple[HeadResult, ...]
    passed: tuple[int, ...]
    arguments: tuple[int, ...]
    body: Block

    def joined(self, head: Program) -> Program:
        """Return one device's program, of that of the head."""
        main = head.main
        count = len(main.results) - len(self.passed)
        *operations, end = main.body.operations
        operations, laid_out = _without_copies(operations, set(main.results[:count]))
        values = [laid_out.get(value, value) for value in main.results[:count]]
        arguments = [main.body.arguments[number] for number in self.arguments]
        renaming: Renaming = dict(zip(self.body.arguments, (*arguments, *values), strict=True))
        *tail, tail_end = [renamed_op(op, renaming) for op in self.body.operations]
        passed = dict(zip(self.passed, main.results[count:], strict=True))
        own_results = iter(tail_end.operands)
        results = [
            passed[number] if number in passed else next(own_results)
            for number in range(len(self.undivided.main.results))
        ]
        end = replace(end, operands=tuple(results))
        body = Block(
            arguments=main.body.arguments,
            operations=(*_interleaved(operations, tail, results), end),
        )
        functions = {**head.functions, main.name: Function(name=main.name, body=body)}
        return replace(head, functions=functions, aliases=self.undivided.aliases)


def _without_copies(operations: list[Op], results: set[Value]) -> tuple[list[Op], Renaming]:
    """Drop the copies that only make results lie as results of a program have to."""
    copies = {
        op.results[0]: op.operands[0]
        for op in operations
        if op.kind == "reshape"
        and op.results[0] in results
        and shape_of(op.results[0]) == shape_of(op.operands[0])
    }
    return [op for op in operations if copies.keys().isdisjoint(op.results)], copies


def tail_of(
    program: Program, meshes: Mapping[str, Mesh], main_attributes: Mapping[str, str]
) -> Tail | None:
    """Return the end of a program that is divided without a partitioner.

    None where it is short, or where its arguments do not say how. ``meshes`` are the module's by
    name, and the attributes of the main function MLIR text.
    """
    if len(meshes) != 1 or any(_ON_HOST in text for text in main_attributes.values()):
        return None
    ((mesh_name, mesh),) = meshes.items()
    arguments, results = (
        argument_shardings(main_attributes, name) for name in ("arg_attrs", "res_attrs")
    )
    cut = _Cut(program)
    is_declared = (
        mesh.device_ids is None
        and mesh.device_count == program.declared_devices
        and len(arguments) == len(program.main.body.arguments)
        and len(results) == len(program.main.results)
    )
    if not is_declared or cut.count < _FEWEST:
        return None
    main = with_calls_opened(
        replace(program, functions={**program.functions, program.main.name: cut.function})
    )
    own_shardings = [results[number] for number in cut.own_results]
    axes = _declared(cut.arguments, [arguments[number] for number in cut.numbers])
    if len(axes) < len(cut.arguments):
        return None
    axes |= _declared(main.results, own_shardings)
    _spread(main.body, axes)
    if any(value not in axes for value in cut.values):
        return None
    dividing = Dividing(mesh=mesh)
    if not dividing.function(main, [axes[value] for value in main.body.arguments], own_shardings):
        return None
    return Tail(
        undivided=program,
        count=cut.count,
        head_results=cut.head_results(axes, mesh_name),
        passed=cut.passed,
        arguments=cut.numbers,
        body=dividing.body(main),
    )


class _Cut:
    """A main function cut before the operations that can be divided without a partitioner.

    Of the head the tail takes ``arguments``, which are the main function's ``numbers``, and
    ``values``; it has constants of its own. It makes the results numbered ``own_results``.
    """

    def __init__(self, program: Program) -> None:
        main = program.main
        *before, end = main.body.operations
        operations: list[Op] = []
        while before and _can_be_divided(before[-1], program):
            operations.append(before.pop())
        operations.reverse()
        self._tail = (*operations, end)
        self.count = len(self._tail)
        numbers = {value: number for number, value in enumerate(main.body.arguments)}
        of_head = {*numbers, *(value for op in before for value in op.results)}
        constants = {op.results[0]: op for op in before if op.kind == "constant"}
        results = list(enumerate(main.results))
        self.passed = tuple(number for number, value in results if value in of_head)
        self.own_results = tuple(number for number, value in results if value not in of_head)
        own_values = tuple(main.results[number] for number in self.own_results)
        read = [value for value in _in_order(own_values, _makers(operations)) if value in of_head]
        self.arguments = tuple(value for value in read if value in numbers)
        self.numbers = tuple(numbers[value] for value in self.arguments)
        self.values = tuple(v for v in read if v not in numbers and v not in constants)
        copied = [constants[value] for value in read if value in constants]
        body = Block(
            arguments=(*self.arguments, *self.values),
            operations=(*copied, *operations, replace(end, operands=own_values)),
        )
        self.function = Function(name=main.name, body=body)

    def head_results(self, axes: Mapping[Value, Axes], mesh: str) -> tuple[HeadResult, ...]:
        """Return what the tail takes, then what passes it."""
        places = {
            value: (reader, operand)
            for reader, op in enumerate(self._tail)
            for operand, value in enumerate(op.operands)
        }
        values = [(*places[value], None, _text(axes[value], mesh)) for value in self.values]
        passed = [(self.count - 1, number, number, "") for number in self.passed]
        return tuple(
            HeadResult(reader=reader, operand=operand, declared=declared, sharding=sharding)
            for reader, operand, declared, sharding in (*values, *passed)
        )


def _in_order(results: Sequence[Value], makers: Mapping[Value, Op]) -> list[Value]:
    """Return results and all that they are made of, what is read first before the others.

    XLA orders operations so.
    """
    found: dict[Value, None] = {}
    waiting = list(reversed(results))
    while waiting:
        maker = makers.get(waiting[-1])
        missing = [] if maker is None else [it for it in maker.operands if it not in found]
        if missing:
            waiting += reversed(missing)
        else:
            found[waiting.pop()] = None
    return list(found)


def _makers(operations: Iterable[Op]) -> dict[Value, Op]:
    return {value: op for op in operations for value in op.results}


def _interleaved(head: Sequence[Op], tail: Sequence[Op], results: Sequence[Value]) -> list[Op]:
    """Put each operation of a tail where XLA would, between those of the head."""
    places = {value: place for place, op in enumerate(head, 1) for value in op.results}
    makers, ordered, done = _makers(tail), list[Op](), 0
    for value in _in_order(results, makers):
        if value in makers:
            ordered.append(makers[value])
        elif places.get(value, 0) > done:
            ordered += head[done : places[value]]
            done = places[value]
    return [*ordered, *head[done:]]


def _can_be_divided(op: Op, program: Program) -> bool:
    if isinstance(op.attrs, CallAttrs):
        body = program.function(op.attrs.callee, location=op.location).body
        return all(_can_be_divided(inner, program) for inner in body.operations)
    return is_divisible(op)


def _declared(values: tuple[Value, ...], texts: list[str]) -> dict[Value, Axes]:
    found = {value: axes_of(text, value) for value, text in zip(values, texts, strict=True)}
    return {value: axes for value, axes in found.items() if axes is not None}


def _spread(block: Block, axes: dict[Value, Axes]) -> None:
    """Divide what elementwise operations read as what they make, or read beside it."""
    numbers = {
        op.results[0] for op in block.operations if op.kind in {"broadcast_in_dim", "constant"}
    }
    axes |= {value: () for value in block.arguments if not shape_of(value)}
    for op in reversed(block.operations):
        if op.traits.is_elementwise:
            arrays = [v for v in (*op.results, *op.operands) if shape_of(v) and v not in numbers]
            found = next((axes[value] for value in arrays if value in axes), None)
            if found is not None:
                axes |= {value: found for value in arrays if value not in axes}


def _text(axes: Axes, mesh: str) -> str:
    """Return a sharding as MLIR text."""
    quoted = [", ".join([f'"{name}"' for name in names]) for names in axes]
    dimensions = ", ".join([f"{{{names}}}" for names in quoted])
    return f"#sdy.sharding<@{mesh}, [{dimensions}]>"
