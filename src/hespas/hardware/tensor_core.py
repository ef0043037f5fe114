"""Inside one TPU: the units of its TensorCores, at which a kernel is priced."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from hespas.base.figures import Count, Fraction, FractionOrZero, NotNegative, Positive


class TensorCore(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The TensorCores of a device: ``tensor_core`` of ``node.json``, which has their sources.

    ``cores`` make one device together. A matrix unit takes tiles of ``matrix_unit_size`` on a side.
    In each cycle a core's vector unit does so many operations on registers of 8 x 128 numbers of 32
    bits: ``arithmetic``, ``functions`` (exponentials and their like), ``lanes`` (across them),
    ``loads`` and ``stores``. ``packs_bf16`` says that it computes on two bf16 in the place of
    one f32, and ``exact_functions`` that the arithmetic unit need not refine reciprocals, roots and
    error functions. A step of a kernel's grid costs ``step_cycles`` beside its work.
    ``schedules_kernels`` says that the part's compiler has shown how it schedules kernels of
    Pallas.

    A matrix product of a compiled program takes the roofline's time, and ``product_cycles`` of what
    the compiler's cycles exceed it by: 1 is as the compiler wrote, less is calibrated to published
    steps. By these cycles, large products reach ``product_share`` of the peak, which serves those
    that no compiler saw. All other kernels take memory's time or that of their instructions, and
    ``moving_cycles`` of what the cycles exceed that by.
    """

    cores: Count
    matrix_unit_size: Count
    arithmetic: Positive
    functions: Positive
    lanes: Positive
    loads: Positive
    stores: Positive
    packs_bf16: bool
    exact_functions: bool = False
    step_cycles: NotNegative
    product_cycles: FractionOrZero = 1.0
    product_share: Fraction = 1.0
    moving_cycles: FractionOrZero = 1.0
    schedules_kernels: bool = False


def faster(core: TensorCore, factor: float) -> TensorCore:
    """Return the same with vector units that do so many times as much in a cycle."""
    return replace(
        core,
        arithmetic=core.arithmetic * factor,
        functions=core.functions * factor,
        lanes=core.lanes * factor,
        loads=core.loads * factor,
        stores=core.stores * factor,
    )
