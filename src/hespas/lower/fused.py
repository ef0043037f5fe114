"""Model a GPU compiler's kernels of a program, without the compiler.

The rules are listed in `RULES`, in the order in which they run; `docs/decisions/0017` says which
program shows each. Kernels of libraries, as frameworks without a compiler call them, are another
such model: Transformer Engine and Megatron-LM have kernels of their own for what stands between
products, attention and collectives, such as norms forward and backward with the sums of their
weights' gradients, biases with activations, rotary embeddings, and rounding to 8 bits with the
transpose beside it. There such a stretch of operations is one kernel, which reads each array once,
writes each once and streams. Products, attention and collectives take arrays in the order in which
they lie: Megatron-LM keeps tokens in the order that collectives divide, and its kernels take
strides. Products of 8 bits take operands whose summed dimension is the fastest, on parts before
Blackwell; weights are there in both orders, as Transformer Engine keeps them for a step.
Source: NVIDIA, cuBLAS, section "cublasLtMatmul", FP8: the TN format on Ada and Hopper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from enum import Flag, auto
from functools import partial

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.compile.options import DEFAULT_OPTIONS, CompileOptions
from hespas.hardware.device import Device
from hespas.lower import (
    collectives,
    convolutions,
    dots,
    expand,
    narrow,
    reductions,
    sorts,
    starts,
)
from hespas.lower.assign import Assignment
from hespas.lower.build import (
    Names,
    built,
    kept_arguments,
    with_copies,
    with_equal_once,
    with_equal_together,
)
from hespas.lower.group import grouped
from hespas.lower.library import (
    SCALES_ASSUMPTION,
    ShardCopies,
    with_routing_together,
    with_scales,
    with_shards_copied,
)
from hespas.lower.loops import (
    with_freed_first,
    with_layouts_before,
    with_narrow_carried,
    with_operands_inside,
)
from hespas.lower.merge import nodes_of, stretches_of
from hespas.lower.overlap import exceeded_limit, with_early_zeros
from hespas.lower.pipelined import with_pipelined, with_starts_at_ends
from hespas.lower.recurrences import RECURRENCES
from hespas.lower.roles import is_zero
from hespas.lower.simplify import Simplifier
from hespas.lower.stacks import (
    KEPT_AS_THEY_ARE,
    puts_row,
    with_empty_stacks,
    with_own_arrays,
)
from hespas.memory.usage import memory_use
from hespas.program.program import Block, Function, Op, Program, applied_ops
from hespas.program.rewrite import Builder, Pattern, each_block, with_calls_opened, with_patterns
from hespas.program.uses import Uses, in_order

LIBRARY_WRITER = "library"
"""The `FusionAttrs.backend_kind` of a kernel of a library."""

LIBRARY_ASSUMPTION = (
    "kernels are those of libraries, not a compiler's: between products, attention and "
    "collectives, one that reads and writes every array once"
)
MODULE_ASSUMPTION = (
    "kernels are those of libraries, not a compiler's: between products, attention and "
    "collectives, each module of the program has one that reads and writes every array once"
)
_ASSUMPTION = (
    "kernels are those that a model of XLA's fusion for GPUs makes of the program, not a compiler's"
)
_TPU_ASSUMPTION = (
    f"{_ASSUMPTION}; libtpu was compared with it on language models: steps that gather, scatter, "
    "sort or run small kernels in loops come out up to several times too short or too long"
)
_OF_BLACKWELL = "f4E2M1FN"


class Writer(Flag):
    """Who writes the kernels: XLA for GPUs, libtpu, or libraries for GPUs."""

    GPU = auto()
    TPU = auto()
    LIBRARY = auto()


def _scattered_onto(op: Op, uses: Uses) -> Sequence[Op] | None:
    """Return the scatter onto the other operand of a sum, if any.

    ``a + scatter(b, places, updates)`` that adds to ``b`` is ``scatter(a + b, places, updates)``,
    which moves the data of ``a`` once instead of three times. Of two scatters both stay. Source:
    what jaxlib 0.10.2 compiles for H100 of 26 sums with a scatter.
    """
    makers = [uses.producer(value) for value in op.operands]
    sums = [_is_sum(maker) for maker in makers]
    if sum(sums) != 1:
        return None
    side = sums.index(True)
    scatter, addend = makers[side], op.operands[1 - side]
    if scatter is None or uses.only_reader(scatter.results[0]) is not op:
        return None
    build = Builder(op)
    start, *updates = scatter.operands
    onto = addend if is_zero(start, uses) else build.add("add", (addend, start), start.type)
    onto_sum = replace(scatter, operands=(onto, *updates), results=op.results)
    return (*build.operations, onto_sum)


def _is_sum(op: Op | None) -> bool:
    if op is None or op.kind != "scatter" or len(op.results) != 1:
        return False
    return [applied.kind for applied in applied_ops(op)] == ["add"]


_SCATTERED_ONTO = Pattern(kinds=("add",), change=_scattered_onto)
_ALL = Writer.GPU | Writer.TPU | Writer.LIBRARY
_OF_CUDA = Writer.GPU | Writer.LIBRARY

RULES: tuple[tuple[Writer, Pattern | Callable[[Block], Block]], ...] = (
    (Writer.GPU, dots.OPENED_VECTORS),
    (Writer.GPU | Writer.TPU, dots.WITHOUT_UNITS),
    (Writer.LIBRARY, KEPT_AS_THEY_ARE),
    (Writer.LIBRARY, with_empty_stacks),
    (Writer.LIBRARY, RECURRENCES),
    (Writer.LIBRARY, dots.OPENED_SMALL),
    (Writer.LIBRARY, narrow.NARROW_PRODUCTS),
    (_ALL, reductions.SCANS),
    (_ALL, reductions.BEFORE_RESHAPES),
    (_ALL, collectives.JOINED_SUMS),
    (Writer.GPU, collectives.FOLDED_SUMS),
    (Writer.LIBRARY, collectives.SUMS_FIRST),
    (_ALL, collectives.SCATTERED_SUMS),
    (_OF_CUDA, convolutions.CUDNN_CALLS),
    (_OF_CUDA, convolutions.CONVOLUTION_ADDITIONS),
    (_OF_CUDA, convolutions.CONVOLUTION_ACTIVATIONS),
    (_OF_CUDA, convolutions.without_unread_calls),
    (Writer.GPU, collectives.TURNED_FIRST),
    (_ALL, collectives.NARROW_GATHERS),
    (Writer.LIBRARY, collectives.HELD_BACK),
    (_ALL, dots.ROUNDED_OPERANDS),
    (_OF_CUDA, sorts.top_k(for_tpu=False)),
    (Writer.TPU, sorts.top_k(for_tpu=True)),
    (_OF_CUDA, sorts.LIBRARY_SORTS),
    (Writer.GPU, _SCATTERED_ONTO),
    (_ALL, expand.OPENED_WINDOWS),
    (Writer.GPU, dots.with_merged_dots),
    (Writer.LIBRARY, dots.with_held_weights_merged),
    (Writer.GPU, dots.PADDED_DOTS),
)
"""What is rewritten in each block before its values get layouts, and by whom."""


def turns_8_bits(device: Device | None) -> bool:
    """Return whether 8-bit products need summed dimensions fastest.

    Parts with products of 4 bits are Blackwell's, which take both orders.

    >>> from hespas.hardware.presets import load_device
    >>> [turns_8_bits(load_device(name)) for name in ("H100_80GB", "B200_180GB")]
    [True, False]
    """
    return device is None or not device.names(_OF_BLACKWELL)


def fused(
    program: Program,
    options: CompileOptions = DEFAULT_OPTIONS,
    *,
    writer: Writer = Writer.GPU,
    device: Device | None = None,
    capacity_bytes: int | None = None,
    compute_capability: float | None = None,
    devices_per_host: int | None = None,
    by_module: bool = False,
    shard_copies: ShardCopies | None = None,
    scales_tensors: bool = False,
) -> Program:
    """Return a program of kernels, as ``writer`` would make them.

    Libraries write those for ``device``, with ``by_module`` none for more than one module: PyTorch
    runs the functions that a framework calls one by one, forward and backward. Collectives among
    groups have FSDP's ``shard_copies``; with ``scales_tensors`` what is rounded to few
    bits is read for its largest number before. Collectives run by themselves where a device's
    memory, of ``capacity_bytes``, is short. A GPU's ``compute_capability`` says how its
    convolutions lie, and ``devices_per_host`` which of its collectives stay in a host.
    """
    if program.is_scheduled:
        return program
    main = with_calls_opened(program)
    body = Simplifier().block(main.body)
    if writer is Writer.TPU:
        body = each_block(body, with_narrow_carried)
    body = each_block(body, partial(_rewritten, writer=writer))
    is_of_libraries = writer is Writer.LIBRARY
    body = Assignment(
        copies=not is_of_libraries,
        turns_8_bits=is_of_libraries and turns_8_bits(device),
        compute_capability=compute_capability,
    ).block(body)
    if writer is Writer.GPU:
        body = with_layouts_before(body)
    main = Function(name=main.name, body=body)
    fuser = partial(
        _Fuser,
        options=options,
        writer=writer,
        by_module=by_module,
        shard_copies=shard_copies,
        scales_tensors=scales_tensors,
    )
    scheduled = _scheduled(program, main, fuser(overlaps=True))
    if writer is not Writer.GPU:
        return scheduled
    factor = options.slop_factor
    limit = exceeded_limit(scheduled, capacity_bytes, factor)
    if limit is not None and options.fills_memory and _fits(scheduled, capacity_bytes):
        limit = replace(limit, is_given_up=False)
        factor = limit.full_factor or factor
    if limit is not None and limit.is_given_up:
        return replace(_scheduled(program, main, fuser(overlaps=False)), overlap=limit)
    scheduled = with_early_zeros(
        scheduled, devices_per_host=devices_per_host, capacity_bytes=capacity_bytes, factor=factor
    )
    return replace(scheduled, overlap=limit)


def _fits(program: Program, capacity_bytes: int | None) -> bool:
    return capacity_bytes is not None and memory_use(program).peak_bytes <= capacity_bytes


def _rewritten(block: Block, writer: Writer) -> Block:
    patterns: list[Pattern] = []
    for writers, rule in RULES:
        if writer not in writers:
            continue
        if isinstance(rule, Pattern):
            patterns.append(rule)
        else:
            block = rule(with_patterns(block, patterns))
            patterns = []
    return with_patterns(block, patterns)


def _scheduled(program: Program, main: Function, fuser: _Fuser) -> Program:
    """Return a program with its main function's kernels in execution order."""
    body = each_block(main.body, fuser.block)
    if fuser.writer is Writer.LIBRARY:
        body = each_block(body, with_own_arrays)
    protected = kept_arguments(body, program.aliases)
    body = replace(body, operations=tuple(with_copies(body.operations, protected, fuser.names)))
    function = Function(name=main.name, body=body)
    is_of_libraries = fuser.writer is Writer.LIBRARY
    assumption = _TPU_ASSUMPTION if fuser.writer is Writer.TPU else _ASSUMPTION
    if is_of_libraries:
        assumption = MODULE_ASSUMPTION if fuser.by_module else LIBRARY_ASSUMPTION
    more = () if fuser.shard_copies is None else (fuser.shard_copies.assumption,)
    more += (SCALES_ASSUMPTION,) if fuser.scales_tensors else ()
    return replace(
        program,
        assumptions=(assumption, *more, *program.assumptions),
        functions={**program.functions, main.name: function},
        is_scheduled=True,
        is_modelled=True,
        is_of_libraries=is_of_libraries,
    )


