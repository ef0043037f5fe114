"""A recorded step is kept while what its program read is unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.sources.options import ModelOptions
from hespas.sources.source import find_source
from hespas.sources.torch_step import TorchStep, record_torch
from torch_steps import TRAIN, needs_torch

pytestmark = needs_torch

_READS = f"""{TRAIN.split("def train")[0]}
import helper
from pathlib import Path

def train():
    layers = int(os.environ.get("LAYERS", "1")) + len(open("config.txt").read())
    assert "UNSET_VARIABLE" not in os.environ and os.environ["WORLD_SIZE"] == "8"
    open("written.txt", "w").close()
    Path("data.json").read_text()
    net = Net(helper.WIDTH, layers).to("cuda")
    return lambda: net(torch.zeros(1, 8, dtype=torch.long, device="cuda")).sum().backward()
"""


def test_files_and_variables_are_those_that_the_program_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"train.py": _READS, "helper.py": "WIDTH = 64", "config.txt": ".", "data.json": ""}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    step = find_source("torch:train.py:train", ModelOptions(), devices=8, target="H100_80GB")
    assert isinstance(step, TorchStep)
    _, inputs = record_torch(step)
    assert [Path(file).name for file in inputs.files] == sorted(files)
    assert inputs.variables == ["LAYERS", "UNSET_VARIABLE"]
