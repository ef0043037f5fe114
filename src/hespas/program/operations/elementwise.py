"""Count the work of elementwise operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from hespas.program.operations.traits import (
    Category,
    Instructions,
    Traits,
    arithmetic_type,
    operand,
    result,
    traffic,
)
from hespas.program.types import NumberKind
from hespas.program.work import ZERO, Work, flop_counts

if TYPE_CHECKING:
    from hespas.program.program import Op


def counted(op: Op, *, complex_flops: int = 2) -> Work:
    """Count a fixed number of FLOPs per result element.

    The type is the last operand's: it holds the data of ``select`` and ``clamp``, and the operands
    of all others have the same type.
    """
    element = operand(op, -1).element
    element_flops = complex_flops if element.kind is NumberKind.COMPLEX else 1
    count = element_flops * result(op).element_count
    return traffic(op, flops=flop_counts(arithmetic_type(element), count))


def transcendental(op: Op) -> Work:
    """Count one transcendental function per real result element, two per complex one."""
    element = result(op).element
    functions = 2 if element.kind is NumberKind.COMPLEX else 1
    return traffic(op, transcendentals=functions * result(op).element_count)


def absolute(op: Op) -> Work:
    """Count one FLOP per element.

    A complex modulus is the root of a sum of two squares: 3 FLOPs and a function.
    """
    element = operand(op, 0).element
    if element.kind is not NumberKind.COMPLEX:
        return counted(op)
    count = result(op).element_count
    return traffic(
        op, flops=flop_counts(arithmetic_type(element), 3 * count), transcendentals=count
    )


def convert(op: Op) -> Work:
    """Count one FLOP per element; zero if the type stays, as compilers drop it."""
    return ZERO if operand(op, 0) == result(op) else counted(op)


# (a + bi)(c + di) = (ac - bd) + (ad + bc)i: 4 multiplications, 2 additions.
multiply = partial(counted, complex_flops=6)

# z / w = z conj(w) / |w|^2: the product above, 3 FLOPs for |w|^2, and 2 divisions.
divide = partial(counted, complex_flops=6 + 3 + 2)

# These only split or combine complex numbers: one FLOP per element.
part = partial(counted, complex_flops=1)


def _traits(
    work: Callable[[Op], Work],
    *,
    gpu: int = 1,
    tpu: tuple[float, float] = (1, 0),
    tpu_exact: tuple[float, float] | None = None,
) -> Traits:
    """Return an elementwise operation's traits; TPU counts are (arithmetic, functions)."""
    return Traits(
        category=Category.ELEMENTWISE,
        work=work,
        keeps_dimensions=True,
        gpu_instructions=gpu,
        tpu_instructions=_instructions(tpu),
        tpu_exact_instructions=None if tpu_exact is None else _instructions(tpu_exact),
    )


def _instructions(counts: tuple[float, float]) -> Instructions:
    arithmetic, functions = counts
    return Instructions(arithmetic=arithmetic, functions=functions)


_COUNTED = (
    "add and bitcast_convert ceil clamp compare count_leading_zeros floor is_finite maximum "
    "minimum mulhi negate not or popcnt reduce_precision round_nearest_afz "
    "round_nearest_even select shift_left shift_right_arithmetic shift_right_logical sign "
    "stochastic_convert subtract xor"
)

# XLA's HloCostAnalysis counts these apart from FLOPs; mhlo's have one instruction each.
_TRANSCENDENTAL = "cbrt acos acosh asin asinh atanh cosh sinh"

# Instructions of a TPU: arithmetic makes reciprocals, roots and error functions exact, except in
# kernels that write narrow numbers. Source: libtpu's schedules, as for `tpu_vectors`.
TRAITS = {
    **dict.fromkeys(_COUNTED.split(), _traits(counted)),
    **dict.fromkeys(_TRANSCENDENTAL.split(), _traits(transcendental)),
    "abs": _traits(absolute),
    "atan2": _traits(transcendental, gpu=40),
    "complex": _traits(part),
    "convert": _traits(convert),
    "cosine": _traits(transcendental, gpu=20, tpu=(148, 0), tpu_exact=(96, 2)),
    "divide": _traits(divide, gpu=8, tpu=(14, 1), tpu_exact=(2, 1)),
    "erf": _traits(transcendental, gpu=20, tpu=(38, 1), tpu_exact=(1, 1)),
    "exponential": _traits(transcendental, gpu=6, tpu=(2, 1)),
    "exponential_minus_one": _traits(transcendental, gpu=12, tpu=(4, 1)),
    "imag": _traits(part),
    "log": _traits(transcendental, gpu=10, tpu=(2, 1)),
    "log_plus_one": _traits(transcendental, gpu=12, tpu=(4, 1)),
    "logistic": _traits(transcendental, gpu=12, tpu=(16, 2), tpu_exact=(4, 2)),
    "multiply": _traits(multiply),
    "power": _traits(transcendental, gpu=40, tpu=(5, 2)),
    "real": _traits(part),
    "remainder": _traits(counted, gpu=20),
    "rsqrt": _traits(transcendental, gpu=4, tpu=(9, 1), tpu_exact=(1, 1)),
    "sine": _traits(transcendental, gpu=20, tpu=(148, 0), tpu_exact=(96, 2)),
    "sqrt": _traits(transcendental, gpu=6, tpu=(12, 1), tpu_exact=(7, 1)),
    "tan": _traits(transcendental, gpu=30, tpu=(162, 1), tpu_exact=(98, 3)),
    "tanh": _traits(transcendental, gpu=15, tpu=(1, 1)),
}
