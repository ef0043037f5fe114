from __future__ import annotations

from hespas.frontend.load import load_source
from hespas.program.uses import in_order
from programs import VECTOR, vector_main

BODY = f"""%b = stablehlo.tanh %a : {VECTOR}
    %c = stablehlo.exponential %a : {VECTOR}
    %r = stablehlo.add %b, %c : {VECTOR}"""


def test_ranks_decide_among_what_is_ready() -> None:
    program = load_source(vector_main(BODY).encode(), name="test.mlir")
    operations = program.main.body.operations[:-1]
    assert [op.kind for op in in_order(operations, (1, 0, -1))] == ["exponential", "tanh", "add"]
