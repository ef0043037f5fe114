"""Answers state how far predictions of published steps like theirs were off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hespas
from hespas.frontend.load import load_per_device
from hespas.prediction.figures.expected import expected_error
from hespas.prediction.figures.schema import ExpectedError
from hespas.program.recorded import encode_recorded
from recorded_steps import Recorder

ROOT = Path(__file__).resolve().parents[4]
STEP_S = 2.0
BLOCK = str(ROOT / "examples" / "attention_block.mlir")


def stated(workload: str, cluster: str, fidelity: str = "fused") -> ExpectedError:
    return expected_error(hespas.predict(workload, cluster=cluster, fidelity=fidelity), STEP_S)


def test_a_step_on_gpus_has_the_error_of_steps_on_gpus() -> None:
    expected = stated("llama3-100m", "4xA100_SXM_40GB")
    assert expected.mean_absolute is not None
    assert expected.least is not None
    assert expected.most is not None
    assert 0 < expected.mean_absolute < max(-expected.least, expected.most)
    assert expected.modelled is not None
    assert "steps of XLA on" in expected.text
    assert "none on" not in expected.text
    assert "(none on B200_180GB)" in stated("llama3-100m", "4xB200_180GB").text


@pytest.mark.parametrize("part", ["H100_96GB", "GH200_96GB", "L40S_48GB"])
def test_a_gpu_that_no_compiler_describes_has_the_error_of_gpus(part: str) -> None:
    assert f"(none on {part})" in stated("llama3-100m", f"4x{part}").text


def test_kernels_of_libraries_have_errors_of_their_own_and_more_with_experts() -> None:
    dense = stated("llama3-100m", "4xH100_80GB", "library")
    assert dense.modelled is None
    assert "PyTorch on" in dense.text
    experts = stated("Qwen/Qwen3-30B-A3B", "8xH100_80GB", "library")
    assert "with experts" in experts.text


def test_eight_of_ten_steps_lie_in_a_range() -> None:
    expected = stated("llama3-100m", "4xH100_80GB", "library")
    assert expected.median is not None
    assert expected.likely_from_s is not None
    assert expected.likely_to_s is not None
    assert expected.likely_from_s < STEP_S / (1 + expected.median) < expected.likely_to_s
    assert stated("llama3-8b:prefill", "8xH100_80GB").likely_from_s is None


def test_a_token_has_the_errors_of_engines() -> None:
    token = stated("llama3-8b:decode", "8xH100_80GB", "library")
    assert "medians of the times between tokens" in token.text
    assert stated("llama3-8b:prefill", "8xH100_80GB", "library").text.startswith("not known")
    assert stated("llama3-8b:decode", "8xMI300X", "library").text.startswith("not known")


@pytest.mark.parametrize(
    ("workload", "cluster", "fidelity"),
    [
        ("llama3-8b:decode", "8xH100_80GB", "fused"),
        (BLOCK, "4xMI300X", "fused"),
        (BLOCK, "4xTPUv5e", "fused"),
        (BLOCK, "4xH100_80GB", "exported"),
    ],
)
def test_what_nothing_is_published_of_is_not_known(
    workload: str, cluster: str, fidelity: str
) -> None:
    expected = stated(workload, cluster, fidelity)
    assert expected.text.startswith("not known")
    assert expected.mean_absolute is None
    assert expected.modelled is None


def test_errors_are_those_of_the_recorded_tables(tmp_path: Path) -> None:
    """The file is made, and never written by hand."""
    code = f"import json, expected_errors as e; open({str(tmp_path / 'made')!r}, 'wb').write("
    code += "e.json_bytes(e.errors()))"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT / "validation")
    kept = ROOT / "src" / "hespas" / "configs" / "published" / "errors.json"
    assert (tmp_path / "made").read_bytes() == kept.read_bytes()


def test_a_recorded_step_with_attention_has_the_error_of_recorded_ones() -> None:
    assert "recorded for 8 to 64 GPUs" in recorded(attentions=20, additions=0).text


def test_a_recorded_step_unlike_the_published_ones_has_no_error() -> None:
    assert recorded(attentions=0, additions=1).text.startswith("not known")
    # So small ones wait for the host to launch them.
    assert recorded(attentions=1, additions=200).text.startswith("not known")
    assert recorded(attentions=20, additions=0, chosen=8).text.startswith("not known")
    # As those of diffusion models.
    images = recorded(attentions=20, additions=0, convolutions=4)
    assert images.text.startswith("not known")
    assert not recorded(attentions=40, additions=0, convolutions=1).text.startswith("not known")


def recorded(
    *, attentions: int, additions: int, chosen: int = 0, convolutions: int = 0
) -> ExpectedError:
    """Return what is stated of a recorded step with attention, a product and small additions.

    The step chooses ``chosen`` experts for each row, if that is not 0.
    """
    step = Recorder(world_size=1)
    query, small = step.tensor(8, 8, 4096, 128), step.tensor(64, 64)
    statistics = step.tensor(8, 8, 4096, dtype="float32")
    kernel = "aten::_scaled_dot_product_flash_attention.default"
    for _ in range(attentions):
        step.operation(kernel, (query, query, query), query, statistics, is_causal=True)
    if chosen:
        step.operation("aten::topk.default", (small,), step.tensor(64, chosen), k=chosen)
    image, window = step.tensor(64, 256, 64, 64), step.tensor(256, 256, 3, 3)
    for _ in range(convolutions):
        step.operation("aten::convolution.default", (image, window), image, padding=1)
    step.phase = "backward"
    step.product(step.tensor(512, 512), step.tensor(512, 512))
    for _ in range(additions):
        step.operation("aten::add.Tensor", (small, small), small)
    program = load_per_device(encode_recorded(step.step()), name="step.json").program
    return expected_error(hespas.predict(program, cluster="1xH100_80GB"), STEP_S)
