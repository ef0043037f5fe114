"""Rounding by a scale of the whole takes a pass for the largest number before it."""

from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.hardware.presets import load_device
from hespas.lower.fused import Writer, fused
from hespas.lower.library import SCALES_ASSUMPTION
from hespas.models.software import software_named
from hespas.program.program import Op, Program
from hespas.work.expand import expand, total
from programs import main_function

WIDE, SMALL = "tensor<512x4096xbf16>", "tensor<512x4096xf8E4M3FN>"
COUNT = 512 * 4096
SCALED = f"""%scale = stablehlo.constant dense<2.0> : {WIDE}
    %least = stablehlo.constant dense<-448.0> : {WIDE}
    %most = stablehlo.constant dense<448.0> : {WIDE}
    %divided = stablehlo.divide %v, %scale : {WIDE}
    %above = stablehlo.maximum %divided, %least : {WIDE}
    %within = stablehlo.minimum %above, %most : {WIDE}
    %small = stablehlo.convert %within : ({WIDE}) -> {SMALL}"""
CAST = SCALED.replace("%v", "%x") + f"\n    return %small : {SMALL}"
ACTIVATION = f"""%v = stablehlo.tanh %x : {WIDE}
    {SCALED}
    %again = stablehlo.negate %v : {WIDE}
    return %small, %again : {SMALL}, {WIDE}"""


def made(body: str, results: str, *, scales_tensors: bool) -> Program:
    text = main_function(body, arguments=f"%x: {WIDE}", results=results)
    return fused(
        load_source(text.encode(), name="test.mlir"),
        writer=Writer.LIBRARY,
        device=load_device("H100_80GB"),
        scales_tensors=scales_tensors,
    )


def bytes_of(program: Program) -> list[int]:
    kernels: list[Op] = [op for op in program.main.body.operations if op.kind == "fusion"]
    return [total(expand(op)).bytes_moved for op in kernels]


def test_a_tensor_in_memory_is_read_once_more_before_it_is_rounded() -> None:
    assert bytes_of(made(CAST, SMALL, scales_tensors=False)) == [(2 + 1) * COUNT]
    program = made(CAST, SMALL, scales_tensors=True)
    assert bytes_of(program) == [2 * COUNT + 2, (2 + 1) * COUNT]
    assert SCALES_ASSUMPTION in program.assumptions


def test_what_makes_a_tensor_writes_it_and_another_kernel_rounds_it() -> None:
    results = f"{SMALL}, {WIDE}"
    together = made(ACTIVATION, results, scales_tensors=False)
    assert bytes_of(together) == [(2 + 1 + 2) * COUNT]
    assert SCALES_ASSUMPTION not in together.assumptions
    apart = made(ACTIVATION, results, scales_tensors=True)
    assert bytes_of(apart) == [(2 + 2 + 2) * COUNT, (2 + 1) * COUNT]


@pytest.mark.parametrize(
    ("software", "type_name", "is_hopper", "is_scaled"),
    [
        ("torchtitan", "f8", False, True),
        ("megatron", "f8", True, True),
        ("megatron", "f8", False, False),
        ("megatron", "f4", False, True),
        ("llm-foundry-2023", "f8", True, False),
        ("torchtitan", "same", True, False),
    ],
)
def test_the_framework_and_the_part_decide(
    software: str, type_name: str, is_hopper: bool, is_scaled: bool
) -> None:
    found = software_named(software).scales_tensors([type_name], is_hopper=is_hopper)
    assert found is is_scaled
