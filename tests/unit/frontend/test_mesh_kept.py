"""What a sharded program is divided to still names the axes of its mesh."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hespas.frontend.load import load_per_device
from hespas.frontend.mesh import (
    global_facts_of_source,
    mesh_in_attributes,
    with_mesh,
    with_step,
)
from hespas.program.program import GlobalFacts
from hespas.xla.hlo.module import read_hlo_module
from hespas.xla.hlo.schema import message_class

AXES = (("fsdp", 2), ("tp", 4))
ATTRIBUTES = (
    "module {",
    "module @step {",
    'module @"a step" {',
    "module @step attributes {mhlo.num_partitions = 8 : i32} {",
    'module @step attributes {mhlo.frontend_attributes = {other = "x"}} {',
    '#loc = loc("module")\nmodule @step {',
)
MAIN = """
  func.func public @main(%a: tensor<8xf32>) -> tensor<8xf32> {
    return %a : tensor<8xf32>
  }
}
"""
HLO = """HloModule step{}

ENTRY %main (a: f32[8]) -> f32[8] {{
  ROOT %a = f32[8] parameter(0)
}}
"""


@pytest.mark.parametrize("head", ATTRIBUTES)
def test_stablehlo_keeps_its_mesh(head: str) -> None:
    program = f"{head}{MAIN}".encode()
    assert global_facts_of_source(program, name="step.mlir").mesh == ()
    marked = with_mesh(program, AXES)
    assert global_facts_of_source(marked, name="step.mlir").mesh == AXES
    assert load_per_device(marked, name="step.mlir").program.global_facts.mesh == AXES
    assert b'other = "x"' not in program or b'other = "x"' in marked


@pytest.mark.parametrize(
    "more", ["", ", is_scheduled=true", ', frontend_attributes={hespas_target="sm_90"}']
)
def test_hlo_text_keeps_its_mesh(more: str) -> None:
    marked = with_mesh(HLO.format(more).encode(), AXES)
    assert global_facts_of_source(marked, name="step.hlo").mesh == AXES
    attributes = read_hlo_module(marked, name="step.hlo").message.frontend_attributes.map
    assert len(attributes) == 1 + ("hespas_target" in more)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_proto_keeps_its_mesh(*, is_whole: bool) -> None:
    module = read_hlo_module(HLO.format("").encode(), name="step.hlo").message
    module.frontend_attributes.map["other"] = "x"
    message = module
    if is_whole:
        message = message_class("xla.HloProto")()
        message.hlo_module.CopyFrom(module)
    marked = with_mesh(message.SerializeToString(), AXES)
    assert global_facts_of_source(marked, name="step.pb").mesh == AXES
    attributes = read_hlo_module(marked, name="step.pb").message.frontend_attributes.map
    assert dict(attributes) == {"other": "x", "hespas.mesh": "fsdp=2,tp=4"}
    assert len(load_per_device(marked, name="step.pb").program.main.body.arguments) == 1


@pytest.mark.parametrize("axes", [(), (("a b", 2),), (('"', 2),), (("a,b", 2),)])
def test_what_cannot_be_written_is_left_out(axes: tuple[tuple[str, int], ...]) -> None:
    program = f"module {{{MAIN}".encode()
    assert with_mesh(program, axes) == program


def test_bytecode_is_left_as_it_is() -> None:
    assert with_mesh(b"ML\xefR\x00", AXES) == b"ML\xefR\x00"


@pytest.mark.parametrize("text", ["", "{}", '{hespas.mesh = "x"}', '{hespas.mesh = "x=y"}'])
def test_what_keeps_no_mesh(text: str) -> None:
    assert mesh_in_attributes(text) == ()


STEP = GlobalFacts(tokens=4096, samples=2, sample_name="sequences", model_flops=2.5e15)


@pytest.mark.parametrize("facts", [STEP, GlobalFacts(samples=64, sample_name="images")])
def test_programs_keep_what_their_step_takes_and_needs(facts: GlobalFacts) -> None:
    program, text = f"module {{{MAIN}".encode(), HLO.format("").encode()
    for source, name in ((program, "step.mlir"), (text, "step.hlo")):
        marked = with_step(with_mesh(source, AXES), facts)
        assert global_facts_of_source(marked, name=name) == replace(facts, mesh=AXES)
        assert with_step(marked, STEP) == marked
    assert with_step(program, GlobalFacts()) == program
