"""How long a TPU orders elements, which its compiler writes no cycles for.

Source: the static profiles that libtpu 0.0.42 writes of such kernels, for v5e and v6e. A sort takes
6.1 to 11.8 cycles for each register of 1,024 elements in each stage of a bitonic network, over
rows of 256 to 65,536 elements in f32, bf16 and i32; a ``TopK`` takes 10 to 13 for each
register and each element that is kept. No TPU was at hand to measure either.
"""

from __future__ import annotations

from math import ceil, prod

from hespas.hardware.device import Device
from hespas.price.driver import Timing
from hespas.price.estimate import larger_of
from hespas.program.attrs import TOP_K, CustomCallAttrs, DimensionAttrs
from hespas.program.program import Op
from hespas.program.types import TensorType
from hespas.program.work import Work

_REGISTER_ELEMENTS = 1024
_STAGE_OPERATIONS, _KEPT_OPERATIONS = 36, 48
"""Operations of the vector unit, which does 4 in a cycle, for each register."""
_NOTE = (
    "sorts take a bitonic network, and the largest of each row a scan for each that is kept, as "
    "libtpu schedules them on v5e and v6e, within 50 %"
)


def sort_timing(op: Op, work: Work, device: Device) -> Timing | None:
    """Return how long an operation takes that orders elements; None for anything else.

    None, too, where the device's units or its clock are not described.
    """
    core, clock_hz = device.tensor_core, device.clock_hz
    operations = vector_operations(op)
    if core is None or clock_hz is None or operations is None:
        return None
    compute_s = operations / (core.arithmetic * core.cores * clock_hz)
    memory_s = work.bytes_moved / device.memory_bandwidth_bytes_per_s
    time_s = max(compute_s, memory_s)
    bound = larger_of(time_s, compute_s=compute_s, memory_s=memory_s)
    return Timing(time_s=time_s, notes=(_NOTE,), bound=bound)


def vector_operations(op: Op) -> int | None:
    """Return what the vector unit does to order elements; None for an operation that doesn't."""
    if op.kind not in ("sort", "custom_call"):
        return None
    given = op.operands[0].type if op.operands else None
    if not isinstance(given, TensorType) or not given.shape:
        return None
    match op.attrs:
        case DimensionAttrs(dimension=dimension) if op.kind == "sort":
            length = max(1, given.shape[dimension])
            levels = (length - 1).bit_length()
            rows = prod(given.shape) // length
            stages = levels * (levels + 1) // 2
            return _STAGE_OPERATIONS * stages * _registers(rows << levels)
        case CustomCallAttrs(target=target) if target == TOP_K:
            kept = op.results[0].type
            most = kept.shape[-1] if isinstance(kept, TensorType) and kept.shape else 1
            return _KEPT_OPERATIONS * most * _registers(given.element_count)
        case _:
            return None


def _registers(elements: int) -> int:
    return ceil(elements / _REGISTER_ELEMENTS)
