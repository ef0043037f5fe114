"""Model libraries' kernels: routing, tensors' scales, FSDP's copies.

Frameworks that serve choose and weigh experts in one kernel, and sort the choices by expert in
another, each with one block of threads whose data are in shared memory. Sources: vLLM,
csrc/moe/topk_softmax_kernels.cu and csrc/moe/moe_align_sum_kernels.cu; TensorRT-LLM,
cpp/tensorrt_llm/kernels/cutlass_kernels/moe_gemm (fusedBuildExpertMapsSortFirstToken).

torchao's tensor-wise scaling, Transformer Engine's current scaling and NVFP4 divide a tensor by a
scale that follows from its largest absolute number. So what makes the tensor writes it, and another
kernel reads and rounds it; a tensor that is in memory already is read once more before. MXFP8 has
a scale for each 32 numbers, which its kernel finds as it rounds. Sources: pytorch/ao,
torchao/float8/float8_scaling_utils.py, ``hp_tensor_to_float8_dynamic``; NVIDIA/TransformerEngine,
``Float8CurrentScaling`` and ``NVFP4BlockScaling``.

FSDP2 gathers a layer's weights into one flat buffer, and copies them out of it, each into an array
of its own; it copies gradients into another, which is scattered. Gradients are summed in f32 where
weights are smaller. Source: pytorch/pytorch, torch/distributed/fsdp/_fully_shard/
_fsdp_collectives.py, ``foreach_all_gather_copy_out`` and ``foreach_reduce``; torchtitan,
``mixed_precision_reduce``, float32 by default. FSDP1's weights are views of the gathered buffer,
whose gradients autograd puts together; they are divided before they are scattered. Source:
torch/distributed/fsdp/_flat_param.py and _runtime_utils.py, ``_div_if_needed``. DTensor's copies:
torch/distributed/_functional_collectives.py, ``all_gather_tensor``, ``reduce_scatter_tensor``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.lower.build import Names, fusion_around
from hespas.lower.collectives import like
from hespas.lower.roles import bytes_of
from hespas.program.attrs import CollectiveAttrs, FusionAttrs
from hespas.program.operations.traits import Category
from hespas.program.program import Block, Op, Value, needed_for, tensor_of, values_read
from hespas.program.rewrite import Builder, Renaming, copied_op, plain_op
from hespas.program.types import FLOATS_OF_8_BITS, NumberKind, TensorType, element_type
from hespas.program.uses import in_order
from hespas.work.gemm import gemms

_SHARED_BYTES = 48 * 1024
"""Of all that a kernel reads and writes: the shared memory that a block has without asking."""

_CHOOSING = ("topk", "sort")
_INDICES = (NumberKind.INTEGER, NumberKind.BOOLEAN)


def with_routing_together(
    operations: Sequence[Op], needed: Iterable[Value], names: Names, *, writer: str
) -> list[Op]:
    """Return kernels of which one chooses experts, and one sorts the choices.

    ``needed`` are the values that the block returns.
    """
    around = _Around(operations)
    returned = frozenset(needed)
    kernels: dict[int, Op] = {}
    gone = set[int]()
    for place, op in enumerate(operations):
        if not _chooses(op):
            continue
        choice = around.choosing(place)
        groups = {"indices": around.sorting(choice), "choice": choice}
        for name, group in groups.items():
            places = sorted(group - gone)
            if len(places) > 1:
                fusion_name = names.next(f"custom_{name}_fusion")
                kernels[places[-1]] = _joined(places, around, returned, fusion_name, writer)
                gone.update(places)
    ranks = [place for place in range(len(operations)) if place in kernels or place not in gone]
    return in_order([kernels.get(place, operations[place]) for place in ranks], ranks)


class _Around:
    """Operations of a block, with each value's maker and readers, by place."""

    def __init__(self, operations: Sequence[Op]) -> None:
        self.operations = operations
        self.maker = {value: place for place, op in enumerate(operations) for value in op.results}
        self.readers: dict[Value, list[int]] = {}
        for place, op in enumerate(operations):
            for value in dict.fromkeys(values_read(op)):
                self.readers.setdefault(value, []).append(place)

    def sorting(self, choice: AbstractSet[int]) -> set[int]:
        """Return the kernels that make indices of what was chosen."""
        results = [value for place in choice for value in self.operations[place].results]
        behind = self._behind(filter(_is_index, results), max(choice), _indexes)
        return behind - choice

    def choosing(self, place: int) -> set[int]:
        """Return a choosing operation and the kernels beside it."""
        op = self.operations[place]
        members = {place}
        for value in op.operands:
            before = self.maker.get(value)
            if before is not None and self.readers[value] == [place]:
                maker = self.operations[before]
                if _weighs(maker) and maker.kind != "constant" and len(maker.results) == 1:
                    members.add(before)
        own = set(op.results)
        for user in {user for value in own for user in self.readers.get(value, ())}:
            reader = self.operations[user]
            if _is_alone(reader) and own.issuperset(values_read(reader)):
                members.add(user)
        weights = [value for value in own if not _is_index(value)]
        return members | self._behind(weights, place, _weighs)

    def _behind(
        self, values: Iterable[Value], place: int, belongs: Callable[[Op], bool]
    ) -> set[int]:
        """Return kernels that read values and wait for no other later one."""
        members, reached = set[int](), set(values)
        waiting = sorted({reader for value in reached for reader in self.readers.get(value, ())})
        while waiting:
            reader = waiting.pop(0)
            op = self.operations[reader]
            if reader in members or not belongs(op):
                continue
            unread = [value for value in values_read(op) if value not in reached]
            if any(self._is_behind(value, place) for value in unread):
                continue
            members.add(reader)
            reached.update(op.results)
            waiting = sorted({*waiting, *(r for v in op.results for r in self.readers.get(v, ()))})
        return members

    def _is_behind(self, value: Value, place: int) -> bool:
        """Return whether a value is made behind a place, of something."""
        maker = self.maker.get(value, -1)
        return maker > place and bool(values_read(self.operations[maker]))


