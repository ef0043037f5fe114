"""Lines of PyTorch's table: what each is predicted with, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import MeasurementError
from hespas.evidence.validate.measurements import Row
from hespas.evidence.validate.pytorch import PYTORCH_TABLE, read_pytorch_rows
from hespas.models.catalogue import model_named
from hespas.models.model import parse_mesh

HEAD = PYTORCH_TABLE.read_text().splitlines()[0].split(",")
TITAN = {
    "source": "pytorch/torchtitan@b5bcd76 benchmarks/llama3_h100_202412_torchtitan.md",
    "framework": "torchtitan",
    "model": "llama3.1-8b",
    "hardware": "H100 SXM 96GB HBM2e 2.4TB/s 500W",
    "devices": "8",
    "sharding": "fsdp=8",
    "global_batch": "16",
    "sequence": "8192",
    "recompute": "selective AC",
    "tokens_per_s_per_device": "4096",
}
BRIDGE = {
    "source": "Megatron-Bridge (NeMo container 26.04; Pre-Training)",
    "framework": "Megatron-Bridge",
    "model": "LLAMA3.1_405B",
    "hardware": "DGX-H100",
    "devices": "1024",
    "tp": "8",
    "pp": "8",
    "cp": "2",
    "dp": "8",
    "ep": "n/a",
    "global_batch": "1536",
    "micro_batch": "1",
    "sequence": "8192",
    "precision": "FP8",
    "step_time_s": "37.5",
    "note": "vp=8",
}


def rows(directory: Path, *lines: dict[str, str]) -> tuple[Row, ...]:
    path = directory / "steps.csv"
    texts = [",".join(line.get(name, "") for name in HEAD) for line in lines]
    path.write_text("\n".join([",".join(HEAD), *texts]) + "\n")
    return read_pytorch_rows(path)


def test_every_packaged_row_is_mapped_or_says_why() -> None:
    packaged = read_pytorch_rows()
    assert len(packaged) == 123
    for row in packaged:
        assert row.source
        assert row.framework_year in {2023, 2024, 2025, 2026}
        assert bool(row.missing) != bool(row.options)
        if row.options:
            mesh = parse_mesh(row.options["mesh"])
            assert mesh.device_count == row.devices
            model_named(row.workload)
    assert sum(bool(row.missing) for row in packaged) <= 2


def test_the_layout_of_a_pipeline_is_that_of_megatron(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, BRIDGE)
    assert row.options["mesh"] == "pipe=8,fsdp=8,context=2,tp=8"
    assert row.options["schedule"] == "interleaved:8"
    assert row.options["product_dtype"] == "f8"
    assert row.options["gradient_dtype"] == "bf16"
    assert row.published_s == 37.5
    assert row.framework_year == 2026


def test_experts_of_recipes_are_whole_on_tensor_parallel_devices(tmp_path: Path) -> None:
    changes = {"model": "DeepSeekV3", "devices": "1024", "tp": "2", "cp": "1", "ep": "64"}
    (row,) = rows(tmp_path, {**BRIDGE, **changes})
    assert row.options["mesh"] == "pipe=8,fsdp=2,expert=32,tp=2"
    assert row.options["expert_axes"] == "expert+tp"


def test_a_throughput_becomes_a_step(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, TITAN)
    assert row.published_s == 16 * 8192 / 8 / 4096
    assert row.system == "8xH100_96GB"


def test_the_name_of_a_line_of_simumax_is_read(tmp_path: Path) -> None:
    line = {
        "source": "SimuMax B200 table",
        "framework": "Megatron-LM",
        "model": "llama3_70b_l12_tp2_cp4_pp1_dp1_seq32768_mbc4_cef",
        "hardware": "B200",
        "devices": "8",
        "step_time_s": "1.758",
        "peak_memory_gib": "68.43",
    }
    (row,) = rows(tmp_path, line)
    assert row.options["mesh"] == "pipe=1,context=4,tp=2"
    assert (row.options["layers"], row.options["sequence"], row.options["global_batch"]) == (
        "12",
        "32768",
        "4",
    )
    assert row.published_peak_bytes == round(68.43 * 2**30)


def test_a_submission_to_mlperf_has_the_layout_that_it_names(tmp_path: Path) -> None:
    line = {
        "source": "mlcommons/training_results_v6.0 deepseekv3_671b (MLPerf; container 26.04)",
        "framework": "MLPerf",
        "model": "deepseekv3_671b",
        "hardware": "DGX-GB300",
        "devices": "256",
        "tp": "1",
        "pp": "4",
        "cp": "1",
        "ep": "32",
        "global_batch": "15360",
        "micro_batch": "1",
        "sequence": "4096",
        "precision": "MXFP8",
        "step_time_s": "39.79",
        "note": "vp=4; 1F1B a2a overlap; full-iteration CUDA graph",
    }
    (row,) = rows(tmp_path, line)
    assert row.options["mesh"] == "pipe=4,fsdp=2,expert=32"
    assert (row.options["schedule"], row.options["overlap"]) == ("interleaved:4", "exchanges=on")
    assert (row.options["cuda_graphs"], row.publisher) == ("true", "MLPerf")
    (row,) = rows(tmp_path, {**line, "model": "gpt_oss_20b", "pp": "1", "ep": "1", "note": ""})
    assert row.options["mesh"] == "pipe=1,fsdp=256"
    assert not {"scan", "overlap", "cuda_graphs", "schedule"} & set(row.options)


def test_adapters_are_those_of_the_recipe(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, {**BRIDGE, "source": "Megatron-Bridge (NeMo container 26.06; LoRA)"})
    assert (row.options["lora_rank"], row.options["lora_modules"]) == ("16", "linear_qkv")
    assert row.options["document_length"] == "256"
    (row,) = rows(tmp_path, {**BRIDGE, "source": "Megatron-Bridge (NeMo container 26.06; SFT)"})
    assert (row.options["document_length"], "lora_rank" in row.options) == ("256", False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "bert"}, "there is no model bert here"),
        ({"tp": "2", "pp": "1", "cp": "1", "devices": "64", "ep": "48"}, "experts over 24 of 32"),
    ],
)
def test_what_has_no_options_here_says_why(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    (row,) = rows(tmp_path, {**BRIDGE, **changes})
    assert reason in row.missing


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"source": "a blog", "framework": "mine"}, ("steps.csv:2", "of the source 'a blog'")),
        ({"hardware": "TPU"}, ("steps.csv:2", "no part for the hardware 'TPU'")),
        ({"tokens_per_s_per_device": "fast"}, ("steps.csv:2", "tokens_per_s_per_device is 'fast'")),
        ({"devices": ""}, ("steps.csv:2", "or lacks one")),
    ],
)
def test_lines_that_cannot_be_read_are_named(
    tmp_path: Path, changes: dict[str, str], parts: tuple[str, ...]
) -> None:
    with pytest.raises(MeasurementError) as refused:
        rows(tmp_path, {**TITAN, **changes})
    assert all(part in f"{refused.value.location} {refused.value}" for part in parts)


@pytest.mark.parametrize(
    ("container", "precision", "hardware", "overlap"),
    [
        ("26.08", "MXFP8", "DGX-GB200", "exchanges=on"),
        ("26.06.01", "MXFP8", "DGX-GB200", "exchanges=on"),
        ("26.04.01", "MXFP8", "DGX-GB200", None),
        ("26.08", "BF16", "DGX-GB200", None),
    ],
)
def test_recipes_hide_exchanges_of_experts_from_a_container_on(
    tmp_path: Path, container: str, precision: str, hardware: str, overlap: str | None
) -> None:
    line = BRIDGE | {
        "source": f"Megatron-Bridge (NeMo container {container}; Pre-Training)",
        "model": "Qwen3_235B_a22B",
        "hardware": hardware,
        "precision": precision,
        "note": "vp=3",
        "devices": "256",
        "tp": "1",
        "pp": "8",
        "cp": "1",
        "dp": "32.0",
        "ep": "32",
    }
    (row,) = rows(tmp_path, line)
    assert row.options.get("overlap") == overlap


@pytest.mark.parametrize(
    ("container", "hardware", "remat"),
    [
        ("26.08", "DGX-GB200", "layernorm+moe_act"),
        ("26.08", "DGX-B300", None),
        ("26.04.01", "DGX-GB200", None),
    ],
)
def test_recipes_compute_modules_again_from_a_container_on(
    tmp_path: Path, container: str, hardware: str, remat: str | None
) -> None:
    line = BRIDGE | {
        "source": f"Megatron-Bridge (NeMo container {container}; Pre-Training)",
        "model": "GPT OSS 120B",
        "hardware": hardware,
        "precision": "BF16",
        "note": "vp=n/a",
        "devices": "64",
        "tp": "1",
        "pp": "1",
        "cp": "1",
        "dp": "64.0",
        "ep": "64",
    }
    (row,) = rows(tmp_path, line)
    assert row.options.get("remat") == remat


@pytest.mark.parametrize(
    ("model", "container", "hardware", "dispatcher"),
    [
        ("GPT OSS 120B", "26.02", "DGX-GB200", "alltoall"),
        ("GPT OSS 120B", "26.02", "DGX-B300", None),
        ("Qwen3_235B_a22B", "26.06", "DGX-B200", "alltoall"),
        ("Qwen3_235B_a22B", "25.11", "DGX-B200", None),
        ("Qwen3_235B_a22B", "26.06", "DGX-GB200", None),
    ],
)
def test_a_recipe_says_who_sorts_rows_of_experts(
    tmp_path: Path, model: str, container: str, hardware: str, dispatcher: str | None
) -> None:
    line = BRIDGE | {
        "source": f"Megatron-Bridge (NeMo container {container}; Pre-Training)",
        "model": model,
        "hardware": hardware,
        "precision": "BF16",
        "note": "",
        "devices": "64",
        "tp": "1",
        "pp": "1",
        "cp": "1",
        "dp": "64",
        "ep": "64",
    }
    (row,) = rows(tmp_path, line)
    assert row.options.get("dispatcher") == dispatcher


@pytest.mark.parametrize(
    ("page", "micro_batch"), [("llama3_h100_202412", "2"), ("llama3_h100_202506", "1")]
)
def test_torchtitan_had_as_many_micro_batches_as_stages(
    tmp_path: Path, page: str, micro_batch: str
) -> None:
    line = TITAN | {
        "source": f"pytorch/torchtitan@b5bcd76 benchmarks/{page}_torchtitan.md",
        "model": "llama3.1-405b",
        "devices": "512",
        "sharding": "fsdp=8 tp=8 pp=8 interleaved 1F1B",
        "global_batch": "256",
        "recompute": "full AC",
    }
    (row,) = rows(tmp_path, line)
    assert row.options["micro_batch"] == micro_batch
