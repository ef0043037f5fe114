"""What shells complete."""

from __future__ import annotations

import os
import shutil
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


_IN_BASH = """
eval "$(_HESPAS_COMPLETE=bash_source hespas)"
COMP_WORDS=(hespas run $1) COMP_CWORD=2
_hespas_completion hespas "$1" run
printf '%s\n' "${COMPREPLY[@]}"
"""


_BASH = shutil.which("bash")


@pytest.mark.skipif(_BASH is None, reason="no bash is installed")
def test_bash_completes_models_of_a_command_that_takes_files_too() -> None:
    assert _BASH is not None
    directory = str(Path(sys.executable).parent)
    path = os.pathsep.join([directory, os.environ["PATH"]])
    completed = subprocess.run(
        [_BASH, "--norc", "-c", _IN_BASH, "bash", "llama3-70"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
    )
    assert "llama3-70b" in completed.stdout.splitlines(), completed.stderr
