"""Flags of engines' commands, beside those that releases of the engines have.

The tables were read in packages: vllm 0.33.0 (``engine/arg_utils.py``) and sglang 0.5.23
(``srt/arg_groups/fields``, a flag for each field). TensorRT-LLM's was not read.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hespas.serve.engine import ENGINES

READ = {
    "vllm": (
        "0.33.0",
        {
            *("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"),
            *("max-num-seqs", "max-num-batched-tokens", "quantization", "kv-cache-dtype"),
            *("enable-expert-parallel", "enable-dbo", "dtype", "gpu-memory-utilization"),
            *("no-enable-prefix-caching", "no-async-scheduling", "speculative-config"),
            "kv-transfer-config",
        },
    ),
    "sglang": (
        "0.5.23",
        {
            *("model-path", "tp-size", "ep-size", "attn-dp-size", "pp-size", "dtype"),
            *("chunked-prefill-size", "quantization", "kv-cache-dtype", "moe-a2a-backend"),
            *("enable-two-batch-overlap", "scheduler-recv-interval", "mem-fraction-static"),
            *("disable-radix-cache", "disable-overlap-schedule", "speculative-algorithm"),
            *("speculative-draft-model-path", "speculative-num-steps", "speculative-eagle-topk"),
            "disaggregation-mode",
        },
    ),
}


@pytest.mark.parametrize("name", READ)
def test_an_engine_has_every_flag_of_its_commands(name: str) -> None:
    engine = ENGINES[name](memory_bytes=80 * 2**30, part="H100_80GB", devices=8)
    used = set(re.findall(r"--([\w-]+)", " ".join([engine.launch, *engine.flags.values()])))
    assert used == READ[name][1]


def test_the_documentation_names_what_was_read(request: pytest.FixtureRequest) -> None:
    page = (Path(request.config.rootpath) / "docs/how-to/where-you-work.md").read_text()
    for version, _ in READ.values():
        assert version in page
