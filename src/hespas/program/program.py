"""Values, operations, blocks, functions and the program that holds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from math import prod
from typing import Literal

import msgspec

from hespas.errors import ProgramError
from hespas.program.attrs import (
    NO_ATTRS,
    Attrs,
    CallAttrs,
    CaseAttrs,
    CustomCallAttrs,
    DimensionsAttrs,
    KernelAttrs,
    WhileAttrs,
)
from hespas.program.groups import DeviceOrder
from hespas.program.kernels import CompiledKernels
from hespas.program.operations.libraries import LAUNCHED
from hespas.program.operations.table import TRAITS, UNKNOWN
from hespas.program.operations.traits import Category, Traits
from hespas.program.recorded import Pipeline, Storage
from hespas.program.scopes import place_text
from hespas.program.types import TensorType, Type

_MEMORY_SHARE = 0.8


class OverlapLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler's memory limit, which the program exceeded.

    ``needed_bytes`` are temporaries. ``factor`` is the flag's value; with ``full_factor`` the limit
    would be all memory of the device, None if no value helps. With ``is_given_up`` collectives run
    without overlap; otherwise the program was scheduled with ``full_factor`` instead.
    """

    limit_bytes: int
    needed_bytes: int
    factor: int
    full_factor: int | None
    is_given_up: bool = True


def counted_bytes(device_bytes: int, held_bytes: int) -> float:
    """Return the scheduler's memory budget less ``held_bytes`` of arguments and results."""
    return _MEMORY_SHARE * device_bytes - held_bytes


def full_factor(device_bytes: int, counted: float, *, above: int) -> int | None:
    """Return the factor for a limit of all free memory.

    ``counted`` comes from `counted_bytes`. The result is None if the factor is not ``above`` the
    present one.

    >>> full_factor(80, counted_bytes(80, 0), above=95)
    125
    """
    if counted <= 0:
        return None
    factor = int(100 * (1 + (1 - _MEMORY_SHARE) * device_bytes / counted) + 1e-9)
    return factor if factor > above else None


class GlobalFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of the program over all devices.

    ``mesh`` has the axes of the device mesh with their sizes, major first; devices are numbered in
    this order, or in ``device_order``. ``inputs`` are the types of the undivided arguments. Both
    are empty if unknown. ``tokens`` of a step, its ``samples``, whose plural is ``sample_name``,
    and ``model_flops``, the FLOPs that the model needs for one, are None if unknown.
    """

    mesh: tuple[tuple[str, int], ...] = ()
    inputs: tuple[Type, ...] = ()
    tokens: int | None = None
    samples: int | None = None
    sample_name: str = "samples"
    model_flops: float | None = None
    device_order: DeviceOrder | None = None


class Value(msgspec.Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """A result or a block's argument; equal only to itself."""

    type: Type


def size_of(value: Value) -> int:
    """Return the number of elements; 1 without a tensor."""
    return value.type.element_count if isinstance(value.type, TensorType) else 1


def tensor_of(value: Value) -> TensorType:
    """Return the type of a value that is a tensor."""
    assert isinstance(value.type, TensorType)  # noqa: S101 - callers know that it is one
    return value.type


def shape_of(value: Value) -> tuple[int, ...]:
    """Return a tensor's sizes; empty for other values."""
    return value.type.shape if isinstance(value.type, TensorType) else ()


def memory_order(value: Value) -> tuple[int, ...]:
    """Return the dimensions of more than one element, the fastest first."""
    kind = value.type
    return kind.long_dimensions if isinstance(kind, TensorType) else ()


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Operations without branches; the last is the terminator."""

    arguments: tuple[Value, ...]
    operations: tuple[Op, ...]


def returning(
    arguments: tuple[Value, ...], operations: Iterable[Op], results: Iterable[Value], dialect: str
) -> Block:
    """Return a block that returns ``results``."""
    last = Op(dialect=dialect, kind="return", operands=tuple(results), results=(), attrs=NO_ATTRS)
    return Block(arguments=arguments, operations=(*operations, last))


class Op(msgspec.Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """One operation; equal only to itself.

    ``kind`` is StableHLO's name without the dialect (``dot_general``), or ``fusion``, ``copy``,
    ``bitcast``, ``async_start``, ``async_update``, ``async_done``, ``call``, or PyTorch's name
    (``aten::add.Tensor``), without a ``dialect``. ``attributes`` holds each attribute's name and
    MLIR text, sorted by name, for printing. ``source_location`` is ``file:line:column``, or empty
    if the source has none. ``scope`` is the framework's name stack
    (``jit(step)/layers/attention/dot_general``), empty where there is none; like the location it is
    not printed, and decides nothing about what an operation computes. ``instruction`` is the
    compiler's name for it (``fusion.12``), empty elsewhere; it is not printed. ``estimated_cycles``
    is the estimate of a TPU's compiler, None elsewhere. ``stream`` is the device's stream that it
    runs on, 0 if there is only one.
    """

    dialect: str
    kind: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attrs: Attrs
    attributes: tuple[tuple[str, str], ...] = ()
    regions: tuple[Block, ...] = ()
    source_location: str = ""
    scope: str = ""
    instruction: str = ""
    estimated_cycles: int | None = None
    stream: int = 0

    @property
    def traits(self) -> Traits:
        """The facts about operations of its kind."""
        try:
            return TRAITS[self.kind]
        except KeyError:
            return LAUNCHED if isinstance(self.attrs, KernelAttrs) else UNKNOWN

    @property
    def name(self) -> str:
        """The full name, ``stablehlo.add``."""
        return f"{self.dialect}.{self.kind}" if self.dialect else self.kind

    @property
    def place(self) -> str:
        """Its position in the source: ``scope (file:line:column)``.

        Either part may be missing.
        """
        return place_text(self.scope, self.source_location)

    @property
    def location(self) -> str:
        """Its position for error messages: place, name and instruction."""
        name = f"{self.name} (%{self.instruction})" if self.instruction else self.name
        place = self.place
        return f"{place}: {name}" if place else name


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A named block with arguments and results."""

    name: str
    body: Block

    @property
    def results(self) -> tuple[Value, ...]:
        """The values that the function returns."""
        return self.body.operations[-1].operands


