"""Algorithms of dot products: XLA's names for them, as StableHLO spells them."""

from __future__ import annotations

from hespas.errors import UnsupportedError

# What each multiplies, what it sums in, and how many products make one.
# Source: openxla/xla, ``PrecisionConfig.Algorithm`` in xla/xla_data.proto (Apache License 2.0).
_ALGORITHMS = {
    "ALG_DOT_F16_F16_F16": ("f16", "f16", 1),
    "ALG_DOT_F16_F16_F32": ("f16", "f32", 1),
    "ALG_DOT_BF16_BF16_BF16": ("bf16", "bf16", 1),
    "ALG_DOT_BF16_BF16_F32": ("bf16", "f32", 1),
    "ALG_DOT_BF16_BF16_F32_X3": ("bf16", "f32", 3),
    "ALG_DOT_BF16_BF16_F32_X6": ("bf16", "f32", 6),
    "ALG_DOT_BF16_BF16_F32_X9": ("bf16", "f32", 9),
    "ALG_DOT_TF32_TF32_F32": ("tf32", "f32", 1),
    "ALG_DOT_TF32_TF32_F32_X3": ("tf32", "f32", 3),
    "ALG_DOT_F32_F32_F32": ("f32", "f32", 1),
    "ALG_DOT_F64_F64_F64": ("f64", "f64", 1),
}
# They multiply whatever type of eight bits the operands have.
_AS_OPERANDS = frozenset(
    {
        "",
        "ALG_UNSET",
        "ALG_DOT_ANY_F8_ANY_F8_F32",
        "ALG_DOT_ANY_F8_ANY_F8_F32_FAST_ACCUM",
    }
)


def algorithm_text(name: str) -> str:
    """Return StableHLO's ``dot_algorithm`` for XLA's name; empty where the operands decide.

    Raises `UnsupportedError` for a name that is not known.

    >>> algorithm_text("ALG_UNSET")
    ''
    >>> algorithm_text("ALG_DOT_BF16_BF16_F32_X3").split(", ")[-2]
    'num_primitive_operations = 3'
    """
    if name in _AS_OPERANDS:
        return ""
    if name not in _ALGORITHMS:
        raise UnsupportedError(f"dot algorithm {name} is not known")
    multiplied, summed, products = _ALGORITHMS[name]
    return (
        f"#stablehlo.dot_algorithm<lhs_precision_type = {multiplied}, rhs_precision_type = "
        f"{multiplied}, accumulation_type = {summed}, lhs_component_count = 1, "
        f"rhs_component_count = 1, num_primitive_operations = {products}, "
        "allow_imprecise_accumulation = false>"
    )
