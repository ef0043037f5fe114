"""Operations that compute each result element from the operands' elements at the same place."""

from __future__ import annotations

from functools import partial

from hespas.cost.rules.sizes import arithmetic_type, operand, result, traffic
from hespas.cost.work import ZERO, Work, flop_counts
from hespas.program.program import Op
from hespas.program.types import NumberKind


def counted(op: Op, *, real_flops: int = 1, complex_flops: int = 2) -> Work:
    """So many FLOPs for each result element, whatever the function.

    The type is the last operand's: ``select`` and ``clamp`` have their data there, and the
    operands of all others agree.
    """
    element = operand(op, -1).element
    each = complex_flops if element.kind is NumberKind.COMPLEX else real_flops
    count = each * result(op).element_count
    return traffic(op, flops=flop_counts(arithmetic_type(element), count))


def transcendental(op: Op) -> Work:
    """One transcendental function for each result element.

    A complex one is two real ones: of the modulus and of the argument.
    """
    element = result(op).element
    each = 2 if element.kind is NumberKind.COMPLEX else 1
    return traffic(op, transcendentals=each * result(op).element_count)


def absolute(op: Op) -> Work:
    """One FLOP for each element; a complex modulus is a root of a sum of two squares."""
    element = operand(op, 0).element
    if element.kind is not NumberKind.COMPLEX:
        return counted(op)
    count = result(op).element_count
    return traffic(
        op, flops=flop_counts(arithmetic_type(element), 3 * count), transcendentals=count
    )


def convert(op: Op) -> Work:
    """One FLOP for each element; nothing where the type stays, as no compiler keeps it."""
    return ZERO if operand(op, 0) == result(op) else counted(op)


# (a + bi)(c + di) = (ac - bd) + (ad + bc)i: 4 multiplications, 2 additions.
multiply = partial(counted, complex_flops=6)

# z / w = z conj(w) / |w|^2: the product above, 3 FLOPs for |w|^2, and 2 divisions.
divide = partial(counted, complex_flops=6 + 3 + 2)

# These only take complex numbers apart or put them together, one number for each element.
part = partial(counted, complex_flops=1)

_COUNTED = (
    "add and bitcast_convert ceil clamp compare count_leading_zeros floor is_finite maximum "
    "minimum mulhi negate not or popcnt reduce_precision remainder round_nearest_afz "
    "round_nearest_even select shift_left shift_right_arithmetic shift_right_logical sign "
    "stochastic_convert subtract xor"
)

# Those that XLA's HloCostAnalysis counts apart from FLOPs; the second row is mhlo's.
_TRANSCENDENTAL = (
    "atan2 cbrt cosine exponential exponential_minus_one log log_plus_one logistic power rsqrt "
    "sine sqrt tan tanh "
    "acos acosh asin asinh atanh cosh erf sinh"
)

RULES = {
    **dict.fromkeys(_COUNTED.split(), counted),
    **dict.fromkeys(_TRANSCENDENTAL.split(), transcendental),
    "abs": absolute,
    "complex": part,
    "convert": convert,
    "divide": divide,
    "imag": part,
    "multiply": multiply,
    "real": part,
}
