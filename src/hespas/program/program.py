"""Values, operations, blocks, functions and the program that holds them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from hespas.errors import ProgramError
from hespas.program.attrs import (
    Attrs,
    CallAttrs,
    CaseAttrs,
    CustomCallAttrs,
    KernelAttrs,
    WhileAttrs,
)
from hespas.program.groups import DeviceOrder
from hespas.program.kernels import CompiledKernels
from hespas.program.operations.launched import LAUNCHED
from hespas.program.operations.table import TRAITS, UNKNOWN
from hespas.program.operations.traits import Category, Traits
from hespas.program.recorded import Storage
from hespas.program.scopes import place_text
from hespas.program.types import TensorType, Type

_OF_DEVICE = 0.8


class OverlapLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler's limit, and what a program needed where it bit.

    ``needed_bytes`` are temporaries. ``factor`` is the flag's value, ``full_factor`` that with
    which the limit is all memory of the device; None where no value helps. ``is_given_up``:
    collectives run by themselves; otherwise the program was scheduled with ``full_factor`` instead.
    """

    limit_bytes: int
    needed_bytes: int
    factor: int
    full_factor: int | None
    is_given_up: bool = True


def counted_bytes(device_bytes: int, held_bytes: int) -> float:
    """Return what arguments and results, the bytes held, leave of what the scheduler counts on."""
    return _OF_DEVICE * device_bytes - held_bytes


def full_factor(device_bytes: int, counted: float, *, above: int) -> int | None:
    """Return the factor with which the limit is all that is left of the device's memory.

    ``counted`` are those of `counted_bytes`. None where that is not ``above`` the present factor.

    >>> full_factor(80, counted_bytes(80, 0), above=95)
    125
    """
    if counted <= 0:
        return None
    factor = int(100 * (1 + (1 - _OF_DEVICE) * device_bytes / counted) + 1e-9)
    return factor if factor > above else None


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """The program of all devices, as far as it is known.

    ``mesh`` has the axes of the devices' mesh with their sizes, major first, by which devices are
    numbered in order, or in the ``device_order``. ``inputs`` are the types of the arguments of all
    devices together. Both are empty where they are not known, and ``tokens`` of a step and
    ``model_flops``, which the model needs for one, are None.
    """

    mesh: tuple[tuple[str, int], ...] = ()
    inputs: tuple[Type, ...] = ()
    tokens: int | None = None
    model_flops: float | None = None
    device_order: DeviceOrder | None = None