def _chooses(op: Op) -> bool:
    """Return whether an operation chooses experts."""
    if op.kind not in _CHOOSING or not _is_alone(op):
        return False
    are_indices = [_is_index(value) for value in op.results]
    return any(are_indices) and not all(are_indices)


def _joined(
    places: Sequence[int], around: _Around, returned: AbstractSet[Value], name: str, writer: str
) -> Op:
    """Return the kernel that operations are together."""
    members, own = [around.operations[place] for place in places], set(places)
    renaming: Renaming = {}
    inside = [inner for op in members for inner in _opened(op, renaming)]
    results = [
        value
        for op in members
        for value in op.results
        if value in returned or not own.issuperset(around.readers.get(value, ()))
    ]
    read = [renaming[value] for value in results]
    fusion = fusion_around(inside, read, members[-1], name, kind="kCustom", writer=writer)
    return replace(fusion, results=tuple(results))


def _opened(op: Op, renaming: Renaming) -> Sequence[Op]:
    """Copy an operation, or a fusion's body, into a larger block."""
    if not isinstance(op.attrs, FusionAttrs):
        return (copied_op(op, renaming),)
    (block,) = op.regions
    *inner, end = block.operations
    for argument, operand in zip(block.arguments, op.operands, strict=True):
        renaming[argument] = renaming.get(operand, operand)
    copies = [copied_op(inner_op, renaming) for inner_op in inner]
    for value, result in zip(end.operands, op.results, strict=True):
        renaming[result] = renaming.get(value, value)
    return copies


def _is_alone(op: Op) -> bool:
    """Return whether an operation is a kernel without products."""
    if op.traits.category is Category.ASYNCHRONOUS or gemms(op):
        return False
    if op.regions and not (isinstance(op.attrs, FusionAttrs) or op.kind == "sort"):
        return False
    return all(isinstance(value.type, TensorType) for value in (*values_read(op), *op.results))


