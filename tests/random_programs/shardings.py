"""Shardings of arguments and results, over a mesh of two axes, as JAX writes them."""

from __future__ import annotations

from hypothesis import strategies as st

from random_programs.blocks import Tensor

MESH = 'sdy.mesh @mesh = <["data"=2, "tp"=2]>\n'
_AXES = {"data": 2, "tp": 2}


def sharding(draw: st.DrawFn, kind: Tensor) -> str:
    """Draw which axes divide which dimensions; an axis divides one dimension, or none."""
    axes_of: list[list[str]] = [[] for _ in kind.shape]
    left = list(kind.shape)
    for axis in draw(st.permutations(list(_AXES))):
        fitting = [dim for dim, size in enumerate(left) if size % _AXES[axis] == 0]
        dim = draw(st.sampled_from([None, *fitting, *fitting]))
        if dim is not None:
            axes_of[dim].append(axis)
            left[dim] //= _AXES[axis]
    listed = ", ".join(f"{{{_quoted(axes)}}}" for axes in axes_of)
    return f"sdy.sharding = #sdy.sharding<@mesh, [{listed}]>"


def _quoted(axes: list[str]) -> str:
    return ", ".join(f'"{axis}"' for axis in axes)