class Alias(msgspec.Struct, frozen=True, kw_only=True):
    """A result of ``main`` that may overwrite an argument, both by position."""

    result: int
    argument: int


Fidelity = Literal["compiled", "fused", "library", "exported", "recorded"]


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A framework's memory and launch behaviour in a recorded step.

    ``storages`` are the allocations; their positions count the operations of the main function.
    ``has_expandable_segments`` is the allocator's setting. The host takes ``host_launch_s`` to
    launch each operation, one after another; with ``in_graphs`` CUDA graphs launch them.
    ``rank`` is the recorded one, ``stages`` are the programs of the other ranks of its
    ``pipeline``.
    """

    storages: tuple[Storage, ...] = ()
    has_expandable_segments: bool = False
    host_launch_s: float = 0.0
    in_graphs: bool = False
    rank: int = 0
    pipeline: Pipeline | None = None
    stages: tuple[Program, ...] = ()


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """The functions of a program, for its devices.

    ``replicas`` and ``partitions`` are None if the source does not say. ``source`` names the
    file, for messages. ``assumptions`` lists what the frontend assumed. ``is_scheduled``: the
    operations stand in the order in which the device starts them, each of the main function a
    kernel. ``is_modelled``: hespas' model of a compiler, not a compiler, made that schedule and its
    fusions; ``is_of_libraries``: it models libraries instead of a compiler. ``recorded`` is set if
    a framework launched the operations in that order, on streams. ``kernels`` are the compiler's
    kernels, if known; ``compiled_for`` is the part for which hespas had the program compiled
    (``sm_90``, ``tpu_v5e``), ``compiler_versions`` are the versions of the compiler's packages.
    ``aliases`` are sorted. ``global_facts`` has facts of the program over all devices. ``overlap``
    is the scheduler's limit if the program exceeded it, and ``warnings`` are about the division of
    the program.
    """

    functions: Mapping[str, Function]
    replicas: int | None
    partitions: int | None
    source: str = ""
    module_name: str = "module"
    assumptions: tuple[str, ...] = ()
    is_scheduled: bool = False
    is_modelled: bool = False
    is_of_libraries: bool = False
    recorded: Recorded | None = None
    aliases: tuple[Alias, ...] = ()
    kernels: CompiledKernels | None = None
    compiled_for: str = ""
    compiler_versions: Mapping[str, str] = {}
    global_facts: GlobalFacts = GlobalFacts()
    overlap: OverlapLimit | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_recorded(self) -> bool:
        """Whether a framework launched its operations."""
        return self.recorded is not None

    @property
    def fidelity(self) -> Fidelity:
        """The origin of the main function's operations.

        ``compiled``: a compiler's kernels; ``fused``: the kernels of a model of a compiler;
        ``library``: the kernels of a model of libraries; ``recorded``: the kernels that a framework
        launched; ``exported``: single operations.

        >>> program = Program(functions={}, replicas=None, partitions=None)
        >>> program.fidelity
        'exported'
        >>> msgspec.structs.replace(program, is_scheduled=True, is_modelled=True).fidelity
        'fused'
        """
        if not self.is_scheduled:
            return "exported"
        if self.is_recorded:
            return "recorded"
        if not self.is_modelled:
            return "compiled"
        return "library" if self.is_of_libraries else "fused"

    @property
    def main(self) -> Function:
        """The entry function; `ProgramError` if there is none."""
        function = self.functions.get("main")
        if function is None:
            raise ProgramError(
                "the program has no function named main",
                location=self.source,
                hint=f"it has {', '.join(self.functions) or 'no functions'}",
            )
        return function

    @property
    def declared_devices(self) -> int | None:
        """Replicas times partitions; None if the source says neither."""
        if self.replicas is None and self.partitions is None:
            return None
        return (self.replicas or 1) * (self.partitions or 1)

    def function(self, name: str, *, location: str = "") -> Function:
        """Return the function called ``name``; `ProgramError` if there is none."""
        function = self.functions.get(name)
        if function is None:
            raise ProgramError(f"function @{name} is called but not defined", location=location)
        return function


def is_communication_op(op: Op) -> bool:
    """Return whether an operation moves data between devices."""
    return op.traits.category is Category.COLLECTIVE


def applied_ops(op: Op) -> list[Op]:
    """Return the operations of an operation's regions, as a reduction's ``add``."""
    return [inner for region in op.regions for inner in region.operations[:-1]]


def reduced_dimensions(op: Op) -> tuple[int, ...]:
    """Return the dimensions that a reduction sums over."""
    return op.attrs.dimensions if isinstance(op.attrs, DimensionsAttrs) else ()


def columns_together(op: Op) -> int:
    """Return how many columns of a reduction are adjacent in memory."""
    reduced, shape = reduced_dimensions(op), shape_of(op.operands[0])
    kept = takewhile(lambda axis: axis not in reduced, memory_order(op.operands[0]))
    return prod([shape[axis] for axis in kept])


def started_ops(op: Op) -> list[Op]:
    """Return the operations that an ``async_start`` starts."""
    return applied_ops(op) if op.kind == "async_start" else []


def nested_ops(block: Block) -> Iterator[Op]:
    """Yield every operation of a block, outer before inner."""
    for op in block.operations:
        yield op
        for region in op.regions:
            yield from nested_ops(region)


def scheduled_ops(block: Block) -> Iterator[Op]:
    """Yield the operations of a block, loops and branches, outer before inner."""
    for op in block.operations:
        yield op
        if isinstance(op.attrs, WhileAttrs | CaseAttrs):
            for region in op.regions:
                yield from scheduled_ops(region)


def all_ops(program: Program) -> Iterator[Op]:
    """Yield every operation of a program, including those in regions."""
    for function in program.functions.values():
        yield from nested_ops(function.body)


def values_read(op: Op) -> Sequence[Value]:
    """Return operands, then the outer values of regions.

    Fusions, collectives and asynchronous operations read nothing but their own arguments.
    """
    return _with_outer(op) if op.regions and op.traits.reads_around else op.operands


def needed_for(
    operations: Sequence[Op], results: Iterable[Value], *, start: Value | None = None
) -> list[Op]:
    """Return the operations from ``start`` to some results, in order."""
    needed, producers = set(results) - {start}, list[Op]()
    for op in reversed(operations):
        if needed.isdisjoint(op.results):
            continue
        producers.append(op)
        needed.update(value for value in values_read(op) if value is not start)
    return producers[::-1]


MOST_REMEMBERED = 16384
"""The size of caches by operation: more operations than most programs have.

