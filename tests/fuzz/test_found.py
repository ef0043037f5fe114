"""Damaged files that were not refused in one line once."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.good_files import HLO
from hespas.cli.commands import commands, run

Hespas = Callable[..., str]
NODE = ("--node", "A100_SXM_40GB")


@pytest.fixture
def hespas(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Hespas:
    """Return a function that runs a command and returns what it prints, an error in one line."""
    monkeypatch.chdir(tmp_path)

    def said(*words: str) -> str:
        capsys.readouterr()
        code = run(commands, "hespas", words)
        shown = capsys.readouterr()
        assert "fault of hespas" not in shown.err
        assert len(shown.err.splitlines()) == (code == 2)
        return shown.err if code else shown.out

    return said


def test_kernels_that_are_no_text(hespas: Hespas) -> None:
    Path("step.hlo").write_text(HLO)
    Path("kernels.json").write_bytes(b'{"launches": [], "ptx": {"negated": "\xff"}}')
    text = hespas("kernels", "step.hlo", "--kernels", "kernels.json", *NODE)
    assert "kernels.json: holds no kernels" in text


def test_a_buffer_of_an_algorithm_that_is_none(hespas: Hespas) -> None:
    hespas("algorithm", "ring", "--ranks", "4", "--chakra", "c")
    file = Path("c/ring_allreduce_4.0.et")
    changed, times = re.subn(
        rb"(srcbuf.{1,4}\x01)[ios]", rb"\1?", file.read_bytes(), flags=re.DOTALL
    )
    assert times
    file.write_bytes(changed)
    text = hespas("algorithm", "c/ring_allreduce_4", "--ranks", "4")
    assert "srcbuf is '?'" in text


def test_a_profile_that_is_damaged_inside(hespas: Hespas) -> None:
    Path("step.hlo").write_text(HLO)
    packed = bytearray(gzip.compress(b'{"traceEvents": []}' * 9, mtime=0))
    packed[12:20] = b"\xff" * 8
    Path("p.json.gz").write_bytes(packed)
    profile = ("--profile", "p.json.gz", "--program", "step.hlo")
    assert "p.json.gz: the profile is no JSON" in hespas("calibrate", *NODE, *profile, "-o", "out")
