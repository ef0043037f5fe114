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
