"""What a step takes in, and the mesh of its devices: from models, from programs, and as stated."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from hespas.errors import ConfigError
from hespas.frontend.load import load_source
from hespas.prediction.checks import checked
from hespas.prediction.options import EstimateOptions, PredictOptions, ProgramOptions, StepOptions
from hespas.prediction.result import StepWork
from hespas.prediction.workload import mesh_of, work_of
from hespas.program.program import GlobalFacts, Program
from hespas.program.types import Type

TEXT = "func.func @main({arguments}) -> tensor<8xf32> {{ return %a : tensor<8xf32> }}"
BLOCK = "examples/attention_block.mlir"
FILE = PredictOptions(program=ProgramOptions(file=Path("pyproject.toml")))


def program(*inputs: str, devices: int = 8) -> Program:
    arguments = ", ".join(["%a: tensor<8xf32>", *(f"%{at}: {x}" for at, x in enumerate(inputs))])
    made = load_source(TEXT.format(arguments=arguments).encode(), name="p.mlir")
    return replace(made, replicas=1, partitions=devices)


def types(*inputs: str) -> tuple[Type, ...]:
    return tuple(value.type for value in program(*inputs).main.body.arguments)


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        ((("data", 2), ("model", 4)), (("data", 2), ("model", 4))),
        ((("data", 2),), ()),
        ((), ()),
    ],
)
def test_a_mesh_names_the_devices_where_it_has_all(
    mesh: tuple[tuple[str, int], ...], expected: tuple[tuple[str, int], ...]
) -> None:
    assert mesh_of(replace(program(), global_facts=GlobalFacts(mesh=mesh)), FILE) == expected


def test_a_model_says_its_mesh_itself() -> None:
    options = PredictOptions(program=ProgramOptions(file=Path("llama3-100m"), devices=8))
    assert mesh_of(program(), options) == (("fsdp", 8),)


def test_tokens_of_several_devices_are_those_of_the_whole_inputs() -> None:
    divided = program("tensor<2x128xi32>")
    assert work_of(divided, FILE) == StepWork()
    whole = GlobalFacts(inputs=types("tensor<16x128xi32>", "tensor<16x128xi32>"))
    assert work_of(replace(divided, global_facts=whole), FILE) == StepWork(
        tokens=2048, samples=16, sample_name="sequences"
    )
    two = GlobalFacts(inputs=types("tensor<16x128xi32>", "tensor<16x64xi32>"))
    assert work_of(replace(divided, global_facts=two), FILE) == StepWork()


def test_what_exported_a_step_says_its_tokens() -> None:
    stated = GlobalFacts(tokens=4096)
    assert work_of(replace(program(), global_facts=stated), FILE) == StepWork(tokens=4096)
    # Where inputs say otherwise, as a padded batch does, the number of sequences is not known.
    padded = replace(stated, inputs=types("tensor<16x512xi32>"))
    assert work_of(replace(program(), global_facts=padded), FILE) == StepWork(tokens=4096)
    full = replace(stated, inputs=types("tensor<8x512xi32>"))
    assert work_of(replace(program(), global_facts=full), FILE) == StepWork(
        tokens=4096, samples=8, sample_name="sequences"
    )


def test_what_the_user_says_goes_before() -> None:
    options = PredictOptions(program=FILE.program, step=StepOptions(tokens=10))
    assert work_of(replace(program(), global_facts=GlobalFacts(tokens=4096)), options).tokens == 10


def test_the_model_needs_6_flops_for_each_parameter_and_token() -> None:
    """J. Kaplan et al., Scaling Laws for Neural Language Models, 2020, section 2.1: C = 6 N B S."""
    step = StepOptions(parameters=8e9)
    options = PredictOptions(program=FILE.program, step=step)
    known = replace(program(), global_facts=GlobalFacts(tokens=4096))
    assert work_of(known, options).model_flops == 6 * 8e9 * 4096
    given = PredictOptions(program=FILE.program, step=StepOptions(parameters=8e9, tokens=10))
    assert work_of(program(), given).model_flops == 6 * 8e9 * 10
    with pytest.raises(ConfigError, match=r"the tokens of a step are not known; give tokens"):
        work_of(program(), options)


def test_flops_that_are_given_go_before_those_of_maxtext() -> None:
    known = replace(program(), global_facts=GlobalFacts(tokens=4096, model_flops=1e15))
    assert work_of(known, FILE).model_flops == 1e15
    options = PredictOptions(program=FILE.program, step=StepOptions(model_flops=2e15))
    assert work_of(known, options).model_flops == 2e15


@pytest.mark.parametrize(
    ("workload", "step", "wrong"),
    [
        ("llama3-100m", StepOptions(parameters=1e8), "whose model FLOPs are known"),
        (BLOCK, StepOptions(parameters=1e8), "peak rates of the device are not known"),
        (BLOCK, StepOptions(model_flops=1e15), "peak rates of the device are not known"),
    ],
)
def test_what_has_no_effect_on_the_mfu_is_refused(
    workload: str, step: StepOptions, wrong: str
) -> None:
    node = "H100_80GB" if workload == "llama3-100m" else None
    options = PredictOptions(
        program=ProgramOptions(file=Path(workload)), step=step, estimate=EstimateOptions(node=node)
    )
    with pytest.raises(ConfigError, match=wrong):
        checked(options)


def test_both_ways_to_count_the_models_flops_are_refused() -> None:
    with pytest.raises(ConfigError, match="parameters has no effect with model_flops"):
        StepOptions(parameters=1e8, model_flops=1e15)
