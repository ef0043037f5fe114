"""A part of a model, cut between layers."""

from __future__ import annotations

from enum import Enum

from hespas.base.frozen import frozen
from hespas.models.model import MeshAxes

PIPE = "pipe"
"""The axis of a mesh along which the stages of a pipeline stand."""
EXPERT = "expert"
"""The axis of a mesh that experts are divided over."""
REDUCED = ("data", "fsdp")
"""The axes of a mesh whose devices compute different sequences with the same weights."""
SHARED = ("fsdp", "context")
"""Those of the axes with equal weights over which gradients and optimiser states are divided."""


class PartProgram(Enum):
    """A program of a part.

    ``BOTH`` is the forward and the backward pass of one micro-batch; ``INPUTS`` the same without
    the gradients of weights; ``UPDATE`` the optimiser's step.
    """

    BOTH = "both"
    INPUTS = "inputs"
    UPDATE = "update"


@frozen
class Part:
    """Some layers of a model, with embedding or head.

    ``mesh`` has the axes that divide the program's arrays: every stage, and each data-parallel part
    of it, runs such a program at the same time. Parts that are equal have equal programs: ``first``
    is where layers of the same kinds stand first in the model.
    """

    mesh: MeshAxes
    layers: int
    first: int = 0
    is_first: bool = False
    is_last: bool = False
    program: PartProgram = PartProgram.BOTH

    def __str__(self) -> str:
        parts = [f"{self.layers} layers" if self.layers != 1 else "1 layer"]
        if self.is_first:
            parts.insert(0, "embedding")
        if self.is_last:
            parts.append("head and loss")
        return ", ".join(parts)