def _weighs(op: Op) -> bool:
    """Return whether a kernel computes each token's expert weights."""
    if not _is_alone(op) or op.kind == "sort" or any(map(_is_index, op.results)):
        return False
    return sum(map(bytes_of, op.results)) <= _SHARED_BYTES


def _indexes(op: Op) -> bool:
    """Return whether a small kernel makes only indices."""
    if not _is_alone(op) or not all(map(_is_index, op.results)):
        return False
    return sum(map(bytes_of, {*values_read(op), *op.results})) <= _SHARED_BYTES


def _is_index(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.element.kind in _INDICES


SCALES_ASSUMPTION = (
    "tensors are rounded to few bits by a scale of the whole: a pass over memory finds their "
    "largest number before"
)
_SMALL = frozenset({*FLOATS_OF_8_BITS, "f4E2M1FN"})
_ROUNDING = frozenset({"convert", "copy", "divide", "maximum", "minimum", "reshape", "transpose"})
_CASTING = frozenset({"convert", "copy", "reduce_precision", "reshape", "transpose"})
_FEWEST = 1 << 16
"""Elements below which a tensor's rounding is not worth a look."""


def with_scales(operations: Sequence[Op], names: Names, *, writer: str) -> Iterator[Op]:
    """Divide kernels that round a tensor by the tensor's scale."""
    for op in operations:
        yield from _scaled(op, names, writer) if _may_round(op) else (op,)


def _may_round(op: Op) -> bool:
    return (
        isinstance(op.attrs, FusionAttrs)
        and not op.attrs.in_place
        and any(map(_is_small, op.results))
    )


def _is_small(value: Value) -> bool:
    kind = value.type
    if not isinstance(kind, TensorType):
        return False
    return kind.element.name in _SMALL and kind.element_count >= _FEWEST


def _scaled(op: Op, names: Names, writer: str) -> Iterator[Op]:
    (block,) = op.regions
    maker = {value: inner for inner in block.operations for value in inner.results}
    outside = dict(zip(block.arguments, op.operands, strict=True))
    places: dict[Value, list[int]] = {}
    for place, value in enumerate(block.operations[-1].operands):
        source = _behind(value, maker, _ROUNDING)
        if _is_small(value) and tensor_of(source).element.name not in _SMALL:
            places.setdefault(source, []).append(place)
    written: list[Value] = []
    for source in places:
        read = outside.get(_behind(source, maker, _CASTING))
        if read is None:
            written.append(source)
        else:
            yield _largest(op, read, names, writer)
    if not written:
        yield op
        return
    yield from _apart(op, {source: places[source] for source in written}, names, writer)


def _behind(value: Value, maker: Mapping[Value, Op], kinds: AbstractSet[str]) -> Value:
    """Follow first operands back through some kinds of operations."""
    op = maker.get(value)
    while op is not None and op.kind in kinds:
        large = [operand for operand in op.operands if isinstance(operand.type, TensorType)]
        value = next((operand for operand in large if not _is_spread(operand, maker)), large[0])
        op = maker.get(value)
    return value


def _is_spread(value: Value, maker: Mapping[Value, Op]) -> bool:
    op = maker.get(value)
    return op is not None and op.kind in {"broadcast_in_dim", "constant"}


def _largest(op: Op, value: Value, names: Names, writer: str) -> Op:
    """Return the kernel that reads a tensor for its largest number."""
    build = Builder(op)
    largest = build.largest(value)
    name = names.next("largest_fusion")
    return fusion_around(build.operations, [largest], op, name, kind="kInput", writer=writer)


def _apart(
    op: Op, places: Mapping[Value, Sequence[int]], names: Names, writer: str
) -> Iterator[Op]:
    """Yield a kernel that writes 16 bits, and those that round."""
    (block,) = op.regions
    *inner, end = block.operations
    moved = {place for rounded in places.values() for place in rounded}
    wide, narrow = dict[Value, Value](), list[Op]()
    for source in places:
        kind = tensor_of(source)
        half = Value(type=replace(kind, element=element_type("bf16")))
        narrow.append(plain_op(op, "convert", (source,), half))
        wide[source] = Value(type=half.type)
    unmoved = [place for place in range(len(op.results)) if place not in moved]
    operands = (*[end.operands[place] for place in unmoved], *[op.results[0] for op in narrow])
    last = replace(end, operands=operands)
    body = Block(
        arguments=block.arguments,
        operations=(*needed_for((*inner, *narrow), operands), last),
    )
    results = (*[op.results[place] for place in unmoved], *wide.values())
    yield replace(op, results=results, regions=(body,))
    for source, own in places.items():
        values = [end.operands[place] for place in own]
        rounding = needed_for(inner, values, start=source)
        again = plain_op(op, "convert", (wide[source],), source)
        fusion = fusion_around(
            [again, *rounding], values, op, names.next("rounding_fusion"), writer=writer
        )
        yield replace(fusion, results=tuple([op.results[place] for place in own]))


Groups = frozenset[frozenset[int]]


@frozen
class ShardCopies:
    """What FSDP copies around collectives among ``groups``, of devices that divide weights.

    It follows from the ``version`` of PyTorch's FSDP. With version 2 goes DTensor, whose other
    collectives gather and scatter along the first dimension: data that lie along another are copied
    behind an all-gather, and before a reduce-scatter.
    """

    groups: Groups
    version: Literal[1, 2]

    @property
    def assumption(self) -> str:
        """What a result says about it."""
        if self.version == 1:
            return (
                "FSDP1 puts gradients together in one buffer, and divides them there for their sum"
            )
        return (
            "FSDP2 copies gathered weights out of one buffer, and gradients into another, in which "
            "they are summed in f32; rows that DTensor gathers or scatters along the sequence are "
            "copied"
        )


def with_shards_copied(operations: Sequence[Op], copies: ShardCopies, names: Names) -> Iterator[Op]:
    """Yield operations with FSDP's and DTensor's copies around collectives."""
    of_weights = _around_version_1 if copies.version == 1 else _around_version_2
    for op in operations:
        if not isinstance(op.attrs, CollectiveAttrs):
            yield op
        elif frozenset(map(frozenset, op.attrs.groups.listed())) == copies.groups:
            yield from of_weights(op, names)
        elif copies.version != 1 and op.attrs.dimension:
            yield from _along_first_dimension(op, names)
        else:
            yield op


def _along_first_dimension(op: Op, names: Names) -> Iterator[Op]:
    match op.kind:
        case "all_gather":
            buffers = tuple([Value(type=value.type) for value in op.results])
            yield replace(op, results=buffers)
            yield from _copies(op, buffers, op.results, names)
        case "reduce_scatter":
            buffers = tuple([Value(type=value.type) for value in op.operands])
            yield from _copies(op, op.operands, buffers, names)
            yield replace(op, operands=buffers)
        case _:
            yield op


def _around_version_1(op: Op, names: Names) -> Iterator[Op]:
    if op.kind != "reduce_scatter":
        yield op
        return
    together, divided = ([Value(type=each.type) for each in op.operands] for _ in range(2))
    for before, buffer, after in zip(op.operands, together, divided, strict=True):
        yield from _copies(op, (before, buffer), (buffer, after), names)
    yield replace(op, operands=tuple(divided))


def _around_version_2(op: Op, names: Names) -> Iterator[Op]:
    if op.kind == "reduce_scatter":
        buffers, sums = (
            tuple([like(value, element_type("f32")) for value in values])
            for values in (op.operands, op.results)
        )
        yield from _copies(op, op.operands, buffers, names)
        yield replace(op, operands=buffers, results=sums)
        yield from _copies(op, sums, op.results, names)
    else:
        yield from _along_first_dimension(op, names)


def _copies(
    origin: Op, values: Sequence[Value], results: Sequence[Value], names: Names
) -> Iterator[Op]:
    """Yield the kernels that copy values into the types of results."""
    for value, result in zip(values, results, strict=True):
        kind = "copy" if value.type == result.type else "convert"
        copied = plain_op(origin, kind, (value,), result)
        yield fusion_around([copied], [result], origin, names.next(f"fsdp_{kind}"))
