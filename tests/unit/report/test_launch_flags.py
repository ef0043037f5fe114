"""Flags of trainers' commands, beside those that releases of the trainers have.

The tables were read in packages: maxtext 0.2.5 (``configs/base.yml``), torchtitan 0.3.0
(``config/configs.py``, ``config/manager.py``), megatron-core 0.19.2 (``training/arguments.py``,
``core/transformer/transformer_config.py``, ``core/model_parallel_config.py``,
``core/distributed/distributed_data_parallel_config.py``, ``training/config``).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hespas.report.launch import Trainer, launch_of
from hespas.study.space import candidate_of

_AXES = ("data", "fsdp", "sequence", "context", "tensor", "expert", "pipeline")
READ: dict[Trainer, tuple[str, frozenset[str]]] = {
    Trainer.MAXTEXT: (
        "MaxText 0.2.5",
        frozenset(
            {
                *("run_name", "steps", "dataset_type", "model_name", "per_device_batch_size"),
                *("max_target_length", "num_pipeline_microbatches", "gradient_accumulation_steps"),
                *("num_layers_per_pipeline_stage", "remat_policy"),
                *(f"{place}_{axis}_parallelism" for place in ("ici", "dcn") for axis in _AXES),
            }
        ),
    ),
    Trainer.TORCHTITAN: (
        "torchtitan 0.3.0",
        frozenset(
            {
                *("module", "config", "training.local_batch_size", "training.global_batch_size"),
                "training.seq_len",
                *(
                    f"parallelism.{name}"
                    for name in (
                        *("data_parallel_replicate_degree", "data_parallel_shard_degree"),
                        *("tensor_parallel_degree", "context_parallel_degree"),
                        *("pipeline_parallel_degree", "expert_parallel_degree"),
                        *("pipeline_parallel_microbatch_size", "pipeline_parallel_schedule"),
                        "pipeline_parallel_first_stage_less_layers",
                        "pipeline_parallel_last_stage_less_layers",
                        "pipeline_parallel_layers_per_stage",
                    )
                ),
            }
        ),
    ),
    Trainer.MEGATRON: (
        "Megatron-LM core 0.19.2",
        frozenset(
            {
                *("tensor-model-parallel-size", "pipeline-model-parallel-size"),
                *("context-parallel-size", "expert-model-parallel-size", "micro-batch-size"),
                *("global-batch-size", "seq-length", "num-virtual-stages-per-pipeline-rank"),
                *("sequence-parallel", "use-distributed-optimizer", "overlap-grad-reduce"),
                *("overlap-param-gather", "tp-comm-overlap", "moe-shared-expert-overlap"),
                *("overlap-moe-expert-parallel-comm", "recompute-granularity"),
                *("recompute-method", "recompute-num-layers", "recompute-modules", "bf16"),
                "account-for-embedding-in-pipeline-split",
                "account-for-loss-in-pipeline-split",
            }
        ),
    ),
}
_TORCHRUN = {"nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint"}
_MOE = {"model": "Qwen/Qwen3-30B-A3B"}
STEPS: list[dict[str, Any]] = [
    {"mesh": {"data": 2, "fsdp": 8, "tp": 4}, "batch": 4, "micro_batch": 2},
    {"mesh": {"fsdp": 32, "context": 2}},
    {**_MOE, "mesh": {"fsdp": 8, "expert": 8}},
    *(
        {"mesh": {"pipe": 4, "fsdp": 4, "tp": 4}, "batch": 8, "micro_batch": 2, "schedule": name}
        for name in ("1f1b", "gpipe", "interleaved:2", "zero-bubble")
    ),
    {"mesh": {"pipe": 4, "fsdp": 16}, "batch": 8, "micro_batch": 2, "model": "llama3-405b"},
    {"software": "megatron", "mesh": {"fsdp": 16, "tp": 4}, "remat": "whole", "batch": 2},
    {"software": "megatron", "mesh": {"data": 64}, "remat": "core_attn+mlp"},
    {**_MOE, "software": "megatron", "mesh": {"data": 8, "expert": 8}},
]


def flags(command: str) -> set[str]:
    found = re.findall(r"(?<=\s)(?:--([\w.-]+)|(\w+)=)", command)
    return {name for pair in found for name in pair if name} - _TORCHRUN


@pytest.mark.parametrize("trainer", Trainer)
def test_a_trainer_has_every_flag_of_its_commands(trainer: Trainer) -> None:
    version, known = READ[trainer]
    used: set[str] = set()
    for keys in STEPS:
        step = {"model": "llama3-70b", "cluster": "64xH100_80GB", **keys}
        launch = launch_of(trainer, candidate_of(step).options())
        assert launch.trainer == version
        used |= flags(launch.command)
    assert used <= known
    assert len(used) > 12


def test_the_documentation_names_what_was_read(request: pytest.FixtureRequest) -> None:
    page = (Path(request.config.rootpath) / "docs/how-to/where-you-work.md").read_text()
    for version, _ in READ.values():
        assert version.rpartition(" ")[2] in page
