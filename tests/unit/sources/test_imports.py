from __future__ import annotations

import os
from pathlib import Path

import pytest

from hespas.sources.imports import file_digest, program_digests


@pytest.mark.parametrize("program", ["train.py", "train", "package.step"])
def test_a_change_of_an_imported_module_is_seen(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    files = {
        "train.py": "import os, model, absent",
        "model.py": "WIDTH = 1",
        "package/__init__.py": "",
        "package/step.py": "from package import part\nimport model",
        "package/part.py": "",
        "other.py": "",
    }
    for name, text in files.items():
        Path(name).write_text(text)
    first = program_digests(program)
    Path("other.py").write_text("WIDTH = 2")
    assert program_digests(program) == first
    Path("model.py").write_text("WIDTH = 2")
    assert program_digests(program) != first


def test_what_cannot_be_parsed_has_a_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text("def")
    assert program_digests("broken") == program_digests("broken")


def test_an_installed_package_is_known_by_its_version() -> None:
    assert list(program_digests("numpy.linalg")) == ["numpy"]


def test_large_files_are_known_by_size_and_time(tmp_path: Path) -> None:
    data = tmp_path / "train.bin"
    data.write_bytes(bytes(2**20 + 1))
    first = file_digest(data)
    os.utime(data, ns=(1, 1))
    assert file_digest(data) != first
    assert file_digest(tmp_path / "absent") == ""
