"""What the model of fusion does with each kind of operation."""

from __future__ import annotations

from math import prod

from hespas.cost.rules import elementwise
from hespas.program.attrs import WindowAttrs
from hespas.program.program import Op

ELEMENTWISE = frozenset(elementwise.RULES) | {"map"}
"""Each element of the result is made of the operands' elements at the same place."""

CREATING = frozenset({"constant", "iota", "partition_id", "replica_id"})
"""Made from nothing: every kernel that needs it makes it again."""

BROADCASTS = frozenset({"broadcast", "broadcast_in_dim"})

MOVING = BROADCASTS | {
    "concatenate",
    "copy",
    "dynamic_slice",
    "gather",
    "pad",
    "reshape",
    "reverse",
    "slice",
    "torch_index_select",
    "transpose",
}

IN_PLACE = frozenset({"dynamic_update_slice", "scatter"})
"""Write over a part of their first operand."""

REDUCING = frozenset({"reduce", "reduce_window", "select_and_scatter"})

FUSIBLE = ELEMENTWISE | CREATING | MOVING | IN_PLACE | REDUCING
"""What XLA's own emitters write; all else is a library's, a collective's or control flow's."""

ORDERING = frozenset({"after_all", "create_token", "optimization_barrier", "tuple"})
"""Nothing runs, but operands have to be there."""

HOLDING = frozenset({"case", "if", "while"})
"""Control flow: its regions hold blocks of operations that are fused by themselves."""

KEPT = HOLDING | {
    "custom_call",
    "infeed",
    "outfeed",
    "recv",
    "recv_done",
    "send",
    "send_done",
}
"""Has an effect even if nothing reads its results."""

# Instructions that a GPU takes for one element, where it takes many: what XLA's profiles of
# operations call slow. All others take about one.
_SLOW = {
    "atan2": 40,
    "cosine": 20,
    "divide": 8,
    "erf": 20,
    "exponential": 6,
    "exponential_minus_one": 12,
    "log": 10,
    "log_plus_one": 12,
    "logistic": 12,
    "power": 40,
    "remainder": 20,
    "rsqrt": 4,
    "sine": 20,
    "sqrt": 6,
    "tan": 30,
    "tanh": 15,
}


_OF_PLACE = 5
"""Instructions beside the body's for each place of a window: an address, a test, a load."""


def weight(op: Op) -> int:
    """Return about how many instructions one element of an operation's result takes."""
    if op.kind == "reduce_window":
        body = [weight(each) for region in op.regions for each in region.operations[:-1]]
        return window_of(op) * (_OF_PLACE + sum(body))
    if op.kind in MOVING or op.kind == "constant":
        return 0
    return _SLOW.get(op.kind, 1)


def window_of(op: Op) -> int:
    """Return how many places an element of an operation's result is combined of in a window."""
    return prod(op.attrs.size) if isinstance(op.attrs, WindowAttrs) else 1
