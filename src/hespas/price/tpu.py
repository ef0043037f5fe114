"""Price on TPUs by the compiler's cycles or units' rates.

``method: compiler`` takes the cycles that a TPU's compiler wrote beside operations, over the clock;
``method: tensor_core`` is for programs that no TPU compiler saw. Kernels without cycles:

* Vector unit. A register holds 8 x 128 numbers of 32 bits. Narrower numbers are widened before
  arithmetic and packed behind it. A kernel's instructions take as many cycles as the part of the
  unit that has most to do: arithmetic, functions, loads or stores. Memory works beside it: windows
  are fetched ahead. Source: the instructions that libtpu 0.0.42 schedules for single operations on
  v5e and v6e, counted for each part (``validation/tpu_vectors.py``).
* Sorts. Source: the static profiles that libtpu 0.0.42 writes of such kernels, for v5e and v6e. A
  sort takes 6.1 to 11.8 cycles for each register of 1,024 elements in each stage of a bitonic
  network, over rows of 256 to 65,536 elements in f32, bf16 and i32; a ``TopK`` takes 10 to 13 for
  each register and each element that is kept.
* Kernels of Pallas. While a step computes, the pipeline fetches the next step's blocks, so that the
  kernel takes the longer of its arithmetic and its traffic. At peak, the matrix unit and the parts
  of the vector unit work at the same time, and the busiest decides. As libtpu schedules steps,
  products wait for what the vector unit makes and it for them: their times add, and each step has a
  fixed cost.

No TPU was at hand to measure any of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import ceil, prod
from typing import TYPE_CHECKING

from hespas.base.frozen import frozen
from hespas.errors import ConfigError, CostError, HardwareError, option
from hespas.hardware.device import Device, TensorCore
from hespas.price.driver import estimate_region
from hespas.price.estimate import UNDIVIDED, Estimate, Price, Timing, larger_of
from hespas.price.kernel import Kernel, Writer, kernel_of
from hespas.price.methods import EstimatorSpec
from hespas.price.roofline import Rates, Roofline, same_work
from hespas.program.attrs import TOP_K, CustomCallAttrs, DimensionAttrs
from hespas.program.kernels import KernelType
from hespas.program.operations.table import kinds_of
from hespas.program.operations.traits import Category
from hespas.program.program import Op, Program, Value, all_ops, shape_of, size_of
from hespas.program.types import TensorType
from hespas.program.work import Work
from hespas.split.regions import Compute
from hespas.work.expand import Leaf
from hespas.work.fusion import operations_of
from hespas.work.mosaic.tally import Unit, VectorUse, element_bits

if TYPE_CHECKING:
    from hespas.work.mosaic.kernel import KernelLoad

WITHOUT_CYCLES = "without cycles"
"""Appended to the names of operations that the compiler wrote no cycles for."""

_EXPECTED = (
    "compiler: operations take the cycles that the TPU's compiler wrote beside them to rank its "
    "own choices; with all cycles as written, steps on TPUs v3, v5e and v5p came out 13 to 30 % "
    "longer than published"
)
_CALIBRATED = (
    "compiler: matrix products take the roofline's time and {part:.0%} of what the compiler's "
    "cycles exceed it by, calibrated to published steps on this part: product_cycles of its "
    "node.json"
)
_SLOWED = (
    "compiler: kernels without matrix products take the longer of memory and of their "
    "instructions, and {part:.0%} of what the compiler's cycles exceed that by: moving_cycles of "
    "its node.json"
)
_OTHERS = (
    "compiler: operations that have no cycles take the roofline's time, and are named "
    f"'{WITHOUT_CYCLES}' among the operations"
)
_UNITS = (
    "tensor_core: every kernel but sorts and those of Pallas runs alone at the rates of the "
    "device's memory and units, reading what its body needs from device memory and writing its "
    "results there; nothing launches them one by one"
)


@frozen
class CompilerEstimator:
    """Prices operations by ``estimated_cycles``, and those without by the roofline.

    The cycles of a matrix product and its roofline are two bounds: the time between them follows
    from `hespas.hardware.device.TensorCore.product_cycles`.
    """

    method: str = "compiler"
    clock_hz: float
    roofline: Roofline

    @property
    def parameters(self) -> Mapping[str, object]:
        """The clock, and the roofline's parameters. Cycles belong to the operations."""
        return {"clock_hz": self.clock_hz, **self.roofline.parameters}

    def assumptions(self, program: Program) -> tuple[str, ...]:
        """Return the assumptions for every region."""
        del program
        return (_EXPECTED, f"{_OTHERS}; the clock is {self.clock_hz / 1e9:g} GHz")

    def estimate(self, region: Compute, program: Program) -> Estimate:
        """Add up the region's operations.

        Raises `ConfigError` for a program without any cycles, `CostError` for unknown work.
        """
        listed = chain(region.operations, all_ops(program))
        if all(op.estimated_cycles is None for op in listed):
            raise ConfigError(
                "no operation says how many cycles it takes, as only a TPU's compiler writes",
                location=program.source,
                hint=f"add {option('fidelity')} compiled with a TPU's node, or use method roofline",
            )
        return estimate_region(self, region, program, custom_calls=self.roofline.custom_calls)

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        """Price one operation, without a launch: the TPU runs its program alone."""
        del is_kernel
        op, roofline = leaf.op, self.roofline
        if op.traits.runs_nothing:
            return Price(cost=roofline.timed(op.name, leaf.work, 0.0, UNDIVIDED))
        peak = roofline.at_peaks(op.name, leaf.work)
        if op.estimated_cycles is None:
            without = Price(cost=peak, label=f"{op.name} {WITHOUT_CYCLES}")
            return scheduled_price(roofline, leaf) or without
        time_s, notes = op.estimated_cycles / self.clock_hz, ()
        core = roofline.device.tensor_core
        if core is not None:
            time_s, notes = self._calibrated(leaf, core, time_s, peak.time_s)
        bound = larger_of(
            time_s, compute_s=peak.compute_time_at_peak_s, memory_s=peak.memory_time_at_peak_s
        )
        return Price(cost=roofline.timed(op.name, leaf.work, time_s, bound), notes=notes)

    def _calibrated(
        self, leaf: Leaf, core: TensorCore, cycles_s: float, peak_s: float
    ) -> tuple[float, tuple[str, ...]]:
        """Interpolate between the peak time and the cycles' time, with a note."""
        kernel = _readable(leaf.op)
        if kernel is not None and (kernel.products or kernel.convolutions):
            least_s, part, note = peak_s, core.product_cycles, _CALIBRATED
        else:
            timing = vector_timing(leaf, self.roofline.device)
            least_s = peak_s if timing is None else timing.time_s
            part, note = core.moving_cycles, _SLOWED
        if part == 1 or cycles_s <= least_s:
            return cycles_s, ()
        return least_s + part * (cycles_s - least_s), (note.format(part=part),)


