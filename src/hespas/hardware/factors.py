"""The names of the factors by which a calibration multiplies measured times."""

from __future__ import annotations

from functools import cache

from hespas.program.types import ELEMENT_TYPES

_TABLES = {
    "bf16": "bf16",
    "f16": "bf16",
    "tf32": "tf32",
    "f8E4M3FN": "f8",
    "f8E5M2": "f8",
    "f8E4M3": "f8",
    "f8E3M4": "f8",
    "f8E4M3FNUZ": "f8",
    "f8E5M2FNUZ": "f8",
    "f8E4M3B11FNUZ": "f8",
    "i8": "f8",
    "ui8": "f8",
}
"""Whose table serves a type; types that are not named are scaled from bf16."""

_OF_KINDS = ("all", "gemm", "attention", "kernels")


def table_of(type_name: str) -> str:
    """Return the type whose table serves a type; the type itself where it is only scaled.

    >>> table_of("f16"), table_of("f8E5M2"), table_of("f64")
    ('bf16', 'f8', 'f64')
    """
    return _TABLES.get(type_name, type_name)


def factor_of(type_name: str) -> str:
    """Return the name of the factor by which a calibration multiplies products of a type.

    Integers have one of their own, for nothing measured of floats tells of them.

    >>> factor_of("f16"), factor_of("f8E5M2"), factor_of("ui8")
    ('gemm.bf16', 'gemm.f8', 'gemm.i8')
    """
    return "gemm.i8" if type_name in {"i8", "ui8"} else f"gemm.{table_of(type_name)}"


@cache
def factor_names() -> tuple[str, ...]:
    """Return all names of factors: of everything, of kinds of kernels, of products of a type.

    >>> "gemm" in factor_names(), "gemm.bf16" in factor_names(), "gemm.f16" in factor_names()
    (True, True, False)
    """
    of_types = sorted({factor_of(name) for name in (*ELEMENT_TYPES, "tf32")})
    return (*_OF_KINDS, *of_types)
