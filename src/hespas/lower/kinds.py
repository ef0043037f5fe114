"""What the model of fusion does with each kind of operation."""

from __future__ import annotations

from math import prod

from hespas.program.attrs import WindowAttrs
from hespas.program.operations.table import kinds_of, kinds_where
from hespas.program.operations.traits import Category
from hespas.program.program import Op

ELEMENTWISE = kinds_of(Category.ELEMENTWISE)
CREATING = kinds_of(Category.CREATION)
BROADCASTS = kinds_of(Category.BROADCAST)
MOVING = kinds_of(Category.BROADCAST, Category.MOVEMENT)
IN_PLACE = kinds_of(Category.UPDATE)
REDUCING = kinds_of(Category.REDUCTION)
FUSIBLE = kinds_where(lambda traits: traits.is_fusible)
HOLDING = kinds_of(Category.CONTROL)
KEPT = kinds_where(lambda traits: traits.has_effect)

_OF_PLACE = 5
"""Instructions beside the body's for each place of a window: an address, a test, a load."""


def weight(op: Op) -> int:
    """Return about how many instructions one element of an operation's result takes."""
    if op.kind == "reduce_window":
        body = [weight(each) for region in op.regions for each in region.operations[:-1]]
        return window_of(op) * (_OF_PLACE + sum(body))
    return op.traits.gpu_instructions


def window_of(op: Op) -> int:
    """Return how many places an element of an operation's result is combined of in a window."""
    return prod(op.attrs.size) if isinstance(op.attrs, WindowAttrs) else 1