def compiler(spec: EstimatorSpec) -> CompilerEstimator:
    """Return the estimator of the method ``compiler``.

    Raises `ConfigError` without a device, `HardwareError` for one whose clock is not known.
    """
    roofline = Roofline.of(spec, "compiler")
    device = roofline.device
    if device.clock_hz is None:
        raise HardwareError(
            f"the clock of {device.name} is not known",
            location=device.name,
            hint="use a TPU's node or put clock_hz into its node.json, or use method roofline",
        )
    return CompilerEstimator(clock_hz=device.clock_hz, roofline=roofline)


@frozen
class TensorCoreEstimator:
    """Prices kernels as libtpu schedules them, the rest by the roofline."""

    method: str = "tensor_core"
    roofline: Roofline

    @property
    def parameters(self) -> Mapping[str, object]:
        """The roofline's parameters, which include the device's units."""
        return self.roofline.parameters

    def at_rates(self, rates: Rates) -> TensorCoreEstimator:
        """Return the estimator of the device with scaled rates."""
        return replace(self, roofline=self.roofline.at_rates(rates))

    def assumptions(self, program: Program) -> tuple[str, ...]:
        """Return the assumptions for every region."""
        del program
        return (_UNITS,)

    def estimate(self, region: Compute, program: Program) -> Estimate:
        """Add up the region's operations; raise `CostError` for unknown work."""
        calls = self.roofline.custom_calls
        return estimate_region(self, region, program, custom_calls=calls, key=self._same_price)

    def _same_price(self, leaf: Leaf) -> Hashable:
        core = self.roofline.device.tensor_core
        load = None if core is None else vector_load(leaf.op, leaf.work, core)
        return same_work(leaf), load, ordering_operations(leaf.op)

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        """Price one execution."""
        device = self.roofline.device
        core = device.tensor_core
        shows_schedules = core is not None and core.schedules_kernels
        if shows_schedules or kernel_of(leaf.op).writer is not Writer.PALLAS:
            scheduled = scheduled_price(self.roofline, leaf)
            if scheduled is not None:
                return scheduled
        timing = vector_timing(leaf, device) if is_kernel else None
        if timing is not None:
            return self.roofline.price_timed(leaf, timing)
        return self.roofline.price(leaf, is_kernel=is_kernel)


