"""Run a kernel's body on all grid steps at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NoReturn
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from hespas.base.figures import MOST_KERNEL_STEPS
from hespas.errors import CostError, option
from hespas.program.kernels import KernelBlock, KernelOp, KernelType, MosaicKernel, kernel_ops
from hespas.work.mosaic.scalars import (
    Scalar,
    computed,
    constant,
    counting,
    number,
    opaque,
    same,
    unchanged,
)
from hespas.work.mosaic.tally import OPERATIONS, Tally, element_bits, product_of, uses

Weights = NDArray[np.float64]

_PRODUCTS = frozenset({"tpu.matmul", "vector.contract"})
_DIVISIONS = frozenset({"arith.divf", "arith.divsi", "arith.divui"})
_BRANCHES = frozenset({"scf.if"})
_INLINED = frozenset({"scf.execute_region", "tpu.region", "tpu.trace"})
_ENDS = frozenset({"func.return", "scf.yield", "scf.condition", "tpu.yield"})
_NOTHING = frozenset(OPERATIONS["no_vectors"])
_IN_MEMORY = frozenset({"any", "hbm"})
_MOST_UNROLLED = 100_000
"""The most operations of a loop to run one by one, if its iterations carry numbers."""


@dataclass(slots=True, kw_only=True)
class Walk:
    """One run of a kernel.

    ``tables`` are the scalars that the program holds as constants, and ``array_bytes`` the sizes of
    the arrays in memory, both by the kernel's argument. ``notes`` collects assumptions. ``copied``
    has the types that broadcasts copy from: one reciprocal serves all copies of a divisor.
    ``guesses_loops`` says that the length of a loop was assumed.
    """

    kernel: MosaicKernel
    grid: tuple[int, ...]
    tables: Mapping[int, NDArray[np.int64]]
    array_bytes: Mapping[int, int]
    notes: dict[str, None] = field(default_factory=dict[str, None])
    values: dict[int, Scalar] = field(default_factory=dict[int, Scalar])
    roots: dict[int, int] = field(default_factory=dict[int, int])
    copied: dict[int, KernelType] = field(default_factory=dict[int, KernelType])
    lengths: list[int] = field(default_factory=list[int])
    dead: set[int] = field(default_factory=set[int])
    depth: int = 0
    guesses_loops: bool = False
    waits: bool = False

    def __post_init__(self) -> None:
        grid = self.grid or (1,)
        body = self.kernel.body
        rank = len(grid) + _depth(body)
        self.lengths = [*grid, *(1,) * (rank - len(grid))]
        self.depth = len(grid)
        self._check_size()
        self.dead = _dead(body)
        self.waits = any(op.name == "tpu.wait_dma2" for op in kernel_ops(body))
        self.bind_grid(body)

    @property
    def rank(self) -> int:
        """The axes of all numbers: grid dimensions, then nested loops."""
        return len(self.lengths)

    def bind_grid(self, block: KernelBlock) -> None:
        """Bind a block's first arguments: grid position and tables."""
        for axis, argument in enumerate(block.arguments[: len(self.grid)]):
            self.values[argument] = Scalar(counting(self.grid[axis], axis, self.rank))
        tables = block.arguments[len(self.grid) :]
        entry = self.kernel.body.arguments[len(self.grid) :]
        self.roots.update(zip(tables, entry, strict=False))

    def total(self) -> Tally:
        """Return the tally of all steps.

        Raises `CostError` for an unknown operation.
        """
        tally = Tally()
        self._block(self.kernel.body, np.ones((1,) * self.rank), tally)
        return tally

    def returned(self, block: KernelBlock) -> tuple[Scalar, ...]:
        """Evaluate a side-effect-free function of the grid position."""
        self.bind_grid(block)
        return self._block(block, np.ones((1,) * self.rank), Tally())

    def _check_size(self) -> None:
        if prod(self.lengths) > MOST_KERNEL_STEPS:
            raise CostError(
                f"kernel {self.kernel.name} has {prod(self.lengths)} steps, and at most "
                f"{MOST_KERNEL_STEPS} are counted",
                hint=_HINT,
            )

    def _block(self, block: KernelBlock, weights: Weights, tally: Tally) -> tuple[Scalar, ...]:
        for op in block.operations:
            if op.name in _ENDS:
                return tuple(map(self._value, op.operands))
            self._op(op, weights, tally)
        return ()

    def _op(self, op: KernelOp, weights: Weights, tally: Tally) -> None:
        if op.results and op.results[0] in self.dead:
            return
        name = op.name
        if name in _BRANCHES:
            self._branch(op, weights, tally)
        elif name == "scf.for":
            self._loop(op, weights, tally)
        elif name == "scf.while":
            self._loop_of_unknown_length(op, weights, tally)
        elif name in _INLINED:
            self._define(op, self._block(op.regions[0], weights, tally))
        elif name in _PRODUCTS:
            left, right = (self._type(value) for value in op.operands[:2])
            tally.products[product_of(op, left, right)] += self._times(weights)
        elif self._is_on_vectors(op):
            self._vector(op, weights, tally)
        else:
            self._scalar(op)
            self._copy(op, weights, tally)

    def _type(self, value: int) -> KernelType:
        return self.kernel.types[value]

    def _is_on_vectors(self, op: KernelOp) -> bool:
        return any(self._type(value).is_vector for value in (*op.results, *op.operands))

    def _vector(self, op: KernelOp, weights: Weights, tally: Tally) -> None:
        operands = [self.copied.get(value, self._type(value)) for value in op.operands]
        if op.name == "vector.broadcast":
            self.copied[op.results[0]] = operands[0]
        elif op.name not in _DIVISIONS:
            operands = [self._type(value) for value in op.operands]
        units = uses(op.name, operands, [self._type(value) for value in op.results])
        if units is None:
            self._raise_no_model(op)
        times = self._times(weights)
        for use in units:
            tally.vectors[use] += times
        for result in op.results:
            if not self._type(result).is_vector:
                self.values[result] = self._opaque(op)

    def _raise_no_model(self, op: KernelOp) -> NoReturn:
        where = f" at {op.place}" if op.place else ""
        raise CostError(
            f"kernel {self.kernel.name} has an operation without a model, {op.name}{where}",
            hint=_HINT,
        )

    def _value(self, value: int) -> Scalar:
        scalar = self.values.get(value)
        return opaque(value, self.rank) if scalar is None else scalar

    def _opaque(self, op: KernelOp, arguments: Sequence[Scalar] = ()) -> Scalar:
        """Mark a function of its arguments, equal for equal arguments."""
        return opaque(crc32(op.name.encode()), self.rank, arguments)

    def _define(self, op: KernelOp, values: Sequence[Scalar]) -> None:
        self.values.update(zip(op.results, values, strict=False))

    def _scalar(self, op: KernelOp) -> None:
        """Compute a number, or trace a reference to its argument."""
        if op.operands and op.operands[0] in self.roots:
            for result in op.results:
                self.roots[result] = self.roots[op.operands[0]]
        if op.name == "arith.constant":
            self.values[op.results[0]] = constant(op.attributes["value"], self.rank)
            return
        if op.name == "memref.load":
            self.values[op.results[0]] = self._loaded(op)
            return
        operands = [self._value(value) for value in op.operands]
        is_known = bool(operands) and all(operand.is_known for operand in operands)
        outcome = computed(op.name, op.attributes, operands) if is_known else None
        if outcome is None and not is_known:
            outcome = unchanged(op.name, operands)
        if outcome is None and not _is_known(op.name):
            self._raise_no_model(op)
        for result in op.results:
            self.values[result] = self._opaque(op, operands) if outcome is None else outcome

    def _loaded(self, op: KernelOp) -> Scalar:
        """Read a known table, or return a mark."""
        table, *index_values = op.operands
        root = self.roots.get(table, table)
        indices = [self._value(value) for value in index_values]
        table_numbers = self.tables.get(root)
        shape = self._type(table).shape
        if (
            table_numbers is None
            or not all(index.is_known for index in indices)
            or table_numbers.size != prod(shape)
        ):
            return opaque(root, self.rank, indices)
        if not indices:
            return number(int(table_numbers.reshape(-1)[0]), self.rank)
        clamped_indices = tuple(
            np.clip(index.numbers, 0, length - 1)
            for index, length in zip(indices, shape, strict=True)
        )
        return Scalar(table_numbers.reshape(shape)[clamped_indices])

    def _copy(self, op: KernelOp, weights: Weights, tally: Tally) -> None:
        """Count a copy to or from memory, at its wait."""
        if op.name == "tpu.enqueue_indirect_dma":
            self._raise_no_model(op)
        if op.name != ("tpu.wait_dma2" if self.waits else "tpu.enqueue_dma"):
            return
        references = [
            value
            for value in op.operands
            if self._type(value).space and self._type(value).space != "semaphore_mem"
        ]
        source, target = references[:2]
        kind = self._type(source)
        size_bytes = prod(kind.shape) * element_bits(kind) / 8 * self._times(weights)
        if self._type(source).space in _IN_MEMORY:
            tally.read[self.roots.get(source, source)] += size_bytes
        if self._type(target).space in _IN_MEMORY:
            tally.written[self.roots.get(target, target)] += size_bytes

    def _times(self, weights: Weights) -> float:
        lengths = self.lengths[: self.depth]
        repeats = prod(
            length
            for length, weight_length in zip(lengths, weights.shape, strict=False)
            if weight_length == 1
        )
        return float(weights.sum()) * repeats

    def _branch(self, op: KernelOp, weights: Weights, tally: Tally) -> None:
        condition = self._value(op.operands[0])
        then_region, *else_regions = op.regions
        if condition.is_known:
            holds = condition.numbers != 0
            then_values = self._block(then_region, weights * holds, tally)
            else_values = (
                self._block(else_regions[0], weights * ~holds, tally) if else_regions else ()
            )
            for result, yes, no in zip(op.results, then_values, else_values, strict=False):
                self.values[result] = Scalar(
                    np.where(holds, yes.numbers, no.numbers), yes.is_known and no.is_known
                )
            return
        tallies: list[Tally] = []
        for region in op.regions:
            tallies.append(Tally())
            self._block(region, weights, tallies[-1])
        heaviest = max(tallies, key=lambda branch: branch.size)
        if any(heaviest.size):
            self.notes[
                f"kernel {self.kernel.name}: conditions that depend on data are taken to hold"
            ] = None
        tally.add(heaviest)
        for result in op.results:
            self.values[result] = self._opaque(op, [condition])

    def _loop(self, op: KernelOp, weights: Weights, tally: Tally) -> None:
        lower, upper, step, *initial = map(self._value, op.operands)
        if same(lower, upper):
            self._define(op, initial)
            return
        if not (lower.is_known and upper.is_known and step.is_known):
            self._loop_of_unknown_length(op, weights, tally)
            return
        stride = np.maximum(step.numbers, 1)
        rounds = np.maximum(-(-(upper.numbers - lower.numbers) // stride), 0)
        longest = int(rounds.max())
        (body,) = op.regions
        carried = any(not self._type(value).is_vector for value in op.results)
        operations = longest * sum(1 for _ in kernel_ops(body))
        if carried and rounds.min() == longest and operations <= _MOST_UNROLLED:
            values: Sequence[Scalar] = initial
            for iteration in range(longest):
                self.values[body.arguments[0]] = Scalar(lower.numbers + iteration * stride)
                self.values.update(zip(body.arguments[1:], values, strict=True))
                values = self._block(body, weights, tally)
            self._define(op, values)
            return
        axis = self._enter(longest)
        iteration = counting(max(longest, 1), axis, self.rank)
        self.values[body.arguments[0]] = Scalar(lower.numbers + iteration * stride)
        self._forget(body.arguments[1:])
        self._block(body, weights * (iteration < rounds), tally)
        self._leave(axis)
        self._define(op, [self._opaque(op)] * len(op.results))

    def _forget(self, arguments: Sequence[int]) -> None:
        for argument in arguments:
            self.values[argument] = opaque(argument, self.rank)

    def _enter(self, length: int) -> int:
        axis = self.depth
        self.lengths[axis] = max(length, 1)
        self.depth += 1
        self._check_size()
        return axis

    def _leave(self, axis: int) -> None:
        self.lengths[axis] = 1
        self.depth -= 1

    def _loop_of_unknown_length(self, op: KernelOp, weights: Weights, tally: Tally) -> None:
        """Count a loop of data-dependent length.

        Its copies are assumed to read an array in memory once.
        """
        axis = self._enter(1)
        body = Tally()
        for region in op.regions:
            self._forget(region.arguments)
            self._block(region, weights, body)
        self._leave(axis)
        self._define(op, [self._opaque(op)] * len(op.results))
        if not any(body.size):
            return
        rounds = [
            self.array_bytes[root] / bytes_moved
            for root, bytes_moved in (*body.read.items(), *body.written.items())
            if root in self.array_bytes and bytes_moved
        ]
        if not rounds:
            where = f" at {op.place}" if op.place else ""
            raise CostError(
                f"how often a loop of kernel {self.kernel.name}{where} runs depends on data",
                hint=_HINT,
            )
        self.guesses_loops = True
        self.notes[
            f"kernel {self.kernel.name}: loops whose length depends on data are taken to run until "
            "their copies have read each array once"
        ] = None
        tally.add(body, max(rounds))


_HINT = f"give {option('custom_call')} tpu_custom_call=flops:N,type:T,bytes:N"
_NUMBERS = frozenset({"vector.extract", "tpu.assume_multiple", "tpu.core_id", "tpu.subcore_id"})


def _is_known(name: str) -> bool:
    return name.startswith(("arith.", "math.")) or name in _NOTHING or name in _NUMBERS


def _depth(block: KernelBlock) -> int:
    deepest = 0
    for op in block.operations:
        inner = max([_depth(region) for region in op.regions], default=0)
        deepest = max(deepest, inner + (op.name in ("scf.for", "scf.while")))
    return deepest


_EFFECTS = ("store", "dma", "sem_", "scf.", "trace", "prng_set", "region", "barrier", "delay")


def _dead(body: KernelBlock) -> set[int]:
    needed: set[int] = set()
    dead: set[int] = set()
    for op in reversed(list(kernel_ops(body))):
        has_effect = not op.results or op.regions or any(part in op.name for part in _EFFECTS)
        if has_effect or not needed.isdisjoint(op.results):
            needed.update(op.operands)
        else:
            dead.update(op.results)
    return dead
