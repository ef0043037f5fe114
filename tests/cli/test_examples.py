"""The scripts of examples/ print what the files beside them hold."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("[0-9]_*.py"))
"""Others are programs that commands read."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_an_example_prints_what_is_kept(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out == script.with_suffix(".out").read_text()


def test_every_example_is_in_the_list() -> None:
    listed = (ROOT / "examples" / "README.md").read_text()
    for path in (ROOT / "examples").iterdir():
        if path.suffix in {".py", ".mlir"}:
            assert f"]({path.name})" in listed
