from __future__ import annotations

import pytest

from hespas.price.kernel import kind_of
from hlo_programs import entry_op, read_hlo

ADD = """
add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT r = f32[] add(x, y)
}
"""


def fused(body: str, kind: str = "kLoop", result: str = "f32[8,8]", operands: str = "") -> str:
    program = read_hlo(
        f"""HloModule m
{ADD}
fused {{
  p = f32[8,8] parameter(0)
{body}
}}

ENTRY main {{
  a = f32[8,8] parameter(0)
{operands}  ROOT f = {result} fusion(a), kind={kind}, calls=fused
}}
"""
    )
    (op,) = (op for op in program.main.body.operations if op.kind == "fusion")
    return kind_of(op)


@pytest.mark.parametrize(
    ("body", "result", "kind"),
    [
        ("  ROOT t = f32[8,8] tanh(p)", "f32[8,8]", "elementwise fusion"),
        (
            "  z = f32[] constant(0)\n  ROOT r = f32[8] reduce(p, z), dimensions={1}, to_apply=add",
            "f32[8]",
            "reduction fusion",
        ),
        (
            "  ROOT t = f32[8,8] transpose(p), dimensions={1,0}",
            "f32[8,8]",
            "transpose fusion",
        ),
        (
            ("  t = f32[8,8] transpose(p), dimensions={1,0}\n  ROOT h = f32[8,8] tanh(t)"),
            "f32[8,8]",
            "transposing elementwise fusion",
        ),
        (
            (
                "  i = s32[] constant(0)\n  u = f32[1,8] slice(p), slice={[0:1], [0:8]}\n"
                "  ROOT d = f32[8,8] dynamic-update-slice(p, u, i, i)"
            ),
            "f32[8,8]",
            "in-place update fusion",
        ),
        (
            "  ROOT c = f32[16,8] concatenate(p, p), dimensions={0}",
            "f32[16,8]",
            "data movement fusion",
        ),
        (
            ("  ROOT d = f32[8,8] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
            "f32[8,8]",
            "matrix product, fused",
        ),
    ],
)
def test_a_fusion_is_called_after_what_it_does(body: str, result: str, kind: str) -> None:
    assert fused(body, result=result) == kind


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("  a = f32[8,8] parameter(0)\n  ROOT r = f32[8,8] tanh(a)", "elementwise"),
        ("  a = f32[8,8] parameter(0)\n  ROOT r = f32[8,8] copy(a)", "copy"),
        (
            "  a = f32[8,8] parameter(0)\n  ROOT r = f32[8,8] transpose(a), dimensions={1,0}",
            "transpose",
        ),
        (
            (
                "  a = f32[8,8] parameter(0)\n  ROOT r = f32[8,8] dot(a, a), "
                "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
            ),
            "matrix product",
        ),
        (
            (
                "  a = f32[8,8] parameter(0)\n"
                '  ROOT r = f32[8,8] custom-call(a), custom_call_target="mine"'
            ),
            "custom call mine",
        ),
        (
            "  a = f32[8,8] parameter(0)\n  ROOT r = f32[4,8] slice(a), slice={[0:4], [0:8]}",
            "slice",
        ),
    ],
)
def test_an_operation_alone(body: str, kind: str) -> None:
    assert kind_of(entry_op(body)) == kind
