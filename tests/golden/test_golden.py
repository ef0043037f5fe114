"""Every byte of an answer and its files, as they were when last looked at.

``python tests/golden/test_golden.py`` writes them anew: look at the difference before you commit.
"""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from hespas.cli.commands import commands, run
from hespas.report.regions import WALL_TIMES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_TEXT, _TIMELINE = "run.txt", "timeline.json"


def made() -> dict[str, bytes]:
    """Run the example and return its answer and files by name; wall times are left out."""
    with TemporaryDirectory() as directory, redirect_stdout(StringIO()) as shown:
        output = Path(directory, "out")
        words = [
            "run", str(ROOT / "examples" / "attention_block.mlir"), "--node", "A100_SXM_40GB",
            "--system", "A100_SXM_40GB_4GPU", "--split", "individual_split", "-o", str(output),
            "--as-exported", "--in-memory-only-cache", "--timeline", str(output / "timeline.json"),
            "--json", str(output / "run.json"),
        ]  # fmt: skip
        assert run(commands, "hespas", words) == 0
        files = {path.name: path.read_bytes() for path in output.iterdir()}
    stats: dict[str, Any] = json.loads(files["module_stats.json"])
    kept = {name: value for name, value in stats.items() if name not in WALL_TIMES}
    files["module_stats.json"] = json.dumps(kept, indent=1).encode() + b"\n"
    files[_TEXT] = shown.getvalue().replace(f"{ROOT}/", "").encode()
    files[_TIMELINE] = files[_TIMELINE].replace(f"{ROOT}/".encode(), b"")
    # The traces of equal devices are equal.
    for device in (1, 2, 3):
        assert files.pop(f"dev.{device}.et") == files["dev.0.et"]
    return files


@pytest.fixture(scope="module")
def answer() -> dict[str, bytes]:
    return made()


def golden() -> list[str]:
    return sorted(path.name for path in (HERE / "attention_block").iterdir())


def test_the_files_are_the_golden_ones(answer: dict[str, bytes]) -> None:
    assert sorted(answer) == golden()


@pytest.mark.parametrize("name", golden())
def test_a_file_is_golden(answer: dict[str, bytes], name: str) -> None:
    assert answer[name] == (HERE / "attention_block" / name).read_bytes()


if __name__ == "__main__":
    (HERE / "attention_block").mkdir(exist_ok=True)
    for path in (HERE / "attention_block").iterdir():
        path.unlink()
    for name, content in made().items():
        (HERE / "attention_block" / name).write_bytes(content)