Each entry of a larger program would be evicted before its next use.
"""


@lru_cache(maxsize=MOST_REMEMBERED)
def _with_outer(op: Op) -> Sequence[Value]:
    """Return operands and the outer values of regions.

    Cached, because many rules ask for the same few loops.
    """
    read = [*op.operands]
    _add_outer(op, read, set())
    return tuple(read)


def _add_outer(op: Op, read: list[Value], defined: set[Value]) -> None:
    """Append the outer values of an operation's regions.

    ``defined`` collects the values that the regions define.
    """
    for region in op.regions:
        defined.update(region.arguments)
        for inner in region.operations:
            read += [value for value in inner.operands if value not in defined]
            if inner.regions and inner.traits.reads_around:
                _add_outer(inner, read, defined)
            defined.update(inner.results)


def called_functions(operations: Iterable[Op]) -> list[str]:
    """Return the functions that operations name."""
    names: list[str] = []
    for op in operations:
        # Calls name one function, custom calls several.
        match op.attrs:
            case CallAttrs(callee=callee):
                names.append(callee)
            case CustomCallAttrs(called_functions=called):
                names.extend(called)
            case _:
                pass
    return names


def instructions_digest(program: Program) -> str:
    """Return the digest that identifies a compiled program.

    It covers the instructions in order, those of loops and branches included. It leaves out those
    inside fusions and asynchronous starts, because text and protos name them differently.
    """
    # OpenSSL takes 20 ms to load, which every command would pay.
    from hashlib import sha256  # noqa: PLC0415

    names = (f"{op.name} {op.instruction}\n" for op in scheduled_ops(program.main.body))
    return sha256("".join(names).encode()).hexdigest()


def with_kernels(program: Program, kernels: CompiledKernels, *, location: str) -> Program:
    """Return the program with its kernels.

    ``location`` names their file. Raises `ProgramError` for kernels of another program, by the
    digest of its instructions, or, if the kernels have none, by launches of instructions that this
    program does not have.
    """
    instructions = {op.instruction for op in all_ops(program)}
    foreign = [
        launch.instruction for launch in kernels.launches if launch.instruction not in instructions
    ]
    digest = kernels.program
    if foreign or (digest and digest != instructions_digest(program)):
        why = f", which launch {foreign[0]}" if foreign else ""
        raise ProgramError(
            f"holds the kernels of another program than {program.source}{why}",
            location=location,
            hint="give those that hespas compile wrote with it",
        )
    return msgspec.structs.replace(program, kernels=kernels)
