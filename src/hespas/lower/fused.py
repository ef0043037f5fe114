"""Model what a GPU's compiler makes of a program, where none is there to do it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from hespas.compile.options import DEFAULT_OPTIONS, CompileOptions
from hespas.lower.assign import Assignment
from hespas.lower.before_loops import with_freed_first
from hespas.lower.blocks import each_block
from hespas.lower.build import Names, built
from hespas.lower.collectives import one_by_one, with_combined, with_starts
from hespas.lower.convolution_epilogues import with_epilogues
from hespas.lower.copies import kept_arguments, with_copies
from hespas.lower.cudnn import with_cudnn_calls
from hespas.lower.dot_operands import with_operands_inside
from hespas.lower.dots import with_merged_dots, with_rounded_operands
from hespas.lower.early_zeros import with_early_zeros
from hespas.lower.equal_kernels import with_equal_together
from hespas.lower.group import grouped
from hespas.lower.libraries import ASSUMPTION, WRITER, Libraries
from hespas.lower.loop_layouts import with_layouts_before
from hespas.lower.merge import nodes_of, stretches_of
from hespas.lower.narrow_carried import with_narrow_carried
from hespas.lower.narrowing import with_narrow_gathers
from hespas.lower.order import in_order
from hespas.lower.own_kernels import with_own_kernels
from hespas.lower.padded_dots import with_padded_dots
from hespas.lower.pipelined import with_pipelined, with_starts_at_ends
from hespas.lower.reductions import before_reshapes
from hespas.lower.scans import with_scans_opened
from hespas.lower.short_memory import exceeded_limit
from hespas.lower.simplify import Simplifier, live, with_sums_joined, without_scatters
from hespas.lower.sorts import with_library_sorts
from hespas.lower.summed_gradients import with_norms_late, with_turned_first
from hespas.lower.top_k import with_top_k
from hespas.lower.vector_dots import with_vector_dots_opened
from hespas.lower.windows import with_windows_opened
from hespas.memory.usage import memory_use
from hespas.program.program import Block, Function, Program
from hespas.program.rewrite import with_calls_opened

_ASSUMPTION = (
    "kernels are those that a model of XLA's fusion for GPUs makes of the program, not a compiler's"
)


def fused(
    program: Program,
    options: CompileOptions = DEFAULT_OPTIONS,
    *,
    libraries: Libraries | None = None,
    for_tpu: bool = False,
    capacity_bytes: int | None = None,
    compute_capability: float | None = None,
    devices_per_host: int | None = None,
) -> Program:
    """Return a program whose operations are kernels, as XLA's GPU pipeline would make them.

    With ``libraries`` they are those of `hespas.lower.libraries`. ``for_tpu`` does what libtpu does
    otherwise: it fetches from the host a turn of a loop ahead, makes operands inside of products,
    and holds nothing large through a loop that it need not hold. Collectives run by themselves
    where a device's memory, of ``capacity_bytes``, is short for what runs beside them. A GPU's
    ``compute_capability`` says how its convolutions lie, and ``devices_per_host`` which of its
    collectives stay in a host.
    """
    if program.is_scheduled:
        return program
    main = with_calls_opened(program)
    body = Simplifier().block(main.body)
    if for_tpu:
        body = each_block(body, with_narrow_carried)
    of_gpus = libraries is None and not for_tpu
    body = each_block(body, partial(_before_layouts, for_tpu=for_tpu, of_gpus=of_gpus))
    body = Assignment(libraries=libraries, compute_capability=compute_capability).block(body)
    if of_gpus:
        body = with_layouts_before(body)
    main = Function(name=main.name, body=body)
    fuser = partial(_Fuser, options=options, libraries=libraries, for_tpu=for_tpu)
    made = _scheduled(program, main, fuser(overlaps=True))
    if not of_gpus:
        return made
    factor = options.slop_factor
    limit = exceeded_limit(made, capacity_bytes, factor)
    if limit is not None and options.fills_memory and _fits(made, capacity_bytes):
        limit = replace(limit, is_given_up=False)
        factor = limit.full_factor or factor
    if limit is not None and limit.is_given_up:
        return replace(_scheduled(program, main, fuser(overlaps=False)), overlap=limit)
    made = with_early_zeros(
        made, devices_per_host=devices_per_host, capacity_bytes=capacity_bytes, factor=factor
    )
    return replace(made, overlap=limit)


def _fits(program: Program, capacity_bytes: int | None) -> bool:
    return capacity_bytes is not None and memory_use(program).peak_bytes <= capacity_bytes


def _scheduled(program: Program, main: Function, fuser: _Fuser) -> Program:
    """Return a program with the kernels of its main function in the order in which they run."""
    body = each_block(main.body, fuser.block)
    kept = kept_arguments(body, program.aliases)
    body = replace(body, operations=tuple(with_copies(body.operations, kept, fuser.names)))
    function = Function(name=main.name, body=body)
    return replace(
        program,
        assumptions=(_ASSUMPTION if fuser.libraries is None else ASSUMPTION, *program.assumptions),
        functions={**program.functions, main.name: function},
        is_scheduled=True,
        is_modelled=True,
        is_of_libraries=fuser.libraries is not None,
    )


def _before_layouts(block: Block, *, for_tpu: bool, of_gpus: bool) -> Block:
    end = block.operations[-1]
    given = block.operations[:-1]
    opened = with_vector_dots_opened(given) if of_gpus else given
    operations = [*before_reshapes(with_scans_opened(opened))]
    operations = with_sums_joined([*live(operations, end.operands)], end.operands)
    operations = without_scatters(operations, end.operands)
    if not for_tpu:
        operations = with_cudnn_calls(operations, end.operands)
        operations = with_epilogues(operations, end.operands)
    if of_gpus:
        operations = with_turned_first(operations, end.operands)
    operations = with_narrow_gathers(operations, end.operands)
    operations = [*with_rounded_operands(operations)]
    ordered = with_top_k(operations, end.operands, for_tpu=for_tpu)
    if not for_tpu:
        ordered = with_library_sorts(ordered)
    operations = with_merged_dots(with_windows_opened(ordered))
    if of_gpus:
        operations = with_padded_dots(operations, end.operands)
    return Block(arguments=block.arguments, operations=(*operations, end))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fuser:
    options: CompileOptions
    libraries: Libraries | None
    for_tpu: bool
    overlaps: bool
    names: Names = field(default_factory=Names)

    @property
    def of_gpus(self) -> bool:
        """Whether kernels are those that XLA writes for GPUs."""
        return self.libraries is None and not self.for_tpu

    def block(self, block: Block) -> Block:
        """Return a block of kernels, those inside of it having been fused."""
        end = block.operations[-1]
        grouping = grouped(block)
        if self.libraries is None:
            nodes, writer = nodes_of(grouping), ""
        else:
            nodes, writer = stretches_of(grouping, end.operands), WRITER
        ops = built(grouping, nodes, self.names, writer=writer)
        ops = in_order(ops, [node.rank for node in nodes])
        if self.libraries is None:  # theirs are buckets that gradients are written into
            ops = with_combined(ops, self.options, self.names)
        if self.for_tpu:
            ops = with_operands_inside(ops, end.operands)
            ops = with_freed_first(ops, end.operands)
        ops = with_own_kernels(ops)
        if self.of_gpus:
            ops = with_norms_late(ops, end.operands)
        ops = with_starts(ops, end.operands) if self.overlaps else one_by_one(ops)
        if self.options.pipelined_collectives is not False:
            *ops, end = with_pipelined([*ops, end], self.names, fetches_ahead=self.for_tpu)
        if not self.overlaps:
            ops = with_starts_at_ends(ops)
        if self.of_gpus:
            ops = with_equal_together(ops, self.names)
        return Block(arguments=block.arguments, operations=(*ops, end))
