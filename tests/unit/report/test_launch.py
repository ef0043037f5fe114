"""Predicted steps as commands of trainers, whose flags mean the same step."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hespas.errors import ConfigError
from hespas.models.megatron import read_arguments
from hespas.report.launch import Launch, Trainer, launch_of
from hespas.study.space import candidate_of

CLUSTER = {"model": "llama3-70b", "cluster": "64xH100_80GB"}
SIZES = (
    "--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 "
    "--group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --rotary-base 500000 --vocab-size 128256 "
    "--untie-embeddings-and-output-weights --disable-bias-linear "
)


def launched(trainer: Trainer, **keys: Any) -> Launch:
    return launch_of(trainer, candidate_of({**CLUSTER, **keys}).options())


def values(launch: Launch) -> dict[str, str]:
    """Return settings by name, of ``--name value`` and of ``name=value``."""
    words: list[str] = shlex.split(launch.command)
    found: dict[str, str] = {}
    for word, after in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        found[name.removeprefix("--")] = value if equals else after
    return found


@pytest.mark.parametrize(
    ("keys", "devices_inside"),
    [
        ({"mesh": {"data": 2, "fsdp": 8, "tp": 4}, "batch": 4, "micro_batch": 2}, 8),
        ({"mesh": {"fsdp": 8, "tp": 8}}, 8),
        ({"mesh": {"pipe": 4, "fsdp": 4, "tp": 4}, "batch": 8, "micro_batch": 2}, 8),
        ({"mesh": {"fsdp": 16}, "cluster": "16xTPUv5p"}, 16),
    ],
)
def test_maxtext_has_the_devices_the_batch_and_nodes(
    keys: dict[str, Any], devices_inside: int
) -> None:
    given = values(launched(Trainer.MAXTEXT, **keys))
    devices = int(str(keys.get("cluster", CLUSTER["cluster"])).partition("x")[0])
    inside = outside = 1
    for name, value in given.items():
        if name.startswith("ici_"):
            inside *= int(value)
        elif name.startswith("dcn_"):
            outside *= int(value)
    assert inside == devices_inside
    assert inside * outside == devices
    mesh = keys["mesh"]
    parts = mesh.get("data", 1) * mesh["fsdp"]
    rounds = int(given.get("gradient_accumulation_steps", 1))
    batch = float(given["per_device_batch_size"]) * devices * rounds
    assert batch == keys.get("batch", 1) * parts


def test_maxtext_gets_the_raised_limit_of_its_compiler() -> None:
    raised = launched(Trainer.MAXTEXT, mesh={"fsdp": 64}, memory_limit_slop_factor=127)
    assert "XLA_FLAGS=--xla_gpu_memory_limit_slop_factor=127 python3 -m" in raised.command
    usual = launched(Trainer.MAXTEXT, mesh={"fsdp": 64}, memory_limit_slop_factor="auto")
    assert "XLA_FLAGS" not in usual.command


@pytest.mark.parametrize(
    "keys",
    [
        {"mesh": {"data": 2, "fsdp": 8, "tp": 4}, "batch": 4, "micro_batch": 2},
        {"mesh": {"fsdp": 64}},
        {"mesh": {"pipe": 4, "fsdp": 4, "tp": 4}, "batch": 8, "micro_batch": 2},
    ],
)
def test_torchtitan_has_the_devices_and_the_batch(keys: dict[str, Any]) -> None:
    given = values(launched(Trainer.TORCHTITAN, **keys))
    degrees = {
        name.removeprefix("parallelism."): int(value)
        for name, value in given.items()
        if name.endswith("_degree")
    }
    product = 1
    for size in degrees.values():
        product *= size
    assert product == 64 == int(given["nnodes"]) * int(given["nproc_per_node"])
    mesh = keys["mesh"]
    parts = mesh.get("data", 1) * mesh["fsdp"]
    local = int(given["training.local_batch_size"])
    batch = int(given.get("training.global_batch_size", str(local * parts)))
    assert batch == parts * keys.get("batch", 1)
    assert given["module"] == "llama3"
    assert given["config"] == "llama3_70b"


def test_experts_of_torchtitan_are_on_ranks_of_fsdp() -> None:
    keys = {"model": "Qwen/Qwen3-30B-A3B", "mesh": {"fsdp": 8, "expert": 8}}
    given = values(launched(Trainer.TORCHTITAN, **keys))
    assert given["parallelism.data_parallel_shard_degree"] == "64"
    assert given["parallelism.expert_parallel_degree"] == "8"


@pytest.mark.parametrize(
    "keys",
    [
        {"mesh": {"fsdp": 16, "tp": 4}, "batch": 4, "micro_batch": 2, "remat": "whole"},
        {"mesh": {"pipe": 4, "fsdp": 4, "tp": 4}, "batch": 8, "micro_batch": 2},
        {"mesh": {"data": 64}},
    ],
)
def test_megatron_reads_back_as_the_same_step(tmp_path: Path, keys: dict[str, Any]) -> None:
    command = launched(Trainer.MEGATRON, **keys).command.replace("$MODEL_ARGS", SIZES)
    file = tmp_path / "args.sh"
    file.write_text(command)
    layout = read_arguments(file).layout
    mesh = keys["mesh"]
    assert layout.tensor == mesh.get("tp", 1)
    assert layout.stages == mesh.get("pipe", 1)
    parts = mesh.get("data", 1) * mesh.get("fsdp", 1)
    assert layout.global_batch == keys.get("batch", 1) * parts
    assert layout.micro_batch == keys.get("micro_batch", 1)


def test_a_predicted_step_of_megatron_reads_back_whole(tmp_path: Path) -> None:
    keys = {"software": "megatron", "micro_batch": 1, "batch": 16, "remat": "whole"}
    settings = {"sequence_parallel": True}
    mesh = {"pipe": 4, "fsdp": 4, "tp": 4}
    launch = launched(Trainer.MEGATRON, mesh=mesh, schedule="interleaved:5", set=settings, **keys)
    assert "differs" not in launch.text
    assert "divided" not in launch.text
    file = tmp_path / "args.sh"
    file.write_text(launch.command.replace("$MODEL_ARGS", SIZES))
    layout = read_arguments(file).layout
    assert (layout.stages, layout.tensor, layout.chunks) == (4, 4, 5)
    assert layout.divides_states
    assert layout.sequence_parallel
    assert layout.remat == "whole"
    hidden = {name for name, is_on in layout.overlap.items() if is_on}
    assert hidden == {"tp", "gradients", "parameters", "messages", "accumulation"}
    one = launched(Trainer.MEGATRON, mesh={"pipe": 1, "fsdp": 64}, set=settings, **keys)
    assert "memory differs" not in one.text


def test_what_is_left_out_is_said() -> None:
    launch = launched(Trainer.MEGATRON, mesh={"fsdp": 64})
    assert "'minimal_with_context' is left out" in launch.text
    unknown = launched(Trainer.TORCHTITAN, model="llama3-1b", mesh={"fsdp": 64})
    assert "--module MODULE --config CONFIG" in unknown.command
    assert "# write torchtitan's module" in unknown.text


@pytest.mark.parametrize(
    ("trainer", "keys", "said"),
    [
        (Trainer.TORCHTITAN, {"mesh": {"fsdp": 16}, "cluster": "16xTPUv5p"}, "on GPUs"),
        (Trainer.MEGATRON, {"model": "resnet50", "mesh": {"data": 64}}, "no training step"),
        (Trainer.MEGATRON, {"mesh": {"fsdp": 32, "sequence": 2}}, "no axis sequence"),
        (
            Trainer.MAXTEXT,
            {"model": "llama3-8b-decode", "cluster": "8xH100_80GB", "mesh": {"tp": 8}},
            "hespas search",
        ),
    ],
)
def test_what_no_trainer_takes_is_refused(
    trainer: Trainer, keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        launched(trainer, **keys)
    assert said in str(error.value)


STAGED: dict[str, Any] = {"mesh": {"pipe": 4, "fsdp": 4, "tp": 4}, "batch": 8, "micro_batch": 2}


@pytest.mark.parametrize(
    ("keys", "schedule", "counted", "layers"),
    [
        ({}, "1F1B", "0", None),
        ({"schedule": "gpipe"}, "GPipe", "0", None),
        ({"schedule": "interleaved:2"}, "Interleaved1F1B", "0", "10"),
        # 126 layers, the embedding and the head: 8 parts of 16.
        ({"model": "llama3-405b", "schedule": "interleaved:2"}, "Interleaved1F1B", "1", "16"),
    ],
)
def test_stages_of_torchtitan_have_the_layers_and_the_schedule(
    keys: dict[str, Any], schedule: str, counted: str, layers: str | None
) -> None:
    given = values(launched(Trainer.TORCHTITAN, **STAGED, **keys))
    prefix = "parallelism.pipeline_parallel_"
    assert given[f"{prefix}schedule"] == schedule
    assert given[f"{prefix}first_stage_less_layers"] == counted
    assert given[f"{prefix}last_stage_less_layers"] == counted
    assert given.get(f"{prefix}layers_per_stage") == layers


def test_stages_of_maxtext_and_megatron_have_the_layers() -> None:
    given = values(launched(Trainer.MAXTEXT, **STAGED))
    assert given["num_layers_per_pipeline_stage"] == "20"
    assert given["num_pipeline_microbatches"] == "4"
    uneven = STAGED | {"model": "llama3-405b"}
    assert "--account-for-embedding-in-pipeline-split" in launched(Trainer.MEGATRON, **uneven).text
    assert "account" not in launched(Trainer.MEGATRON, **STAGED).text
    for trainer in Trainer:
        other = launched(trainer, **STAGED, schedule="zero-bubble")
        assert "# schedule zero-bubble is left out" in other.text
