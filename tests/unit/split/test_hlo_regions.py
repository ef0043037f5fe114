"""Regions of compiled programs, as modules."""

from __future__ import annotations

import pytest

from hespas.program.program import Program
from hespas.split.modules import region_modules, stablehlo_text
from hespas.split.strategies import split_options, split_program
from hlo_programs import ADD, module, read_hlo
from programs import check_verifies

_FUSED = """
fused {
  a = f32[4,8]{0,1} parameter(0)
  c = f32[4,8]{1,0} copy(a)
  z = f32[] constant(0)
  b = f32[4,8]{1,0} broadcast(z), dimensions={}
  ROOT m = f32[4,8]{1,0} maximum(c, b)
}

viewed {
  a = f32[4,8]{0,1} parameter(0)
  b = f32[2,16]{1,0} bitcast(a)
  ROOT t = f32[2,16]{1,0} tanh(b)
}
"""
_SCATTERED = "replica_groups={{0,1}}, dimensions={0}, to_apply=add"


def _program(lines: str) -> Program:
    return read_hlo(
        module(lines, computations=ADD + _FUSED, header="is_scheduled=true, replica_count=2")
    )


def _texts(program: Program) -> list[tuple[str, str]]:
    graph = split_program(
        program,
        split_options(
            strategy="linear_split",
            merge=False,
            block_limit=None,
            separator="is_communication_op",
            separator_policy="isolated",
        ),
    )
    return [
        (each.canonical_text, stablehlo_text(graph.regions[each.first_region], program))
        for each in region_modules(graph).modules
    ]


_KERNELS = {
    "fusion of a transposed operand": "ROOT f = f32[4,8] fusion(p), kind=kLoop, calls=fused",
    "fusion of another view": "ROOT f = f32[2,16] fusion(p), kind=kLoop, calls=viewed",
    "combined reduce-scatter": (
        "c = f32[4,8]{1,0} copy(p)\n"
        f"s = (f32[2,8], f32[2,8]) reduce-scatter(c, c), {_SCATTERED}\n"
        "ROOT r = f32[2,8] get-tuple-element(s), index=1"
    ),
    "all-to-all": ("ROOT a = f32[4,8]{0,1} all-to-all(p), replica_groups={{0,1}}, dimensions={0}"),
    "call in place": (
        'c = (f32[4,8], s8[16]) custom-call(p), custom_call_target="x", '
        "output_to_operand_aliasing={{0}: (0, {})}\n"
        "ROOT r = f32[4,8] get-tuple-element(c), index=0"
    ),
}


@pytest.mark.parametrize("name", _KERNELS)
def test_regions_are_valid_stablehlo(name: str) -> None:
    texts = _texts(_program(f"p = f32[4,8]{{0,1}} parameter(0)\n{_KERNELS[name]}"))

    assert texts
    for _, stablehlo in texts:
        check_verifies(stablehlo)
        assert '"mhlo.' not in stablehlo
        assert "order" not in stablehlo


def test_kernels_that_differ_by_a_layout_are_told_apart() -> None:
    first, second = (
        _texts(_program(f"p = f32[4,8]{layout} parameter(0)\nROOT t = f32[4,8]{layout} tanh(p)"))
        for layout in ("{1,0}", "{0,1}")
    )
    assert first[0][0] != second[0][0]
    assert "order = [0, 1]" in second[0][0]


def test_kernels_that_differ_by_names_are_equal() -> None:
    texts = _texts(
        _program(
            "p = f32[4,8]{0,1} parameter(0)\nq = f32[4,8]{0,1} parameter(1)\n"
            'f = f32[4,8] fusion(p), kind=kLoop, calls=fused, metadata={op_name="x"}\n'
            'g = f32[4,8] fusion(q), kind=kLoop, calls=fused, metadata={op_name="y"}\n'
            "ROOT r = (f32[4,8], f32[4,8]) tuple(f, g)"
        )
    )
    assert len(texts) == 1
