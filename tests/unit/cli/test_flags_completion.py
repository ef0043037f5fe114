"""What shells complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("words", "completion"),
    [
        ("hespas run llama3-70", "plain,llama3-70b"),
        ("hespas run gemm --cluster 16xH100_8", "plain,16xH100_80GB"),
        ("hespas run gemm --node TPUv5", "plain,TPUv5p"),
        ("hespas hardware 16xH100_8", "plain,16xH100_80GB"),
        ("hespas serve Qwen/Qwen3-8", "plain,Qwen/Qwen3-8B"),
        ("hespas search llama3-70", "plain,llama3-70b"),
        ("hespas models llama3-70", "plain,llama3-70b"),
        ("hespas export llama3-70", "plain,llama3-70b"),
        ("hespas serve gemm --engine sg", "plain,sglang"),
        ("hespas run gemm --software torch", "plain,torchtitan"),
        ("hespas run gemm --remat whol", "plain,whole"),
        ("hespas hard", "plain,hardware"),
    ],
)
def test_shells_complete_models_parts_and_commands(words: str, completion: str) -> None:
    environment = {
        **os.environ,
        "_HESPAS_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    hespas = Path(sys.executable).with_name("hespas")
    completed = subprocess.run(
        [hespas], check=False, capture_output=True, text=True, env=environment
    )
    assert completion in completed.stdout.splitlines()