class Value(msgspec.Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """One result of an operation, or one argument of a block; equal only to itself."""

    type: Type


def size_of(value: Value) -> int:
    """Return the elements of a value; 1 for what is no tensor."""
    return value.type.element_count if isinstance(value.type, TensorType) else 1


def tensor_of(value: Value) -> TensorType:
    """Return the type of a value that is a tensor."""
    assert isinstance(value.type, TensorType)  # noqa: S101 - callers know that it is one
    return value.type


def shape_of(value: Value) -> tuple[int, ...]:
    """Return the sizes of a tensor; none of anything else."""
    return value.type.shape if isinstance(value.type, TensorType) else ()


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A straight list of operations; the last one is the terminator (``return``)."""

    arguments: tuple[Value, ...]
    operations: tuple[Op, ...]


class Op(msgspec.Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """One operation; equal only to itself.

    ``kind`` is StableHLO's name without the dialect (``dot_general``), or ``fusion``,
    ``copy``, ``bitcast``, ``async_start``, ``async_update``, ``async_done``, ``call``, or PyTorch's
    name (``aten::add.Tensor``), without a ``dialect``.
    ``attributes`` holds each attribute's name and MLIR text, sorted by name, for printing.
    ``source_location`` is ``file:line:column``, or empty if the source has none. ``scope`` is the
    framework's name stack (``jit(step)/layers/attention/dot_general``), empty where there is none;
    like the location it is not printed, and decides nothing about what an operation computes.
    ``instruction`` is the name that a compiler gave it (``fusion.12``), empty elsewhere; it is not
    printed. ``estimated_cycles`` is what a TPU's compiler expects it to take, None elsewhere.
    ``stream`` is the device's stream that it runs on, 0 for the only one.
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
        """What is known of operations of its kind."""
        traits = TRAITS.get(self.kind)
        if traits is None:
            return LAUNCHED if isinstance(self.attrs, KernelAttrs) else UNKNOWN
        return traits

    @property
    def name(self) -> str:
        """The full name, ``stablehlo.add``."""
        return f"{self.dialect}.{self.kind}" if self.dialect else self.kind

    @property
    def place(self) -> str:
        """Where it stands: ``scope (file:line:column)``, either alone, or nothing."""
        return place_text(self.scope, self.source_location)

    @property
    def location(self) -> str:
        """Where it stands, for messages: place, name and instruction."""
        name = f"{self.name} (%{self.instruction})" if self.instruction else self.name
        place = self.place
        return f"{place}: {name}" if place else name


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A named block with arguments and results."""

    name: str
    body: Block

    @property
    def results(self) -> tuple[Value, ...]:
        """The values that it returns."""
        return self.body.operations[-1].operands


class Alias(msgspec.Struct, frozen=True, kw_only=True):
    """A result of the main function that may be written over one of its arguments.

    Both are positions in the main function's lists.
    """

    result: int
    argument: int


Fidelity = Literal["compiled", "fused", "library", "exported", "recorded"]


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """What a framework did beside launching the operations of a program.

    ``storages`` is the memory that its allocator gave: their positions are those of the main
    function's operations. ``has_expandable_segments`` says how the allocator takes memory.
    The host takes ``host_launch_s`` to launch an operation, one after another; with ``in_graphs``
    CUDA graphs do.
    """

    storages: tuple[Storage, ...] = ()
    has_expandable_segments: bool = False
    host_launch_s: float = 0.0
    in_graphs: bool = False


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Functions, the one that runs first, and the devices it was made for.

    ``replicas`` and ``partitions`` are None if the source does not say. ``source`` names the
    file, for messages. ``assumptions`` lists what the frontend assumed. ``is_scheduled``: a
    compiler put the operations in the order in which the device starts them, each of the main
    function a kernel of its own. ``is_modelled``: no compiler but a model of one made that
    schedule and its fusions; ``is_of_libraries``: of libraries in the place of a compiler's.
    ``recorded`` is set where a framework launched the operations in that order, on streams.
    ``kernels`` are what a compiler wrote, if that is known, and ``compiled_for`` is the part that
    hespas had the program compiled for (``sm_90``, ``tpu_v5e``), ``compiler_versions`` are those
    of the packages that did. ``aliases`` are sorted. ``whole`` is what is known of the program of
    all devices. ``overlap`` is the scheduler's limit where the program exceeded it, and
    ``warnings`` is what a reader should know of how it was divided.
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
    whole: Whole = Whole()
    overlap: OverlapLimit | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_recorded(self) -> bool:
        """Whether a framework launched its operations."""
        return self.recorded is not None

    @property
    def fidelity(self) -> Fidelity:
        """What its operations stand for.

        ``compiled``: the kernels that a compiler made; ``fused``: those that a model of a compiler
        made, ``library``: a model of libraries; ``recorded``: those that a framework launched;
        ``exported``: operations one by one.

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
        """Replicas times partitions, or None if the source says neither."""
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


def nested_ops(block: Block) -> Iterator[Op]:
    """Yield every operation of a block and of the regions inside, outer before inner."""
    for op in block.operations:
        yield op
        for region in op.regions:
            yield from nested_ops(region)


def scheduled_ops(block: Block) -> Iterator[Op]:
    """Yield the operations of a block and of its loops and branches, outer before inner."""
    for op in block.operations:
        yield op
        if isinstance(op.attrs, WhileAttrs | CaseAttrs):
            for region in op.regions:
                yield from scheduled_ops(region)


def all_ops(program: Program) -> Iterator[Op]:
    """Yield every operation of a program, those in regions included."""
    for function in program.functions.values():
        yield from nested_ops(function.body)


def values_read(op: Op) -> Sequence[Value]:
    """Return an operation's operands, then the outer values that its regions read.

    Fusions, collectives and asynchronous operations read nothing but their own arguments.
    """
    return _with_outer(op) if op.regions and op.traits.reads_around else op.operands


@lru_cache(maxsize=256)
def _with_outer(op: Op) -> Sequence[Value]:
    """Return what an operation reads, its regions too: of the same few loops many rules ask."""
    read = [*op.operands]
    _add_outer(op, read, set())
    return tuple(read)


def _add_outer(op: Op, read: list[Value], defined: set[Value]) -> None:
    """Append what an operation's regions read and do not define, and add what they define."""
    for region in op.regions:
        defined.update(region.arguments)
        for inner in region.operations:
            read += [value for value in inner.operands if value not in defined]
            if inner.regions and inner.traits.reads_around:
                _add_outer(inner, read, defined)
            defined.update(inner.results)


def called_functions(operations: Iterable[Op]) -> list[str]:
    """Return the names of the functions that operations call or pass to custom calls."""
    names: list[str] = []
    for op in operations:
        match op.attrs:
            case CallAttrs(callee=callee):
                names.append(callee)
            case CustomCallAttrs(called_functions=called):
                names.extend(called)
            case _:
                pass
    return names


def instructions_digest(program: Program) -> str:
    """Return a digest of a compiled program's instructions, in order, that identifies it.

    It covers those of loops and branches, which may have kernels. It leaves out what is inside
    fusions or starts asynchronously, because text and protos name that differently.
    """
    # OpenSSL takes 20 ms to load, which every command would pay.
    from hashlib import sha256  # noqa: PLC0415

    names = (f"{op.name} {op.instruction}\n" for op in scheduled_ops(program.main.body))
    return sha256("".join(names).encode()).hexdigest()


def with_kernels(program: Program, kernels: CompiledKernels, *, location: str) -> Program:
    """Return the program with its kernels; ``location`` names their file.

    Raises `ProgramError` for kernels of another program, by the digest of its instructions, or, if
    the kernels have none, by launches of instructions that this program does not have.
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
