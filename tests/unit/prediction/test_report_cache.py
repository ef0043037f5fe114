"""A report is kept where all that decides it is known, and found where nothing of that changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hespas.cli.predicted import predicted_report
from hespas.prediction import report_cache as module
from hespas.prediction.options import (
    CompileChoice,
    EstimateOptions,
    Fidelity,
    NetworkOptions,
    OutputOptions,
    PredictOptions,
    ProgramOptions,
    ReportOptions,
)
from hespas.prediction.report_cache import ReportCache, report_cache

BLOCK = Path(__file__).parents[3] / "examples" / "attention_block.mlir"
OPTIONS = PredictOptions(
    program=ProgramOptions(file=BLOCK),
    compile=CompileChoice(fidelity=Fidelity.EXPORTED),
    estimate=EstimateOptions(node="A100_SXM_40GB"),
    network=NetworkOptions(system="A100_SXM_40GB_4GPU"),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep reports in a directory of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hespas" / "reports"


def place(options: PredictOptions = OPTIONS, *, has_charts: bool = False) -> ReportCache:
    found = report_cache(options, has_charts=has_charts)
    assert found is not None
    return found


@pytest.mark.parametrize("has_charts", [False, True])
def test_a_report_is_read_as_it_was_written(has_charts: bool) -> None:
    report = predicted_report(OPTIONS, json_file="-" if has_charts else None, timeline=None)
    assert place(has_charts=has_charts).read() is None
    place(has_charts=has_charts).write(report)
    assert place(has_charts=has_charts).read() == report
    assert place(has_charts=not has_charts).read() is None


def test_all_that_decides_a_report_is_in_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.mlir"
    program.write_bytes(BLOCK.read_bytes())
    options = replace(OPTIONS, program=ProgramOptions(file=program))
    keys = {place().key, place(has_charts=True).key, place(options).key}
    keys.add(place(replace(OPTIONS, report=ReportOptions(depth=3))).key)
    program.write_bytes(BLOCK.read_bytes() + b"\n")
    keys.add(place(options).key)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    keys.add(place(options).key)
    monkeypatch.setattr(module, "installed_state", lambda: "another version")
    keys.add(place(options).key)
    assert len(keys) == 7


def test_what_is_not_known_is_not_kept(tmp_path: Path) -> None:
    kernels = tmp_path / "kernels.json"
    kernels.write_text("{}")
    others = [
        replace(OPTIONS, program=ProgramOptions(file=tmp_path)),
        replace(OPTIONS, program=ProgramOptions(file=Path("package.steps:train"))),
        replace(OPTIONS, program=ProgramOptions(file=Path("maxtext:base.yml"))),
        replace(OPTIONS, program=ProgramOptions(file=BLOCK, kernels=kernels)),
        replace(OPTIONS, estimate=EstimateOptions(node=tmp_path)),
        replace(OPTIONS, network=NetworkOptions(system=str(tmp_path))),
        replace(OPTIONS, estimate=EstimateOptions(method="xla")),
        replace(OPTIONS, estimate=EstimateOptions(method="another")),
        replace(OPTIONS, estimate=EstimateOptions(disable_cache=True)),
        replace(OPTIONS, estimate=EstimateOptions(in_memory_only_cache=True)),
        replace(OPTIONS, estimate=EstimateOptions(cache_dir=tmp_path)),
        replace(OPTIONS, output=OutputOptions(directory=tmp_path / "new")),
        PredictOptions(),
    ]
    assert [report_cache(each, has_charts=False) for each in others] == [None] * len(others)
    model = replace(OPTIONS, program=ProgramOptions(file=Path("llama3-100m")))
    assert report_cache(model, has_charts=False) is not None


def test_a_damaged_report_and_a_place_that_cannot_be_used_count_as_missing(home: Path) -> None:
    report = predicted_report(OPTIONS, json_file=None, timeline=None)
    place().write(report)
    (file,) = home.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert place().read() is None
    file.unlink()
    home.rmdir()
    home.write_text("a file")
    place().write(report)
    assert place().read() is None
