"""What loops read in another layout is copied before them, once."""

from __future__ import annotations

from functools import cache

import pytest

import hespas
from hespas.program.program import Block, Op, Program

LAYERS = 4


@cache
def program(accumulation: int = 1, model: str = "llama3-100m") -> Program:
    """Return a model whose weights of one kind are divided along their fastest dimension."""
    return hespas.predict(
        model,
        mesh="fsdp=4",
        cluster="4xH100_80GB",
        scan=True,
        batch=accumulation,
        settings={"layers": str(LAYERS), "accumulation": str(accumulation)},
        fidelity="fused",
    ).graph.program


def copies_of_stacks(block: Block) -> list[str]:
    """Return the types of stacks of weights that are copied, the layers in the slowest place."""
    return [
        str(op.results[0].type)
        for op in block.operations
        if op.kind == "fusion" and "copy" in op.instruction
        if str(op.results[0].type).startswith(f"tensor<{LAYERS}x")
        and "order" in str(op.results[0].type)
    ]


def loops(block: Block) -> list[Op]:
    return [op for op in block.operations if op.kind == "while"]


def test_both_passes_share_a_copy_of_all_layers() -> None:
    main = program().main.body
    assert len(copies_of_stacks(main)) == 2  # what attention and what the MLP gives
    for stack in copies_of_stacks(main):
        readers = [op for op in loops(main) if stack in [str(v.type) for v in op.operands]]
        assert len(readers) == 2


def test_weights_in_f32_are_copied_as_they_are() -> None:
    """They are converted in each turn, before they are gathered."""
    main = program(model="mistral-7b").main.body
    stacks = copies_of_stacks(main)
    assert len(stacks) == 2
    assert all("xf32" in stack for stack in stacks)
    for stack in stacks:
        readers = [op for op in loops(main) if stack in [str(v.type) for v in op.operands]]
        assert len(readers) == 2


@pytest.mark.parametrize("model", ["llama3-100m", "mistral-7b"])
def test_no_turn_copies_a_layer_before_it_is_gathered(model: str) -> None:
    for each in loops(program(model=model).main.body):
        operations = each.regions[-1].operations
        made_by = {value: op for op in operations for value in op.results}
        gathered = [
            made_by[op.operands[0]]
            for op in operations
            if op.kind == "async_start" and op.regions[0].operations[0].kind == "all_gather"
            if op.operands[0] in made_by
        ]
        assert gathered
        assert not [op.instruction for op in gathered if "copy" in op.instruction]


def test_the_copy_stands_before_the_outermost_loop() -> None:
    main = program(3).main.body
    assert len(copies_of_stacks(main)) == 2
    (outer,) = [op for op in loops(main) if loops(op.regions[-1])]
    assert not copies_of_stacks(outer.regions[-1])
