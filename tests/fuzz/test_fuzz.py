"""A short run of damaged files, the same every time, and what the runner itself must do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from fuzz.mutators import Form, cut, mutate
from fuzz.wire import read_fields, write_fields

ROOT = Path(__file__).resolve().parents[2]
SHORT_RUN_INPUTS = 60


def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    paths = os.pathsep.join((str(ROOT / "tests"), str(ROOT / "validation")))
    words = ("--minutes", "1000", "--seed", "0", "--inputs", str(SHORT_RUN_INPUTS))
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", *words, "--failures", tmp_path / "failures"],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{SHORT_RUN_INPUTS} inputs, 0 failed" in done.stdout


@pytest.mark.parametrize("form", Form)
def test_a_seed_decides_what_is_changed(form: Form) -> None:
    content = b'{"size": 4, "names": ["first", "second"]}'
    changed = [mutate(Random(seed), content, form) for seed in range(40)]
    assert changed == [mutate(Random(seed), content, form) for seed in range(40)]
    assert sum(one != content for one in changed) > 30


def test_a_cut_leaves_the_beginning() -> None:
    content = bytes(range(100))
    assert all(content.startswith(cut(Random(seed), content)) for seed in range(20))
    assert all(len(cut(Random(seed), content)) < 100 for seed in range(20))


def test_a_message_is_put_together_as_it_was() -> None:
    message = b"\x08\x96\x01\x12\x03abc\x1d\x01\x02\x03\x04\x21" + bytes(8)
    fields = read_fields(message)
    assert fields is not None
    assert [field.number for field in fields] == [1, 2, 3, 4]
    assert write_fields(fields) == message
    assert read_fields(message[:5]) is None