def tensor_core(spec: EstimatorSpec) -> TensorCoreEstimator:
    """Return the estimator of the method ``tensor_core``.

    Raises `ConfigError` without a device, `HardwareError` for one whose units are not described.
    """
    roofline = Roofline.of(spec, "tensor_core")
    device = roofline.device
    if device.tensor_core is None or device.clock_hz is None:
        raise HardwareError(
            f"the units of {device.name}, or their clock, are not described",
            location=device.name,
            hint="use a TPU's node, or method roofline",
        )
    return TensorCoreEstimator(roofline=roofline)


def scheduled_price(roofline: Roofline, leaf: Leaf) -> Price | None:
    """Price a Pallas kernel, sort or ``TopK`` as scheduled; None for others."""
    kernel = roofline.pallas_kernel(leaf)
    if kernel is not None:
        return roofline.price_timed(leaf, kernel.scheduled, name=kernel.name)
    attrs = leaf.op.attrs
    if isinstance(attrs, CustomCallAttrs) and attrs.target in roofline.custom_calls:
        return None
    ordering = sort_timing(leaf.op, leaf.work, roofline.device)
    return None if ordering is None else roofline.price_timed(leaf, ordering)


def _readable(op: Op) -> Kernel | None:
    """Return the kernel of an operation; None if its configuration is unreadable."""
    try:
        return kernel_of(op)
    except CostError:
        return None


def _longer_limit(compute_s: float, memory_s: float, *notes: str) -> Timing:
    time_s = max(compute_s, memory_s)
    bound = larger_of(time_s, compute_s=compute_s, memory_s=memory_s)
    return Timing(time_s=time_s, notes=notes, bound=bound)


_REGISTER_ELEMENTS, _REGISTER_BYTES, _REGISTER_BITS = 1024, 4096, 32
_WIDEN, _PACK = 1.0, 0.5
"""Instructions to widen the elements that fill a register, and to pack them."""
_OVERHEAD = 1.2
"""Scheduled instructions for each that the busiest unit needs, in kernels with many of them."""
_VECTORS = (
    "kernels without a compiler's cycles take the longest of memory, the matrix unit and the "
    "vector unit, whose instructions are counted by kind of operation, as libtpu schedules them "
    "on v5e and v6e"
)
_BROADCASTS = kinds_of(Category.BROADCAST)
_MOVING = kinds_of(Category.BROADCAST, Category.MOVEMENT, Category.CREATION, Category.UPDATE) | {
    "bitcast",
    "return",
    "tuple",
}
_NO_VECTORS = _MOVING | {"convolution", "dot", "dot_general", "fusion"}
"""Operations that ask nothing of the vector unit that takes longer than other parts of a kernel."""


@frozen
class VectorLoad:
    """A kernel's registers on each part of the vector unit."""

    arithmetic: float = 0.0
    functions: float = 0.0
    loads: float = 0.0
    stores: float = 0.0


