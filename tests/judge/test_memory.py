"""Our memory of compiled programs against XLA's memory analysis (docs/evidence/memory.md).

XLA's figure is what its buffer assignment came to, gaps between buffers and tables of tuples
included.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hespas.frontend.load import load_program
from hespas.memory.usage import memory_use

_COMPILE = Path(__file__).parent / "memory" / "compile_programs.py"
_NAMES = (
    "train_step",
    "train_step_kept",
    "scanned_step",
    "rematerialised_gradient",
    "branch",
    "gather_and_scatter",
    "convolution_step",
    "sharded_step",
    "sharded_step_kept",
)
_TUPLE_TABLE_BYTES = 64
"""A pointer for each of the outputs."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("compiled")
    command = [sys.executable, str(_COMPILE), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(json.loads((directory / "memory.json").read_text())) == set(_NAMES)
    return directory


@pytest.mark.parametrize("name", _NAMES)
def test_memory_agrees_with_xla(compiled: Path, name: str) -> None:
    shown: dict[str, int] = json.loads((compiled / "memory.json").read_text())[name]
    use = memory_use(load_program(compiled / f"{name}.hlo.pb"))
    assert use.argument_bytes == shown["arguments"]
    assert use.alias_bytes == shown["aliases"]
    assert 0 <= shown["outputs"] - use.output_bytes <= _TUPLE_TABLE_BYTES
    total = shown["arguments"] + shown["outputs"] - shown["aliases"] + shown["temporaries"]
    assert use.peak_bytes == pytest.approx(total, rel=0.05)
