"""Routing as libraries have it: a choice of experts in few kernels.

Frameworks that serve choose and weigh experts in one kernel, and sort the choices by expert in
another, each with one block of threads whose data are in shared memory. Sources: vLLM,
csrc/moe/topk_softmax_kernels.cu and csrc/moe/moe_align_sum_kernels.cu; TensorRT-LLM,
cpp/tensorrt_llm/kernels/cutlass_kernels/moe_gemm (fusedBuildExpertMapsSortFirstToken).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from hespas.lower.build import Names, fusion_around
from hespas.lower.roles import bytes_of
from hespas.program.attrs import FusionAttrs
from hespas.program.operations.traits import Category
from hespas.program.program import Op, Value, values_read
from hespas.program.rewrite import Renaming, copied_op
from hespas.program.types import NumberKind, TensorType
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
    kept_values = frozenset(needed)
    made: dict[int, Op] = {}
    gone = set[int]()
    for place, op in enumerate(operations):
        if not _chooses(op):
            continue
        choice = around.choosing(place)
        groups = {"indices": around.sorting(choice), "choice": choice}
        for name, group in groups.items():
            places = sorted(group - gone)
            if len(places) > 1:
                joined = _joined(places, around, kept_values, writer)
                made[places[-1]] = replace(joined, instruction=names.next(f"custom_{name}_fusion"))
                gone.update(places)
    kept = [at for at in range(len(operations)) if at in made or at not in gone]
    return list(in_order([made.get(at, operations[at]) for at in kept], kept))


class _Around:
    """Operations of a block, with each value's maker and readers, by place."""

    def __init__(self, operations: Sequence[Op]) -> None:
        self.operations = operations
        self.maker = {value: at for at, op in enumerate(operations) for value in op.results}
        self.readers: dict[Value, list[int]] = {}
        for at, op in enumerate(operations):
            for value in dict.fromkeys(values_read(op)):
                self.readers.setdefault(value, []).append(at)

    def sorting(self, choice: AbstractSet[int]) -> set[int]:
        """Return the kernels that make indices of what was chosen."""
        results = [value for at in choice for value in self.operations[at].results]
        behind = self._behind(filter(_is_index, results), max(choice), _indexes)
        return behind - choice

    def choosing(self, place: int) -> set[int]:
        """Return a choosing operation with the kernels around it that weigh or cut."""
        op = self.operations[place]
        members = {place}
        for value in op.operands:
            before = self.maker.get(value)
            if before is not None and self.readers[value] == [place]:
                maker = self.operations[before]
                if _weighs(maker) and maker.kind != "constant" and len(maker.results) == 1:
                    members.add(before)
        own = set(op.results)
        for at in {at for value in own for at in self.readers.get(value, ())}:
            reader = self.operations[at]
            if _is_alone(reader) and own.issuperset(values_read(reader)):
                members.add(at)
        weights = [value for value in own if not _is_index(value)]
        return members | self._behind(weights, place, _weighs)

    def _behind(
        self, values: Iterable[Value], place: int, belongs: Callable[[Op], bool]
    ) -> set[int]:
        """Return kernels that read values and wait for no other later one."""
        members, reached = set[int](), set(values)
        waiting = sorted({at for value in reached for at in self.readers.get(value, ())})
        while waiting:
            at = waiting.pop(0)
            op = self.operations[at]
            if at in members or not belongs(op):
                continue
            others = [value for value in values_read(op) if value not in reached]
            if any(self._is_behind(value, place) for value in others):
                continue
            members.add(at)
            reached.update(op.results)
            waiting = sorted({*waiting, *(r for v in op.results for r in self.readers.get(v, ()))})
        return members

    def _is_behind(self, value: Value, place: int) -> bool:
        """Return whether a value is made behind a place, of something."""
        at = self.maker.get(value, -1)
        return at > place and bool(values_read(self.operations[at]))


def _chooses(op: Op) -> bool:
    """Return whether an operation chooses experts: numbers and their places, the best first."""
    if op.kind not in _CHOOSING or not _is_alone(op):
        return False
    are_indices = [_is_index(value) for value in op.results]
    return any(are_indices) and not all(are_indices)


def _joined(places: Sequence[int], around: _Around, needed: AbstractSet[Value], writer: str) -> Op:
    """Return the kernel that operations are together."""
    members, own = [around.operations[at] for at in places], set(places)
    renaming: Renaming = {}
    inside = [inner for op in members for inner in _opened(op, renaming)]
    results = [
        value
        for op in members
        for value in op.results
        if value in needed or not own.issuperset(around.readers.get(value, ()))
    ]
    read = [renaming[value] for value in results]
    fusion = fusion_around(inside, read, members[-1], "", kind="kCustom", writer=writer)
    return replace(fusion, results=tuple(results))


def _opened(op: Op, renaming: Renaming) -> Sequence[Op]:
    """Return copies of an operation, or of a fusion's body, for a larger block."""
    if not isinstance(op.attrs, FusionAttrs):
        return (copied_op(op, renaming),)
    (block,) = op.regions
    *inner, end = block.operations
    for argument, operand in zip(block.arguments, op.operands, strict=True):
        renaming[argument] = renaming.get(operand, operand)
    copies = [copied_op(each, renaming) for each in inner]
    for made, result in zip(end.operands, op.results, strict=True):
        renaming[result] = renaming.get(made, made)
    return copies


def _is_alone(op: Op) -> bool:
    """Return whether an operation is a kernel of numbers that multiplies no matrices."""
    if op.traits.category is Category.ASYNCHRONOUS or gemms(op):
        return False
    if op.regions and not (isinstance(op.attrs, FusionAttrs) or op.kind == "sort"):
        return False
    return all(isinstance(value.type, TensorType) for value in (*values_read(op), *op.results))


def _weighs(op: Op) -> bool:
    """Return whether a kernel makes weights of experts, those of each token by themselves."""
    if not _is_alone(op) or op.kind == "sort" or any(map(_is_index, op.results)):
        return False
    return sum(map(bytes_of, op.results)) <= _SHARED_BYTES


def _indexes(op: Op) -> bool:
    """Return whether a kernel makes only indices from data that fit shared memory."""
    if not _is_alone(op) or not all(map(_is_index, op.results)):
        return False
    return sum(map(bytes_of, {*values_read(op), *op.results})) <= _SHARED_BYTES


def _is_index(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.element.kind in _INDICES
