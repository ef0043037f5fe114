"""What a worker keeps between tasks changes nothing of what it answers."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hespas.errors import (
    CacheError,
    ConfigError,
    ExtraMissingError,
    ProgramError,
    TimeLimitError,
    ToolError,
)
from hespas.prediction import staged
from hespas.study.entry import entry_of
from hespas.study.evaluate import evaluate, options_of
from hespas.study.executor import Ending, LocalExecutor, Outcome, Phase, Task
from hespas.study.goal import read_prices
from hespas.study.space import candidate_of, candidates_of
from hespas.study.study import study_of

BLOCK = Path(__file__).parents[3] / "examples" / "attention_block.mlir"

CANDIDATES: list[dict[str, object]] = [
    {"model": "llama3-100m", "cluster": f"{count}xH100_80GB", "sequence": 512, "mesh": mesh}
    for count, mesh in [(4, {"fsdp": 4}), (6, {"fsdp": 2, "tp": 3})]
]


def outcomes(
    home: Path, monkeypatch: pytest.MonkeyPatch, *, may_stay: bool
) -> tuple[dict[str, Outcome], dict[str, bytes]]:
    """Return what a worker answers, and what it has cached then."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    tasks = [
        Task(
            key=str(number),
            candidate={**candidate, "set": {"layers": 2}},
            phase=Phase.SCREEN,
            with_report=True,
            may_stay=may_stay,
        )
        for number, candidate in enumerate(CANDIDATES)
    ]
    with LocalExecutor(workers=1) as executor:
        found = {
            task.key: msgspec.structs.replace(each, elapsed_s=0, cpu_s=0, peak_memory_bytes=0)
            for task, each in executor.outcomes(tasks)
        }
    kept = (home / "hespas" / "exported").iterdir()
    return found, {each.name: each.read_bytes() for each in kept}


def test_jax_that_is_kept_answers_as_jax_that_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anew, made_anew = outcomes(tmp_path / "anew", monkeypatch, may_stay=False)
    kept, made_here = outcomes(tmp_path / "kept", monkeypatch, may_stay=True)
    assert {outcome.ending for outcome in kept.values()} == {Ending.DONE}
    assert len(made_here) == 2 * len(CANDIDATES)
    assert made_here == made_anew
    assert kept == anew


def test_a_step_of_very_many_kernels_has_the_same_figures_and_no_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: dict[str, object] = {"layers": 6, "scan": "true"}
    given = {**CANDIDATES[0], "set": sizes, "global_batch": 40, "micro_batch": 1}
    task = Task(key="k", candidate=given, phase=Phase.SCREEN, with_report=True)
    whole = evaluate(task)
    monkeypatch.setattr("hespas.study.evaluate._MOST_IN_TABLES", 1000)
    monkeypatch.delattr("hespas.prediction.composition.predict")
    few = evaluate(task)
    assert few.ending is Ending.DONE
    assert few.figures == whole.figures
    assert 0 < len(few.report) < len(whole.report)


def test_a_reason_is_the_same_on_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(options: object, *, whole_up_to: int) -> None:
        raise ProgramError("it is refused", hint="see /tmp/hespas-partition-a1b2c3d4/log.txt")

    monkeypatch.setattr("hespas.prediction.composition.predict_folded", fails)
    found = evaluate(Task(key="k", candidate=CANDIDATES[0], phase=Phase.SCREEN))
    assert found.reason == "it is refused; see its log"


