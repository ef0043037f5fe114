"""Small HLO modules, and how tests write and read them."""

from __future__ import annotations

from hespas.frontend.load import load_source
from hespas.frontend.overrides import NO_OPTIONS, LoadOptions
from hespas.program.program import Op, Program

NAME = "test.hlo"
ADD = """
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}
"""


def module(entry: str, *, computations: str = "", header: str = "is_scheduled=true") -> str:
    """Return HLO text of other computations and an entry of these instructions."""
    return f"HloModule step, {header}\n{computations}\nENTRY main {{\n{entry}\n}}\n"


def read_hlo(text: str, *, options: LoadOptions = NO_OPTIONS) -> Program:
    """Load HLO text."""
    return load_source(text.encode(), name=NAME, options=options)


def entry_ops(entry: str, *, computations: str = "") -> tuple[Op, ...]:
    """Return the operations of an entry computation, without its return."""
    return read_hlo(module(entry, computations=computations)).main.body.operations[:-1]


def entry_op(entry: str, *, computations: str = "") -> Op:
    """Return the one operation of an entry computation."""
    (op,) = entry_ops(entry, computations=computations)
    return op
