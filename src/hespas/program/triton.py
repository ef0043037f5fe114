"""A kernel in Triton's language, as plain values: what one program of its grid does."""

from __future__ import annotations

import msgspec


class TritonType(msgspec.Struct, frozen=True, kw_only=True):
    """The type of a value; a scalar has no shape, a pointer's element is what it points at."""

    element: str
    shape: tuple[int, ...] = ()


class TritonOp(msgspec.Struct, frozen=True, kw_only=True):
    """An operation, which runs ``count`` times; the bodies of reductions are ``body``."""

    name: str
    operands: tuple[TritonType, ...]
    results: tuple[TritonType, ...]
    count: int = 1
    body: tuple[TritonOp, ...] = ()
    precision: str = ""


class TritonKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel: its operations, loops opened, without loads that nothing uses.

    ``notes`` say what was assumed of loops and branches that depend on data.
    """

    name: str
    operations: tuple[TritonOp, ...]
    notes: tuple[str, ...] = ()
