"""Programs that a process keeps as they were loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hespas.base.process import stay
from hespas.lower import fused as lowering
from hespas.models.model import parse_mesh
from hespas.prediction import loading
from hespas.prediction.options import (
    CompileChoice,
    EstimateOptions,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.program.program import Program
from hespas.sources.options import ModelOptions

pytestmark = pytest.mark.starts_jax


@pytest.fixture(autouse=True)
def staying() -> Iterator[None]:
    stay(stays=True)
    yield
    stay(stays=False)


@pytest.fixture
def fusions(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Return a list that grows by each program that is fused."""
    fused, made = lowering.fused, list[Program]()

    def counted(program: Program, *arguments: Any, **named: Any) -> Program:
        made.append(program)
        return fused(program, *arguments, **named)

    monkeypatch.setattr(lowering, "fused", counted)
    return made


def asked(directory: Path, *, mesh: str = "fsdp=4", **changed: object) -> PredictOptions:
    model = ModelOptions(
        mesh=parse_mesh(mesh),
        settings={"layers": "2", "vocabulary": "1024"},
    )
    estimate = EstimateOptions(node="A100_SXM_40GB", cache_dir=directory)
    return PredictOptions(
        program=ProgramOptions(file=Path("llama3-100m"), model=model),
        network=NetworkOptions(cluster="4xA100_SXM_40GB"),
        compile=CompileChoice(fidelity=Fidelity.FUSED),
        estimate=replace(estimate, **changed),  # pyright: ignore[reportArgumentType]
    )


def test_a_question_asked_again_is_fused_once(tmp_path: Path, fusions: list[Program]) -> None:
    first = loading.load(asked(tmp_path))
    second = loading.load(asked(tmp_path))
    assert len(fusions) == 1
    assert second is first or second == first


@pytest.mark.parametrize(
    "changed", [{"mesh": "fsdp=2,data=2"}, {"memory_bandwidth": 1e12}, {"launch_overhead_s": 1e-6}]
)
def test_a_changed_question_fuses_the_program_again(
    tmp_path: Path, fusions: list[Program], changed: dict[str, object]
) -> None:
    loading.load(asked(tmp_path))
    loading.load(asked(tmp_path, **changed))  # pyright: ignore[reportArgumentType]
    assert len(fusions) == 2


def test_a_process_that_ends_keeps_nothing(tmp_path: Path, fusions: list[Program]) -> None:
    stay(stays=False)
    loading.load(asked(tmp_path))
    loading.load(asked(tmp_path))
    assert len(fusions) == 2
