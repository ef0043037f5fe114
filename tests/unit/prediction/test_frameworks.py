"""A run of Megatron-LM as options of a prediction."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import ConfigError, DeviceCountError
from hespas.models.model import parse_mesh
from hespas.prediction.figures.step import run_report
from hespas.prediction.frameworks import with_framework
from hespas.prediction.options import (
    CompileChoice,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.prediction.staged import predict_pipeline
from hespas.sources.options import ModelOptions

ARGUMENTS = """
--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --vocab-size 1000
--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
--attention-dropout 0.0 --hidden-dropout 0.0 --bf16
--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel
--num-layers-per-virtual-pipeline-stage 1 --micro-batch-size 1 --global-batch-size 8
--use-distributed-optimizer --overlap-grad-reduce --tp-comm-overlap
"""


def options(directory: Path, cluster: str | None = "8xH100_80GB", *, more: str = "",
            model: ModelOptions | None = None) -> PredictOptions:  # fmt: skip
    path = directory / f"args{abs(hash(more))}.sh"
    path.write_text(ARGUMENTS + more)
    return PredictOptions(
        program=ProgramOptions(file=Path(f"megatron:{path}"), model=model or ModelOptions()),
        network=NetworkOptions(cluster=cluster),
    )


def test_the_arguments_become_options(tmp_path: Path) -> None:
    made = with_framework(options(tmp_path))
    assert made.program.model.mesh == parse_mesh("pipe=2,fsdp=2,tp=2")
    assert made.program.model.global_batch == 8
    assert made.program.model.settings == {"sequence_parallel": "true"}
    assert made.pipeline.schedule == "interleaved:2"
    assert made.pipeline.overlap["tp"]
    assert not made.pipeline.overlap["parameters"]
    assert made.compile.requested is Fidelity.LIBRARY
    assert made.is_pipeline


def test_experts_have_products_in_8_bits_and_devices_of_tensor_parallelism(tmp_path: Path) -> None:
    more = (
        "--num-experts 8 --moe-token-dispatcher-type flex --expert-model-parallel-size 4 "
        "--expert-tensor-parallel-size 1 "
        "--fp8-format hybrid --grad-reduce-in-bf16"
    )
    made = with_framework(options(tmp_path, more=more))
    assert made.program.model.mesh == parse_mesh("pipe=2,expert=2,tp=2")
    assert made.program.model.settings == {
        "sequence_parallel": "true",
        "product_dtype": "f8",
        "expert_product_dtype": "f8",
        "gradient_dtype": "bf16",
        "expert_axes": "expert+tp",
    }


def test_layers_of_stages_come_from_the_file(tmp_path: Path) -> None:
    more = "--num-layers 6 --decoder-first-pipeline-num-layers 2"
    text = ARGUMENTS.replace("--num-layers 4", "").replace(
        "--num-layers-per-virtual-pipeline-stage 1", ""
    )
    (tmp_path / "uneven.sh").write_text(text + more)
    file = Path(f"megatron:{tmp_path / 'uneven.sh'}")
    given = options(tmp_path)
    made = with_framework(PredictOptions(program=ProgramOptions(file=file), network=given.network))
    assert made.pipeline.stage_layers == (2, 4)


def test_a_step_with_experts_over_tensor_parallel_devices_is_predicted(tmp_path: Path) -> None:
    """Whole experts exchange tokens, where divided ones would sum what they make over tp."""
    more = (
        "--num-experts 8 --expert-model-parallel-size 4 --moe-ffn-hidden-size 256 "
        "--moe-token-dispatcher-type flex "
    )
    divided, whole = (
        predict_pipeline(
            with_framework(options(tmp_path, cluster="16xH100_80GB", more=more + last))
        )
        for last in ("", "--expert-tensor-parallel-size 1")
    )
    half, held = (
        [cost.footprint.expert_bytes for cost in made.costs.values()] for made in (divided, whole)
    )
    assert 0 not in half
    assert held == [2 * size for size in half]
    rows = run_report(whole).communication
    assert {row.axis for row in rows if row.kind == "all_to_all"} == {"expert+tp"}


def test_options_beside_the_file_stand(tmp_path: Path) -> None:
    model = ModelOptions(mesh=parse_mesh("pipe=4,tp=2"), sequence=256)
    made = with_framework(options(tmp_path, model=model))
    assert made.program.model.mesh == parse_mesh("pipe=4,tp=2")
    assert made.program.model.sequence == 256


def test_states_that_are_not_divided_lie_on_all_data_parallel_devices(tmp_path: Path) -> None:
    text = ARGUMENTS.replace("--use-distributed-optimizer", "")
    (tmp_path / "plain.sh").write_text(text)
    given = options(tmp_path)
    file = Path(f"megatron:{tmp_path / 'plain.sh'}")
    made = with_framework(PredictOptions(program=ProgramOptions(file=file), network=given.network))
    assert made.program.model.mesh == parse_mesh("pipe=2,data=2,tp=2")


def test_a_run_needs_a_cluster_that_its_layout_divides(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="on a cluster"):
        with_framework(options(tmp_path, None))
    with pytest.raises(DeviceCountError, match="tensor x pipeline x context = 4"):
        with_framework(options(tmp_path, "6xH100_80GB"))
    experts = "--num-experts 8 --expert-model-parallel-size 4 --moe-token-dispatcher-type flex"
    with pytest.raises(ConfigError, match=r"not divided by experts over 4; give .* multiple of 16"):
        with_framework(options(tmp_path, more=experts))


def test_a_run_without_a_global_batch_has_one_micro_batch_a_part(tmp_path: Path) -> None:
    text = ARGUMENTS.replace("--global-batch-size 8", "").replace(
        "--micro-batch-size 1", "--micro-batch-size 2"
    )
    assert text.count("batch-size") == 1
    (tmp_path / "batch.sh").write_text(text)
    given = options(tmp_path)
    file = Path(f"megatron:{tmp_path / 'batch.sh'}")
    made = with_framework(PredictOptions(program=ProgramOptions(file=file), network=given.network))
    assert (made.program.model.batch, made.program.model.micro_batch) == (2, 2)


def test_a_run_without_a_length_is_refused(tmp_path: Path) -> None:
    text = "".join(ARGUMENTS.split("--seq-length 512"))
    (tmp_path / "length.sh").write_text(text)
    given = options(tmp_path)
    file = Path(f"megatron:{tmp_path / 'length.sh'}")
    with pytest.raises(ConfigError, match="seq_length is missing; add it, or give"):
        with_framework(PredictOptions(program=ProgramOptions(file=file), network=given.network))


def test_a_run_is_predicted(tmp_path: Path) -> None:
    predicted = predict_pipeline(with_framework(options(tmp_path)))
    assert predicted.fidelity == "library"
    assert predicted.step_time_s > 0
    assert predicted.cut.schedule.chunks == 2


def with_software(fidelity: Fidelity) -> PredictOptions:
    return PredictOptions(
        program=ProgramOptions(file=Path("llama3-8b"), model=ModelOptions(software="megatron")),
        network=NetworkOptions(cluster="8xH100_80GB"),
        compile=CompileChoice(fidelity=fidelity),
    )


def test_a_framework_s_name_means_kernels_of_libraries() -> None:
    assert with_framework(with_software(Fidelity.AUTO)).compile.requested is Fidelity.LIBRARY
    assert with_framework(PredictOptions()).compile.requested is Fidelity.AUTO


@pytest.mark.parametrize("fidelity", [Fidelity.FUSED, Fidelity.COMPILED, Fidelity.EXPORTED])
def test_no_compiler_makes_kernels_of_a_framework(fidelity: Fidelity) -> None:
    with pytest.raises(ConfigError, match="names kernels of libraries"):
        with_framework(with_software(fidelity))
