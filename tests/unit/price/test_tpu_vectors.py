"""The vector unit of a TPU, against the instructions that libtpu 0.0.42 schedules."""

from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.hardware.device import TensorCore
from hespas.hardware.presets import load_device
from hespas.price.tpu import VectorLoad, vector_cycles, vector_load, vector_timing
from hespas.work.expand import Leaf, expand

REGISTERS = 4096 * 4096 / 1024


def leaf(body: str, kinds: str, result: str) -> Leaf:
    """Return a fusion of operands of 4096 x 4096 of these types."""
    given = dict(zip("abcd", kinds.split(), strict=False))
    inner = "\n".join(
        f"%{name} = {kind}[4096,4096] parameter({at})"
        for at, (name, kind) in enumerate(given.items())
    )
    names = ", ".join(f"{name}: {kind}[4096,4096]" for name, kind in given.items())
    values = ", ".join(f"%{name}" for name in given)
    text = f"""HloModule step, is_scheduled=true
%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(%x, %y)
}}
%fused ({names}) -> {result} {{
  {inner}
  {body}
}}
ENTRY %main ({names}) -> {result} {{
  {inner}
  ROOT %made = {result} fusion({values}), kind=kLoop, calls=%fused
}}"""
    program = load_source(text.encode(), name="step.hlo")
    costs = expand(program.main.body.operations, program.functions, custom_calls={})
    return next(each for each in costs if isinstance(each, Leaf) and each.op.kind == "fusion")


def core_of(node: str) -> TensorCore:
    core = load_device(node).tensor_core
    assert core is not None
    return core


def load(node: str, body: str, kinds: str, result: str) -> VectorLoad:
    found = leaf(body, kinds, result)
    made = vector_load(found.op, found.work, core_of(node))
    assert made is not None
    return made


WIDE, NARROW = "f32[4096,4096]", "bf16[4096,4096]"


@pytest.mark.parametrize(
    ("operation", "v5e", "v6e"),
    [
        ("add(%a, %a)", 1, 1),
        ("exponential(%a)", 2, 2),
        ("log(%a)", 2, 2),
        ("tanh(%a)", 1, 1),
        ("rsqrt(%a)", 9, 1),
        ("sqrt(%a)", 12, 7),
        ("divide(%a, %a)", 14, 2),
        ("erf(%a)", 38, 1),
        ("sine(%a)", 148, 96),
    ],
)
def test_functions_take_what_libtpu_schedules(operation: str, v5e: int, v6e: int) -> None:
    for node, expected in (("TPUv5e", v5e), ("TPUv6e", v6e)):
        found = load(node, f"ROOT %r = {WIDE} {operation}", "f32", WIDE)
        assert found.arithmetic / REGISTERS == pytest.approx(expected)


def test_narrow_numbers_are_widened_once_and_packed_at_the_end() -> None:
    added = load("TPUv5e", f"ROOT %r = {NARROW} add(%a, %b)", "bf16 bf16", NARROW)
    assert added.arithmetic / REGISTERS == pytest.approx(2 + 1 + 0.5)
    twice = f"%s = {NARROW} add(%a, %b)\nROOT %r = {NARROW} multiply(%s, %a)"
    assert load("TPUv5e", twice, "bf16 bf16", NARROW).arithmetic / REGISTERS == pytest.approx(4.5)
    for kinds, result, expected in (("bf16", WIDE, 1), ("f32", NARROW, 0.5)):
        cast = load("TPUv5e", f"ROOT %r = {result} convert(%a)", kinds, result)
        assert cast.arithmetic / REGISTERS == pytest.approx(expected)


def test_reciprocals_are_refined_only_for_wide_results() -> None:
    body = f"%s = {WIDE} convert(%a)\n%d = {WIDE} divide(%s, %s)\n"
    wide = load("TPUv5e", f"{body}ROOT %r = {WIDE} negate(%d)", "bf16", WIDE)
    narrow = load("TPUv5e", f"{body}ROOT %r = {NARROW} convert(%d)", "bf16", NARROW)
    assert wide.arithmetic / REGISTERS == pytest.approx(1 + 14 + 1)
    assert narrow.arithmetic / REGISTERS == pytest.approx(1 + 2 + 0.5)


def test_a_reduction_adds_each_element_and_a_repeated_divisor_is_inverted_once() -> None:
    summed = (
        "%z = f32[] constant(0)\nROOT %r = f32[4096] reduce(%a, %z), dimensions={1}, to_apply=%add"
    )
    found = load("TPUv5e", summed, "f32", "f32[4096]")
    assert found.arithmetic / REGISTERS == pytest.approx(1, rel=1e-3)
    divided = f"""%z = f32[] constant(0)
    %s = f32[4096] reduce(%a, %z), dimensions={{1}}, to_apply=%add
    %w = {WIDE} broadcast(%s), dimensions={{0}}
    ROOT %r = {WIDE} divide(%a, %w)"""
    found = load("TPUv5e", divided, "f32", WIDE)
    assert found.arithmetic / REGISTERS == pytest.approx(2, rel=1e-3)


def test_the_busiest_unit_decides() -> None:
    core = core_of("TPUv5e")
    assert vector_cycles(VectorLoad(arithmetic=40, functions=2), core) == pytest.approx(12)
    assert vector_cycles(VectorLoad(arithmetic=4, functions=20), core) == pytest.approx(24)
    assert vector_cycles(VectorLoad(loads=3, stores=10), core) == pytest.approx(12)


def test_memory_hides_instructions_but_for_a_sine() -> None:
    device = load_device("TPUv5e")
    memory_s = 2 * 4 * 4096**2 / 819e9
    added = vector_timing(leaf(f"ROOT %r = {WIDE} negate(%a)", "f32", WIDE), device)
    assert added is not None
    assert (added.time_s, added.bound.memory_s) == (pytest.approx(memory_s),) * 2
    sine = vector_timing(leaf(f"ROOT %r = {WIDE} sine(%a)", "f32", WIDE), device)
    assert sine is not None
    assert sine.time_s == pytest.approx(1.2 * 148 / 4 * REGISTERS / 1.5e9)
    assert sine.bound.compute_s == sine.time_s
