"""Which fidelity a program has where none is asked for, and why it is not compiled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from hespas.compile import compiler
from hespas.compile.options import CompileOptions, Matmuls
from hespas.errors import ConfigError, ExtraMissingError, ToolError, UnsupportedError
from hespas.frontend.load import load_source
from hespas.frontend.overrides import Loaded, UsedOverrides
from hespas.hardware.device import Device
from hespas.hardware.presets import load_device
from hespas.prediction import fidelity, loading
from hespas.prediction.fidelity import WITHOUT_COMPILER, planned
from hespas.prediction.options import (
    AS_GIVEN,
    CompileChoice,
    EstimateOptions,
    Fidelity,
    PredictOptions,
    ProgramOptions,
)
from hespas.split.options import SplitOptions, SplitStrategy

NODE = EstimateOptions(node="H100_80GB")
HLO = b"HloModule step, is_scheduled=true"
SOURCE = b"""func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
  %r = stablehlo.add %a, %a : tensor<8xf32>
  return %r : tensor<8xf32>
}"""
BARE = Device(name="mine", peak_flops=1e12, memory_bandwidth_bytes_per_s=1e12)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: str) -> str:
        return ""

    monkeypatch.setattr(fidelity, "why_not_compiled", nothing)


def options(
    *,
    estimate: EstimateOptions = NODE,
    program: ProgramOptions | None = None,
    split: SplitOptions | None = None,
    compiled: CompileChoice | None = None,
) -> PredictOptions:
    return PredictOptions(
        program=program or ProgramOptions(file=Path("step.mlir")),
        estimate=estimate,
        split=split or SplitOptions(),
        compile=compiled or CompileChoice(),
    )


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("node", ["H100_SXM_80GB", "TPUv5e", load_device("H100_80GB")])
def test_a_node_whose_compiler_is_installed_is_compiled_for(node: Device | str) -> None:
    plan = planned(SOURCE, options(estimate=EstimateOptions(node=node)))
    assert plan.fidelity is Fidelity.COMPILED
    assert plan.node == (node if isinstance(node, str) else node.name)
    assert plan.may_fall_back
    assert not plan.note


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("estimate", "why"),
    [
        (EstimateOptions(), "no node is given"),
        (EstimateOptions(node=BARE), "its node is no preset"),
        (EstimateOptions(peak_flops=1e12, memory_bandwidth=1e12), "its node is no preset"),
    ],
)
def test_what_names_no_part_is_not_compiled_for(estimate: EstimateOptions, why: str) -> None:
    plan = planned(SOURCE, options(estimate=estimate))
    assert plan.fidelity is WITHOUT_COMPILER
    assert plan.note == f"the program is not compiled first: {why}"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("split", "name"),
    [
        (SplitOptions(merge=True), "merge"),
        (SplitOptions(strategy=SplitStrategy.INDIVIDUAL), "split_fn"),
        (SplitOptions(separator="stablehlo.dot_general"), "separator"),
    ],
)
def test_options_that_divide_operations_have_their_effect(split: SplitOptions, name: str) -> None:
    plan = planned(SOURCE, options(split=split))
    assert plan.fidelity is Fidelity.EXPORTED
    assert f"{name} divides its operations as they are exported" in plan.note


@pytest.mark.usefixtures("installed")
def test_methods_that_run_operations_get_them_as_exported() -> None:
    plan = planned(SOURCE, options(estimate=EstimateOptions(method="xla")))
    assert plan.fidelity is Fidelity.EXPORTED
    assert "method xla runs its operations" in plan.note
    estimate = EstimateOptions(node="H100_80GB", method="roofline")
    assert planned(SOURCE, options(estimate=estimate)).fidelity is Fidelity.COMPILED


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("counts", "chosen"),
    [
        ({"17": 3}, WITHOUT_COMPILER),
        ({"": 3}, Fidelity.COMPILED),
        ({"while.3": 3}, Fidelity.COMPILED),
    ],
)
def test_lines_are_those_of_the_program_as_exported(
    counts: Mapping[str, int], chosen: Fidelity
) -> None:
    program = ProgramOptions(file=Path("step.mlir"), trip_counts=counts)
    assert planned(SOURCE, options(program=program)).fidelity is chosen


def test_nodes_that_no_compiler_knows_say_so() -> None:
    note = planned(SOURCE, options(estimate=EstimateOptions(node="MI300X"))).note
    assert "no compiler at hand has a description of AMD Instinct MI300X" in note


def test_a_missing_compiler_is_named() -> None:
    for node, extra in (("H100_80GB", "gpu"), ("TPUv5e", "tpu")):
        plan = planned(SOURCE, options(estimate=EstimateOptions(node=node)))
        assert plan.fidelity is WITHOUT_COMPILER
        assert f"pip install 'hespas[{extra}]'" in plan.note


def test_options_of_the_compiler_ask_for_it() -> None:
    compiled = CompileChoice(options=CompileOptions(matmuls=Matmuls.TRITON))
    plan = planned(SOURCE, options(compiled=compiled))
    assert (plan.fidelity, plan.may_fall_back) == (Fidelity.COMPILED, False)
    for fixed in (Fidelity.FUSED, Fidelity.LIBRARY, Fidelity.EXPORTED):
        choice = CompileChoice(fidelity=fixed, options=CompileOptions(matmuls=Matmuls.TRITON))
        with pytest.raises(ConfigError, match="matmuls has no effect on fidelity"):
            planned(SOURCE, options(compiled=choice))


def test_libraries_combine_no_collectives() -> None:
    for fixed, is_taken in ((Fidelity.FUSED, True), (Fidelity.LIBRARY, False)):
        combined = CompileOptions(all_reduce_combine_bytes=1)
        choice = options(compiled=CompileChoice(fidelity=fixed, options=combined))
        if is_taken:
            assert planned(SOURCE, choice).fidelity is fixed
            continue
        with pytest.raises(ConfigError, match="all_reduce_combine has no effect on fidelity"):
            planned(SOURCE, choice)


def test_libraries_are_those_of_gpus() -> None:
    choice = CompileChoice(fidelity=Fidelity.LIBRARY)
    given = options(compiled=choice, estimate=EstimateOptions(node="TPUv5e"))
    with pytest.raises(ConfigError, match="fidelity library needs a GPU, and the node is a TPU"):
        loading.load(given, source=SOURCE)
    on_gpu = options(compiled=choice, estimate=EstimateOptions(node="H100_80GB"))
    assert loading.load(on_gpu, source=SOURCE).fidelity == "library"


def test_hlo_is_taken_as_it_is() -> None:
    for asked in (None, Fidelity.AUTO, Fidelity.COMPILED):
        plan = planned(HLO, options(compiled=CompileChoice(fidelity=asked)))
        assert plan.fidelity is None
        assert not plan.note


def test_a_program_is_taken_as_given_where_nothing_else_is_wanted() -> None:
    assert planned(SOURCE, options(compiled=AS_GIVEN)).fidelity is None


def test_contradicting_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="as_exported has no effect with fidelity"):
        CompileChoice(as_exported=True, fidelity=Fidelity.COMPILED)
    with pytest.raises(ConfigError, match="optimise has no effect with as_exported"):
        CompileChoice(as_exported=True, optimise=True)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("error", [UnsupportedError("a call of mine"), ToolError("it crashed")])
def test_a_program_that_the_compiler_refuses_falls_back_with_a_note(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object) -> Loaded:
        raise error

    def possible(*_: object, **__: object) -> None:
        return None

    monkeypatch.setattr(compiler, "check_compilation", possible)
    monkeypatch.setattr(loading, "_compiled", refuse)
    program = loading.load(options(), source=SOURCE)
    assert program.fidelity == WITHOUT_COMPILER.value
    assert any(f"not compiled first: {error}" in text for text in program.assumptions)
    asked = CompileChoice(fidelity=Fidelity.COMPILED)
    with pytest.raises(type(error)):
        loading.load(options(compiled=asked), source=SOURCE)


@pytest.mark.usefixtures("installed")
def test_a_program_that_compiles_is_what_the_compiler_made(monkeypatch: pytest.MonkeyPatch) -> None:
    hlo = b"""HloModule step, is_scheduled=true

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %r = f32[8]{0} add(%a, %a)
}
"""
    made = Loaded(program=load_source(hlo, name="step.mlir"), used=UsedOverrides())

    def compile_it(*_: object) -> Loaded:
        return made

    monkeypatch.setattr(loading, "_compiled", compile_it)
    assert loading.load(options(), source=SOURCE).fidelity == "compiled"


def test_asking_for_a_compiler_that_is_not_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*_: object) -> Loaded:
        raise ExtraMissingError("compiling", extra="gpu")

    monkeypatch.setattr(loading, "_compiled", missing)
    asked = CompileChoice(fidelity=Fidelity.COMPILED)
    with pytest.raises(ExtraMissingError, match=r"hespas\[gpu\]"):
        loading.load(options(compiled=asked), source=SOURCE)
