"""Run commands in this process, in an empty directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from hespas.cli import progress
from hespas.cli.commands import command_named, commands, run
from hespas.cli.documented import COMMANDS
from hespas.cli.flags import start_logging
from hespas.cli.progress import Durations

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root() -> Path:
    """Return the root of the repository."""
    return ROOT


@pytest.fixture
def block(root: Path) -> Path:
    """Return a program for 4 devices with one all_reduce."""
    return root / "examples" / "attention_block.mlir"


@pytest.fixture
def llama(root: Path) -> Path:
    """Return a training step of 5156 operations for 4 devices."""
    return root / "examples" / "llama3_100m_fsdp4.mlir"


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., CompletedProcess[str]]]:
    """Give a function that runs a command line, by words, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    durations = Durations(file=tmp_path.parent / f"{tmp_path.name}-durations.json")
    monkeypatch.setattr(progress, "default_durations", lambda: durations)

    def call_it(name: str, *words: str | Path) -> CompletedProcess[str]:
        arguments = [str(word) for word in words]
        stage, added = COMMANDS.get(name, (None, ()))
        command = commands if stage is None else command_named(stage)
        capsys.readouterr()
        code = run(command, name, [*added, *arguments])
        shown = capsys.readouterr()
        return CompletedProcess([name, *arguments], code, shown.out, shown.err)

    yield call_it
    start_logging(None, None)


@pytest.fixture
def predict(
    call: Callable[..., CompletedProcess[str]], block: Path
) -> Callable[..., CompletedProcess[str]]:
    """Return a function that predicts the small program as the documented tools do."""

    def predict_it(*words: str | Path) -> CompletedProcess[str]:
        presets = ("--node", "A100_SXM_40GB", "--system", "A100_SXM_40GB_4GPU")
        documented = ("--as-exported", "--model", "astra-sim")
        return call("hespas", "run", block, *presets, *documented, *words)

    return predict_it
