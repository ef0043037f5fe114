"""The cycles that a TPU's compiler writes beside an instruction."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hespas.program.program import Op
from hespas.program.text import function_text, structure_key
from hlo_programs import entry_op

CONFIG = '{"flag_configs":[],"window_config":{"estimated_cycles":"%s","input_window_bounds":[]}}'
FUSED = "fused {\n  a = f32[4] parameter(0)\n  ROOT t = f32[4] tanh(a)\n}\n"


def addition(cycles: object) -> Op:
    config = CONFIG % cycles
    return entry_op(f"p = f32[4] parameter(0)\nROOT a = f32[4] add(p, p), backend_config={config}")


def test_any_instruction_has_them() -> None:
    assert addition(960).estimated_cycles == 960
    fusion = entry_op(
        "p = f32[4] parameter(0)\nROOT f = f32[4] fusion(p), kind=kLoop, calls=fused, "
        f"backend_config={CONFIG % 7}",
        computations=FUSED,
    )
    assert fusion.estimated_cycles == 7
    assert fusion.regions[0].operations[0].estimated_cycles is None


@pytest.mark.parametrize(
    "config",
    [
        CONFIG % (2**63 - 1),
        '{"window_config":{"input_window_bounds":[]}}',
        '{"fusion_backend_config":{"kind":"__triton"}}',
        '"estimated_cycles"',
    ],
)
def test_where_the_compiler_does_not_say_nobody_does(config: str) -> None:
    op = entry_op(f"p = f32[4] parameter(0)\nROOT a = f32[4] add(p, p), backend_config={config}")
    assert op.estimated_cycles is None


def test_operations_of_other_cycles_are_others() -> None:
    first = addition(960)
    second = replace(first, estimated_cycles=961)
    made = {
        (structure_key([op], op.results), function_text("f", op.operands[:1], [op], op.results))
        for op in (first, second, replace(first, instruction="b"))
    }
    assert len({key for key, _ in made}) == len({text for _, text in made}) == 2
    assert any("// 960 cycles" in text for _, text in made)
