from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import ToolError
from hespas.tools.scratch import scratch_directory


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def work(error: BaseException | None) -> Path:
    """Work in a directory that holds a log, until an error."""
    with scratch_directory("test") as directory:
        (directory / "log").write_text("said")
        if error is not None:
            raise error
    return directory


def test_a_directory_is_new_and_goes_with_what_is_in_it(home: Path) -> None:
    assert work(None) != work(None)
    assert list(home.iterdir()) == []


def test_after_an_error_the_log_stays(home: Path) -> None:
    with pytest.raises(ToolError):
        work(ToolError("it failed"))
    (left,) = home.iterdir()
    assert left.name.startswith("hespas-test-")
    assert (left / "log").read_text() == "said"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(1)])
def test_an_interruption_leaves_nothing(home: Path, interruption: BaseException) -> None:
    with pytest.raises(type(interruption)):
        work(interruption)
    assert list(home.iterdir()) == []
