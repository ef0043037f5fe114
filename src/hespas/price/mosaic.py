"""How long a kernel of a TPU takes that its author wrote (Pallas).

While a step computes, the pipeline fetches the next step's blocks, so that the kernel takes the
longer of its arithmetic and its traffic. Two answers:

* At peak, the matrix unit and the parts of the vector unit work at the same time, and the busiest
  decides.
* As libtpu schedules steps, products wait for what the vector unit makes and it for them: their
  times add, and each step has a fixed cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from hespas.errors import CostError
from hespas.hardware.device import Device
from hespas.hardware.tensor_core import TensorCore
from hespas.price.driver import Timing
from hespas.price.estimate import larger_of
from hespas.program.kernels import KernelType
from hespas.program.program import Op
from hespas.work.mosaic.kernel import KernelLoad, kernel_load, multiplied
from hespas.work.mosaic.tally import KernelProduct, Unit, VectorUse, element_bits

_SUBLANES, _LANES = 8, 128
"""Rows and columns of a vector register of 32-bit numbers."""
_REGISTER_BITS = 32
_AT_PEAK = (
    "kernels of Pallas take the longest of the matrix unit, the busiest part of the vector unit "
    "and memory, each at its peak; steps of the grid cost nothing more"
)
_SCHEDULED = (
    "kernels of Pallas take the longer of memory and of their steps: the matrix unit, then the "
    "busiest part of the vector unit, then {cycles:g} cycles, as libtpu schedules steps"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedKernel:
    """A kernel, by its name, and the two answers to how long it takes."""

    name: str
    at_peak: Timing
    scheduled: Timing


def priced_kernel(op: Op, device: Device) -> PricedKernel | None:
    """Return how long a kernel takes.

    None where the device's units are not described, or the kernel cannot be read.
    """
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
        at_peak=_longer(max(matrix_s, vector_s), memory_s, (_AT_PEAK, *notes)),
        scheduled=_longer(matrix_s + vector_s + steps_s, memory_s, (scheduled, *notes)),
    )


def _longer(compute_s: float, memory_s: float, notes: tuple[str, ...]) -> Timing:
    time_s = max(compute_s, memory_s)
    bound = larger_of(time_s, compute_s=compute_s, memory_s=memory_s)
    return Timing(time_s=time_s, notes=notes, bound=bound)


def matrix_unit_s(load: KernelLoad, device: Device, core: TensorCore) -> float:
    """Return how long the matrix units of all cores need for a kernel's products."""
    return sum(
        count
        * _padded_flops(product, core.matrix_unit_size)
        / device.rate(multiplied(product).type_name)
        for product, count in load.products
    )


def _padded_flops(product: KernelProduct, unit: int) -> int:
    """Return the FLOPs of whole tiles: the unit holds tiles of the right side, (k, n)."""
    m = _whole(product.m, _SUBLANES)
    return 2 * product.batch * m * _whole(product.k, unit) * _whole(product.n, unit)


def _whole(size: int, of: int) -> int:
    return -(-size // of) * of


def vector_unit_cycles(load: KernelLoad, core: TensorCore) -> dict[Unit, float]:
    """Return the cycles for which each part of one core's vector unit is busy."""
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
    """Return how many registers a vector fills: narrow types fill fewer, where they stay packed."""
    bits = element_bits(use.kind)
    computes = use.unit in (Unit.ARITHMETIC, Unit.FUNCTIONS)
    stays_packed = bits < _REGISTER_BITS and (not computes or (core.packs_bf16 and bits == 16))
    return filled(use.kind, _REGISTER_BITS // bits if stays_packed else 1)


def filled(kind: KernelType, packed: int) -> int:
    """Return the registers that a vector fills, ``packed`` numbers in the place of one.

    >>> filled(KernelType(element="bf16", shape=(2, 100, 300), is_vector=True), 2)
    42
    """
    *outer, rows, columns = (1, 1, *kind.shape)
    return prod(outer) * -(-rows // (_SUBLANES * packed)) * -(-columns // _LANES)
