"""How long a TPU's vector unit works on a kernel that the compiler writes.

A register holds 8 x 128 numbers of 32 bits. Narrower numbers are widened before arithmetic and
packed behind it. The kernel's instructions take as many cycles as the unit that has most to do:
arithmetic, functions, loads or stores. Memory works beside it: windows are fetched ahead.

Source: the instructions that libtpu 0.0.42 schedules for single operations on v5e and v6e, counted
for each unit (``validation/tpu_vectors.py``). No TPU was at hand to measure any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hespas.errors import CostError
from hespas.hardware.device import Device
from hespas.hardware.tensor_core import TensorCore
from hespas.lower.kinds import BROADCASTS, CREATING, IN_PLACE, MOVING
from hespas.price.driver import Timing
from hespas.price.estimate import larger_of
from hespas.program.program import Op, Value, size_of
from hespas.program.types import TensorType
from hespas.program.work import Work
from hespas.work.convolution import convolutions
from hespas.work.expand import Leaf
from hespas.work.fusion import operations_of
from hespas.work.gemm import gemms

_REGISTER_ELEMENTS, _REGISTER_BYTES = 1024, 4096
_WIDE_BITS = 32
_WIDEN, _PACK = 1.0, 0.5
"""Operations that widen what fills a register, and that pack it."""
_OVERHEAD = 1.2
"""Instructions of a schedule for each that its busiest unit needs, of kernels with many of them."""

_NOTE = (
    "kernels without a compiler's cycles take the longest of memory, the matrix unit and the "
    "vector unit, whose instructions are counted by kind of operation, as libtpu schedules them "
    "on v5e and v6e"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorLoad:
    """What a kernel asks of the parts of the vector unit, in registers that they work on."""

    arithmetic: float = 0.0
    functions: float = 0.0
    loads: float = 0.0
    stores: float = 0.0

    def __add__(self, other: VectorLoad) -> VectorLoad:
        return VectorLoad(
            arithmetic=self.arithmetic + other.arithmetic,
            functions=self.functions + other.functions,
            loads=self.loads + other.loads,
            stores=self.stores + other.stores,
        )

    def __mul__(self, count: float) -> VectorLoad:
        return VectorLoad(
            arithmetic=self.arithmetic * count,
            functions=self.functions * count,
            loads=self.loads * count,
            stores=self.stores * count,
        )


_SINGLE = VectorLoad(arithmetic=1)
_MOVING = MOVING | CREATING | IN_PLACE | {"bitcast", "return", "tuple"}
_OTHERS = _MOVING | {"convolution", "dot", "dot_general", "fusion"}
"""Asks nothing of the vector unit that other parts of a kernel do not take longer for."""


def vector_load(op: Op, work: Work, core: TensorCore) -> VectorLoad | None:
    """Return what a kernel asks of the vector unit; None for one that does other things too.

    ``work`` says what it reads and writes.
    """
    total = VectorLoad(
        loads=work.bytes_read / _REGISTER_BYTES, stores=work.bytes_written / _REGISTER_BYTES
    )
    roots = op.regions[0].operations[-1].operands if op.kind == "fusion" else op.results
    is_exact = core.exact_functions or any(map(_is_narrow, roots))
    wide, made = set[Value](), dict[Value, str]()
    for each in operations_of(op):
        if each.traits.is_elementwise:
            total += _elementwise(each, made, is_exact=is_exact) + _widening(each.operands, wide)
        elif each.kind == "reduce":
            sources = each.operands[: len(each.operands) // 2]
            total += _SINGLE * _registers(sources) + _widening(sources, wide)
        elif each.kind not in _OTHERS:
            return None
        if each.kind not in _MOVING or _are_wide(each.operands, wide):
            wide.update(each.results)
        made.update(dict.fromkeys(each.results, each.kind))
    packed = [value for value in roots if _is_narrow(value) and value in wide]
    return total + _SINGLE * (_PACK * _registers(packed))


def _elementwise(op: Op, made: Mapping[Value, str], *, is_exact: bool) -> VectorLoad:
    """Return what an operation asks; ``made`` says what kind made each value of the kernel.

    To divide by what is broadcast is to multiply by its reciprocal.
    """
    if op.kind == "convert" and any(map(_is_narrow, (*op.operands, *op.results))):
        return VectorLoad()
    is_repeated = op.kind == "divide" and made.get(op.operands[1], "") in BROADCASTS
    if is_repeated:
        return _SINGLE * _registers(op.results)
    traits = op.traits
    taken = (traits.tpu_exact_instructions if is_exact else None) or traits.tpu_instructions
    load = VectorLoad(arithmetic=taken.arithmetic, functions=taken.functions)
    return load * _registers(op.results)


def _widening(operands: Sequence[Value], wide: set[Value]) -> VectorLoad:
    """Return what widens narrow operands that nothing has widened yet, and mark them."""
    widened = [value for value in set(operands) if _is_narrow(value) and value not in wide]
    wide.update(widened)
    return _SINGLE * (_WIDEN * _registers(widened))


def _are_wide(operands: Sequence[Value], wide: set[Value]) -> bool:
    return any(value in wide for value in operands)


def _is_narrow(value: Value) -> bool:
    return isinstance(value.type, TensorType) and 1 < value.type.element.bits < _WIDE_BITS


def _registers(values: Iterable[Value]) -> float:
    return sum(map(size_of, values)) / _REGISTER_ELEMENTS


def vector_cycles(load: VectorLoad, core: TensorCore) -> float:
    """Return the cycles of one core that a kernel's instructions take."""
    busiest = max(
        load.arithmetic / core.arithmetic,
        load.functions / core.functions,
        load.loads / core.loads,
        load.stores / core.stores,
    )
    return _OVERHEAD * busiest


def vector_timing(leaf: Leaf, device: Device) -> Timing | None:
    """Return how long a kernel takes by memory, the matrix unit and the vector unit.

    None where the device's units or its clock are not described, and for kernels of other kinds.
    """
    core, clock_hz = device.tensor_core, device.clock_hz
    if core is None or clock_hz is None:
        return None
    load = vector_load(leaf.op, leaf.work, core)
    products_s = _products_s(leaf.op, device)
    if load is None or products_s is None:
        return None
    vector_s = vector_cycles(load, core) / (core.cores * clock_hz)
    memory_s = leaf.work.bytes_moved / device.memory_bandwidth_bytes_per_s
    compute_s = max(vector_s, products_s * _stretch(core))
    time_s = max(compute_s, memory_s)
    bound = larger_of(time_s, compute_s=compute_s, memory_s=memory_s)
    return Timing(time_s=time_s, notes=(_NOTE,), bound=bound)


def _stretch(core: TensorCore) -> float:
    """Return how many times as long as at the peak products take, as those with cycles do."""
    return 1 + core.product_cycles * (1 / core.product_share - 1)


def _products_s(op: Op, device: Device) -> float | None:
    """Return how long a kernel's products take; None where they cannot be read."""
    try:
        found = (*gemms(op), *convolutions(op))
    except CostError:
        return None
    return sum(each.flops / device.rate(each.multiplied) for each in found)