@frozen
class _Fuser:
    options: CompileOptions
    writer: Writer
    overlaps: bool
    by_module: bool
    shard_copies: ShardCopies | None
    scales_tensors: bool
    names: Names = field(default_factory=Names)

    def block(self, block: Block) -> Block:
        """Return a block of kernels, those inside of it having been fused."""
        end = block.operations[-1]
        is_of_libraries = self.writer is Writer.LIBRARY
        ops = self._of_library(block) if is_of_libraries else self._of_compiler(block)
        if not is_of_libraries:  # theirs are buckets that gradients are written into
            ops = collectives.with_combined(ops, self.options, self.names)
        if self.writer is Writer.TPU:
            ops = with_operands_inside(ops, end.operands)
            ops = with_freed_first(ops, end.operands)
        ops = collectives.with_own_kernels(ops)
        if self.writer in _OF_CUDA:
            ops = starts.with_norms_late(ops, end.operands)
        if not self.overlaps:
            ops = starts.one_by_one(ops)
        if self.options.pipelined_collectives is not False:
            is_tpu = self.writer is Writer.TPU
            *ops, end = with_pipelined([*ops, end], self.names, fetches_ahead=is_tpu)
        if self.overlaps:
            ops = starts.with_starts_open(ops)
            ops = starts.with_gathered_late(ops, end.operands)
            ops = starts.with_operands_early(ops, end.operands)
            ops = starts.with_starts(ops, end.operands)
        else:
            ops = with_starts_at_ends(ops)
        if self.writer is Writer.GPU:
            ops = with_equal_together(ops, self.names)
        return Block(arguments=block.arguments, operations=(*ops, end))

    def _of_compiler(self, block: Block) -> list[Op]:
        grouping = grouped(block)
        outputs = block.operations[-1].operands
        nodes = nodes_of(grouping, outputs)
        ops = in_order(built(grouping, nodes, self.names), [node.rank for node in nodes])
        return with_equal_once(ops, outputs)

    def _of_library(self, block: Block) -> list[Op]:
        needed = block.operations[-1].operands
        grouping = grouped(block, by_module=self.by_module, fixed=puts_row)
        nodes = stretches_of(grouping, needed, by_module=self.by_module)
        ops = built(grouping, nodes, self.names, writer=LIBRARY_WRITER)
        ops = in_order(ops, [node.rank for node in nodes])
        ops = with_routing_together(ops, needed, self.names, writer=LIBRARY_WRITER)
        if self.scales_tensors:
            ops = [*with_scales(ops, self.names, writer=LIBRARY_WRITER)]
        if self.shard_copies is not None:
            ops = [*with_shards_copied(ops, self.shard_copies, self.names)]
        return ops
