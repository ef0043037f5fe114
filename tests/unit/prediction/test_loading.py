"""Weights of branches mean the same branch, however a program is priced."""

from __future__ import annotations

from pathlib import Path

import pytest

import hespas
from compilers import needs_gpu
from hespas import predict
from hespas.errors import ConfigError
from hespas.frontend.load import is_false_first
from hespas.prediction.options import Fidelity
from hespas.program.recorded import encode_recorded
from recorded_steps import sharded_layers

SIZE = 1024
MATRIX = f"tensor<{SIZE}x{SIZE}xbf16>"
_TIMES = (
    f"stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : ({MATRIX}, {MATRIX}) -> {MATRIX}"
)
_MULTIPLIES = f"{{ %m = {_TIMES} stablehlo.return %m : {MATRIX} }}"
_ADDS = f"{{ %s = stablehlo.add %x, %x : {MATRIX} stablehlo.return %s : {MATRIX} }}"
_AS_NUMBER = "%i = stablehlo.convert %p : (tensor<i1>) -> tensor<i32>"
CASE = (
    f'{_AS_NUMBER} %r = "stablehlo.case"(%i) ({_ADDS}, {_MULTIPLIES}) : (tensor<i32>) -> {MATRIX}'
)
IF = f'%r = "stablehlo.if"(%p) ({_MULTIPLIES}, {_ADDS}) : (tensor<i1>) -> {MATRIX}'
FLOPS = 2 * SIZE**3
"""Of the product; the other branch has one for each element."""


def source_of(branch: str) -> bytes:
    head = f"func.func @main(%p: tensor<i1>, %x: {MATRIX}) -> {MATRIX}"
    return f"{head} {{ {branch} return %r : {MATRIX} }}".encode()


FIDELITIES = [Fidelity.EXPORTED, Fidelity.FUSED, pytest.param(Fidelity.COMPILED, marks=needs_gpu)]


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize(("branch", "multiplies"), [(CASE, (0.0, 1.0)), (IF, (1.0, 0.0))])
def test_weights_mean_the_same_branch_compiled_and_not(
    branch: str, multiplies: tuple[float, float], fidelity: Fidelity, tmp_path: Path
) -> None:
    file = tmp_path / "step.mlir"
    file.write_bytes(source_of(branch))
    for weights, flops in ((multiplies, FLOPS), (multiplies[::-1], SIZE**2)):
        step = hespas.predict(
            str(file), "H100_80GB", fidelity=fidelity.value, branch_weights={"": weights}
        )
        # bf16 is added in f32, with conversions.
        assert flops <= step.estimates.total.total.flops <= 4 * flops


def test_a_program_with_both_kinds_of_branches_is_refused() -> None:
    assert is_false_first(source_of(CASE), name="a.mlir")
    assert not is_false_first(source_of(IF), name="a.mlir")
    both = source_of(CASE.replace("%r", "%q") + IF)
    with pytest.raises(ConfigError, match="has both"):
        is_false_first(both, name="a.mlir")


def test_launches_of_a_recorded_step_are_as_the_options_say(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    file.write_bytes(encode_recorded(sharded_layers()))
    cluster = "8xH100_80GB"
    usual = predict(file, cluster=cluster, host_launch_s=1e-3)
    graphs = predict(file, cluster=cluster, cuda_graphs=True)
    assert usual.launch_wait_s > 10 * graphs.launch_wait_s == 0
    assert any(each.startswith("host launches: ") for each in graphs.assumptions)
    with pytest.raises(ConfigError, match=r"host_launch.* no recorded step of PyTorch"):
        predict("examples/attention_block.mlir", cluster="4xA100_SXM_40GB", host_launch_s=1e-3)


@pytest.mark.parametrize(
    ("part", "kind"), [("MI300X", "f8E4M3FNUZ"), ("MI355X", "f8E4M3FN"), ("TPUv6e", "bf16")]
)
def test_a_model_has_the_floats_of_8_bits_that_its_device_multiplies(part: str, kind: str) -> None:
    settings = {"layers": "1", "product_dtype": "f8", "embedding": "4096"}
    answer = predict(
        "llama3-100m", cluster=f"1x{part}", mesh="fsdp=1", batch=1, sequence=512, settings=settings
    )
    noted = [text for text in answer.assumptions if f"{part} multiplies" in text]
    assert len(noted) == (part == "MI300X")
    rated = [text for text in answer.assumptions if "names no rate of f8E4M3FN" in text]
    assert len(rated) == (part == "TPUv6e")
    assert kind == "bf16" or any(f"products of {kind} " in text for text in answer.assumptions)