def vector_load(op: Op, work: Work, core: TensorCore) -> VectorLoad | None:
    """Return the vector unit's load of a kernel that does ``work``, if that is all."""
    arithmetic = functions = 0.0
    roots = op.regions[0].operations[-1].operands if op.kind == "fusion" else op.results
    is_exact = core.exact_functions or any(map(_is_narrow, roots))
    wide, kinds = set[Value](), dict[Value, str]()
    for inner in operations_of(op):
        if inner.traits.is_elementwise:
            instructions = _elementwise(inner, kinds, is_exact=is_exact)
            arithmetic += instructions[0] + _widening(inner.operands, wide)
            functions += instructions[1]
        elif inner.kind == "reduce":
            sources = inner.operands[: len(inner.operands) // 2]
            arithmetic += _registers(sources) + _widening(sources, wide)
        elif inner.kind not in _NO_VECTORS:
            return None
        if inner.kind not in _MOVING or not wide.isdisjoint(inner.operands):
            wide.update(inner.results)
        kinds.update(dict.fromkeys(inner.results, inner.kind))
    packed = [value for value in roots if _is_narrow(value) and value in wide]
    return VectorLoad(
        arithmetic=arithmetic + _PACK * _registers(packed),
        functions=functions,
        loads=work.bytes_read / _REGISTER_BYTES,
        stores=work.bytes_written / _REGISTER_BYTES,
    )


def _elementwise(op: Op, kind_of: Mapping[Value, str], *, is_exact: bool) -> tuple[float, float]:
    """Return the arithmetic and functions of an operation, in registers.

    ``kind_of`` has the kind of the operation that made each value. Dividing by a broadcast value is
    multiplying by its reciprocal.
    """
    if op.kind == "convert" and any(map(_is_narrow, (*op.operands, *op.results))):
        return 0.0, 0.0
    count = _registers(op.results)
    if op.kind == "divide" and kind_of.get(op.operands[1], "") in _BROADCASTS:
        return count, 0.0
    traits = op.traits
    instructions = (traits.tpu_exact_instructions if is_exact else None) or traits.tpu_instructions
    return instructions.arithmetic * count, instructions.functions * count


def _widening(operands: Sequence[Value], wide: set[Value]) -> float:
    """Widen narrow operands once; return the cost."""
    widened = [value for value in set(operands) if _is_narrow(value) and value not in wide]
    wide.update(widened)
    return _WIDEN * _registers(widened)


def _is_narrow(value: Value) -> bool:
    return isinstance(value.type, TensorType) and 1 < value.type.element.bits < _REGISTER_BITS


def _registers(values: Iterable[Value]) -> float:
    return sum(map(size_of, values)) / _REGISTER_ELEMENTS


def vector_cycles(load: VectorLoad, core: TensorCore) -> float:
    """Return the cycles of one core that a kernel's vector instructions take."""
    busiest = max(
        load.arithmetic / core.arithmetic,
        load.functions / core.functions,
        load.loads / core.loads,
        load.stores / core.stores,
    )
    return _OVERHEAD * busiest


def vector_timing(leaf: Leaf, device: Device) -> Timing | None:
    """Return a kernel's time by memory, matrix unit and vector unit.

    Returns None where the device's units or its clock are not described, and for kernels of other
    kinds.
    """
    core, clock_hz, kernel = device.tensor_core, device.clock_hz, _readable(leaf.op)
    if core is None or clock_hz is None or kernel is None:
        return None
    load = vector_load(leaf.op, leaf.work, core)
    if load is None:
        return None
    vector_s = vector_cycles(load, core) / (core.cores * clock_hz)
    products = (*kernel.products, *kernel.convolutions)
    products_s = sum(product.flops / device.rate(product.multiplied) for product in products)
    # The time of products over that at peak, as for kernels with cycles.
    stretch = 1 + core.product_cycles * (1 / core.product_share - 1)
    memory_s = leaf.work.bytes_moved / device.memory_bandwidth_bytes_per_s
    return _longer_limit(max(vector_s, products_s * stretch), memory_s, _VECTORS)


_STAGE_OPERATIONS, _KEPT_OPERATIONS = 36, 48
"""Operations of the vector unit, which does 4 in a cycle, for each register."""
_ORDERING = (
    "sorts take a bitonic network, and the largest of each row a scan for each that is kept, as "
    "libtpu schedules them on v5e and v6e, within 50 %"
)


def sort_timing(op: Op, work: Work, device: Device) -> Timing | None:
    """Return the time of a sort on a device with described units, if one."""
    core, clock_hz = device.tensor_core, device.clock_hz
    operations = [ordering_operations(inner) for inner in operations_of(op)]
    ordering = [count for count in operations if count is not None]
    if core is None or clock_hz is None or not ordering:
        return None
    compute_s = sum(ordering) / (core.arithmetic * core.cores * clock_hz)
    return _longer_limit(
        compute_s, work.bytes_moved / device.memory_bandwidth_bytes_per_s, _ORDERING
    )


def ordering_operations(op: Op) -> int | None:
    """Return the vector operations that order elements, if any."""
    if op.kind not in ("sort", "custom_call"):
        return None
    unordered = op.operands[0].type if op.operands else None
    if not isinstance(unordered, TensorType) or not unordered.shape:
        return None
    match op.attrs:
        case DimensionAttrs(dimension=dimension) if op.kind == "sort":
            length = max(1, unordered.shape[dimension])
            levels = (length - 1).bit_length()
            rows = prod(unordered.shape) // length
            stages = levels * (levels + 1) // 2
            return _STAGE_OPERATIONS * stages * ceil((rows << levels) / _REGISTER_ELEMENTS)
        case CustomCallAttrs(target=target) if target == TOP_K:
            count = (1, *shape_of(op.results[0]))[-1]
            return _KEPT_OPERATIONS * count * ceil(unordered.element_count / _REGISTER_ELEMENTS)
        case _:
            return None


_SUBLANES, _LANES = 8, 128
"""Rows and columns of a vector register of 32-bit numbers."""
_AT_PEAK = (
    "kernels of Pallas take the longest of the matrix unit, the busiest part of the vector unit "
    "and memory, each at its peak; steps of the grid cost nothing more"
)
_SCHEDULED = (
    "kernels of Pallas take the longer of memory and of their steps: the matrix unit, then the "
    "busiest part of the vector unit, then {cycles:g} cycles, as libtpu schedules steps"
)


@frozen
class PricedKernel:
    """A kernel of Pallas with its time at peak and as scheduled."""

    name: str
    at_peak: Timing
    scheduled: Timing


def priced_kernel(op: Op, device: Device) -> PricedKernel | None:
    """Return a readable Pallas kernel's times on a device with described units."""
    # The import needs numpy and jaxlib, which only such programs need.
    from hespas.work.mosaic.kernel import kernel_load  # noqa: PLC0415

    core, clock_hz = device.tensor_core, device.clock_hz
    if core is None or clock_hz is None:
        return None
    try:
        load = kernel_load(op)
    except CostError:
        return None
    cores = core.cores if load.is_parallel else 1
    notes: tuple[str, ...] = ()
    if cores < core.cores:
        notes = (f"kernel {load.name} has no parallel dimension: it runs on one core",)
    matrix_s = matrix_unit_s(load, device, core) * core.cores / cores
    vector_s = max(vector_unit_cycles(load, core).values()) / (clock_hz * cores)
    steps_s = load.steps * core.step_cycles / (clock_hz * cores)
    memory_s = (load.bytes_read + load.bytes_written) / device.memory_bandwidth_bytes_per_s
    scheduled = _SCHEDULED.format(cycles=core.step_cycles)
    return PricedKernel(
        name=load.name,
        at_peak=_longer_limit(max(matrix_s, vector_s), memory_s, _AT_PEAK, *notes),
        scheduled=_longer_limit(matrix_s + vector_s + steps_s, memory_s, scheduled, *notes),
    )


def matrix_unit_s(load: KernelLoad, device: Device, core: TensorCore) -> float:
    """Return the time of all cores' matrix units for a kernel's products.

    They multiply whole tiles: the unit holds tiles of the right side, (k, n).
    """
    from hespas.work.mosaic.kernel import multiplied  # noqa: PLC0415 - as above

    unit, time_s = core.matrix_unit_size, 0.0
    for product, count in load.products:
        rows = ceil(product.m / _SUBLANES) * _SUBLANES
        inner, columns = [ceil(size / unit) * unit for size in (product.k, product.n)]
        flops = 2 * product.batch * rows * inner * columns
        time_s += count * flops / device.rate(multiplied(product).type_name)
    return time_s


def vector_unit_cycles(load: KernelLoad, core: TensorCore) -> dict[Unit, float]:
    """Return the busy cycles of each part of one core's vector unit."""
    rates = {
        Unit.ARITHMETIC: core.arithmetic,
        Unit.FUNCTIONS: core.functions,
        Unit.LANES: core.lanes,
        Unit.LOADS: core.loads,
        Unit.STORES: core.stores,
    }
    cycles = dict.fromkeys(rates, 0.0)
    for use, count in load.vectors:
        cycles[use.unit] += count * registers(use, core) / rates[use.unit]
    return cycles


def registers(use: VectorUse, core: TensorCore) -> int:
    """Return how many registers a vector fills; narrow types can stay packed."""
    bits = element_bits(use.kind)
    computes = use.unit in (Unit.ARITHMETIC, Unit.FUNCTIONS)
    stays_packed = bits < _REGISTER_BITS and (not computes or (core.packs_bf16 and bits == 16))
    return filled(use.kind, _REGISTER_BITS // bits if stays_packed else 1)


def filled(kind: KernelType, packed: int) -> int:
    """Return the registers that a vector fills, ``packed`` numbers in each slot.

    >>> filled(KernelType(element="bf16", shape=(2, 100, 300), is_vector=True), 2)
    42
    """
    *outer, rows, columns = (1, 1, *kind.shape)
    return prod(outer) * -(-rows // (_SUBLANES * packed)) * -(-columns // _LANES)
