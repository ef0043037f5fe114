"""The programs that XLA judges: each a JAX function and the arguments to trace it with."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedProgram:
    """A function, and the shapes of its arguments; what it computes on doesn't matter."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    platform: str


PROGRAMS: dict[str, JudgedProgram] = {}


def shape(*sizes: int, of: str = "float32") -> jax.ShapeDtypeStruct:
    """Name an argument by its shape and element type."""
    return jax.ShapeDtypeStruct(sizes, of)


def program(
    *arguments: Any, platform: str = "cpu"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function under its own name."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = JudgedProgram(
            function=function, arguments=arguments, platform=platform
        )
        return function

    return register


def gradients(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the gradients of the sum of what a function gives, in all its arguments."""

    def summed(*values: Any) -> Any:
        return function(*values).sum()

    positions: Sequence[int] = range(len(arguments))
    return jax.grad(summed, tuple(positions))(*arguments)
