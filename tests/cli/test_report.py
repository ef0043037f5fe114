from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from step_reports import step_json

Call = Callable[..., CompletedProcess[str]]


@pytest.fixture
def result(tmp_path: Path, call: Call) -> Path:
    del call  # it changes to the empty directory
    file = tmp_path / "run.json"
    file.write_text(json.dumps(step_json()))
    return file


def test_a_page_of_one_result(result: Path, call: Call) -> None:
    done = call("hespas", "report", result, "-o", "page.html")
    assert done.returncode == 0, done.stderr
    page = result.with_name("page.html")
    assert "llama3-100m" in page.read_text()
    assert page.stat().st_size < 3e6


def test_a_page_of_two_results_is_named_after_them(result: Path, call: Call) -> None:
    other = result.with_name("other.json")
    other.write_bytes(result.read_bytes())
    assert call("hespas", "report", result, other, "-o", "page.html").returncode == 0
    assert "run to other" in result.with_name("page.html").read_text()


def test_the_same_result_gives_the_same_page(result: Path, call: Call) -> None:
    for name in ("a.html", "b.html"):
        call("hespas", "report", result, "-o", name)
    assert result.with_name("a.html").read_bytes() == result.with_name("b.html").read_bytes()


def test_a_file_that_is_no_result_is_refused(result: Path, call: Call) -> None:
    result.write_text("{}")
    done = call("hespas", "report", result, "-o", "page.html")
    assert done.returncode == 2
    assert "this is no result of a run" in done.stderr
    assert not result.with_name("page.html").exists()


def test_a_result_is_not_written_over(result: Path, call: Call) -> None:
    before = result.read_bytes()
    done = call("hespas", "report", result, "-o", result)
    assert "over a result" in done.stderr
    assert result.read_bytes() == before


def test_a_result_without_the_tables_is_refused(result: Path, call: Call) -> None:
    found = json.loads(result.read_text())
    del found["layers"]
    result.write_text(json.dumps(found))
    done = call("hespas", "report", result, "-o", "page.html")
    assert done.returncode == 2
    assert "layers" in done.stderr
    assert "hespas run" in done.stderr