@pytest.mark.parametrize(
    "error",
    [
        CacheError("the cache of prices cannot be used: No space left on device"),
        ToolError("the export failed with code 1: OSError: No space left on device: 'a.mlir'"),
        OSError(28, "No space left on device"),
    ],
    ids=["cache", "tool", "file"],
)
def test_a_full_disk_is_no_property_of_a_candidate(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(options: object, *, whole_up_to: int) -> None:
        raise error

    monkeypatch.setattr("hespas.prediction.composition.predict_folded", fails)
    found = evaluate(Task(key="k", candidate=CANDIDATES[0], phase=Phase.SCREEN))
    assert found.ending is Ending.REFUSED
    assert "No space left on device" in found.reason


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (ToolError("the export was ended by SIGABRT: no threads"), Ending.EXHAUSTED),
        (ExtraMissingError("JAX", extra="jax"), Ending.EXHAUSTED),
        (TimeLimitError("the compiler took longer than 600 s"), Ending.FAILED),
        (ProgramError("it is refused"), Ending.FAILED),
    ],
    ids=["ended", "missing", "too long", "refused"],
)
def test_a_program_that_ended_says_nothing_of_a_candidate(
    error: Exception, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(options: object, *, whole_up_to: int) -> None:
        raise error

    monkeypatch.setattr("hespas.prediction.composition.predict_folded", fails)
    found = evaluate(Task(key="k", candidate=CANDIDATES[0], phase=Phase.SCREEN))
    assert found.ending is ending


def test_a_pipeline_has_the_figures_of_what_predicts_pipelines() -> None:
    given: dict[str, object] = {
        "model": "llama3-100m",
        "cluster": "4xH100_80GB",
        "mesh": {"pipe": 2, "fsdp": 2},
        "global_batch": 8,
        "micro_batch": 1,
        "sequence": 512,
        "set": {"layers": 4},
    }
    found = evaluate(Task(key="k", candidate=given, phase=Phase.SCREEN))
    assert found.ending is Ending.DONE, found.reason
    options = options_of(given, Phase.SCREEN)
    alone = staged.predict_pipeline(options)
    assert found.figures["step_time_s"] == alone.step_time_s
    assert found.figures["peak_memory_bytes"] == alone.peak_memory_bytes
    assert found.figures["exposed_communication_s"] == alone.exposed_communication_s
    entry = entry_of(0, candidate_of(given))
    assert entry.tokens == 8 * 512
    assert 0 < entry.bounds.time_s <= alone.step_time_s
    other = entry_of(0, candidate_of({**given, "schedule": "gpipe"}))
    assert entry.key(Phase.SCREEN) != other.key(Phase.SCREEN)


def test_a_long_run_has_its_goodput_and_days() -> None:
    asked = {"goodput": True, "train_tokens": "1T", "set": {"layers": 2}}
    found = evaluate(Task(key="k", candidate={**CANDIDATES[0], **asked}, phase=Phase.SCREEN))
    assert found.ending is Ending.DONE, found.reason
    tokens_per_s, productive = found.figures["tokens_per_s"], found.figures["goodput"]
    assert tokens_per_s is not None
    assert productive is not None
    assert 0.9 < productive < 1
    days = 1e12 / tokens_per_s / productive / 86400
    assert found.figures["days"] == pytest.approx(days, rel=1e-6)
    assert found.figures["tokens_per_day"] == pytest.approx(1e12 / days, rel=1e-6)


def test_what_a_long_run_costs_follows_from_prices() -> None:
    given = {"model": str(BLOCK), "cluster": "4xH100_80GB", "tokens": 4096}
    price = {"part": "H100_80GB", "usd_per_device_hour": 2.0, "source": "an example"}
    entry = entry_of(0, candidates_of(study_of(given))[0])
    figures = entry.completed({"step_time_s": 1.0, "days": 10.0}, read_prices([price]))
    assert figures["usd"] == 4 * 2.0 * 10 * 24
    assert "usd_per_day" not in figures
    figures = entry.completed({"step_time_s": 1.0, "goodput": 0.9}, read_prices([price]))
    assert figures["usd_per_day"] == 4 * 2.0 * 24
    with pytest.raises(ConfigError, match="the goal is days, and there is no train_tokens"):
        study_of({**given, "goal": {"minimise": "days"}})
    with pytest.raises(ConfigError, match="the goal is tokens_per_day, and there is no goodput"):
        study_of({**given, "goal": {"maximise": "tokens_per_day"}})
