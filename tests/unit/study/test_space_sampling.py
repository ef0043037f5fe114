"""Samples of a large study: the same in any order of outcomes, and better than the first ones."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any, cast

import pytest

from hespas.errors import ConfigError, ExtraMissingError
from hespas.study.executor import Ending, Outcome, Task
from hespas.study.rows import Row, Status, in_order
from hespas.study.run import run_study
from hespas.study.store import opened
from hespas.study.study import Study, study_of

pytest.importorskip("optuna", reason="the extra search is not installed")
GIVEN: dict[str, Any] = {
    "model": "llama3-8b",
    "cluster": "64xH100_80GB",
    "mesh": {"data": "auto", "fsdp": "auto", "tp": [1, 2, 4, 8]},
    "remat": ["full", "minimal_with_context"],
    "global_batch": 256,
    "micro_batch": [1, 2, 4],
    "fidelity": "fused",
    "sampling": {"past": 30, "seed": 3},
    "budget": {"evaluations": 32},
}


@dataclass
class Smooth:
    """Gives times that are the longer the further a candidate is from one of them."""

    seed: int = 0
    made: int = 0

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        order = list(tasks)
        random.Random(self.seed).shuffle(order)  # noqa: S311 - no secret
        for task in order:
            self.made += 1
            yield task, Outcome(ending=Ending.DONE, fidelity="fused", figures=figures(task))


def figures(task: Task) -> dict[str, float | int | None]:
    mesh = cast("dict[str, int]", task.candidate["mesh"])
    step_s = 1.0 + abs(log2(mesh["tp"] / 4)) + abs(log2(mesh["data"] / 8))
    step_s += 0.5 * (task.candidate["remat"] == "full")
    step_s += 0.3 * abs(log2(cast("int", task.candidate["micro_batch"]) / 2))
    return {
        "step_time_s": step_s,
        "tokens_per_s": 1e6 / step_s,
        "peak_memory_bytes": 10**9 * mesh["data"],
    }


def run(study: Study, directory: Path, executor: Smooth) -> list[Row]:
    with opened(directory) as store:
        return run_study(study, store, executor, lambda _rows: None)


def shown(rows: Sequence[Row], study: Study) -> list[dict[str, object]]:
    return [row.to_dict() for row in in_order(rows, study.goal)]


@pytest.mark.parametrize(
    "goal",
    [
        pytest.param({"minimise": "step_time_s"}, marks=pytest.mark.rest),
        {"pareto": ["step_time_s", "peak_memory_bytes"]},
    ],
    ids=["one goal", "two goals"],
)
def test_the_same_is_chosen_in_any_order_of_outcomes(tmp_path: Path, goal: Any) -> None:
    study = study_of({**GIVEN, "goal": goal})
    tables: list[list[dict[str, object]]] = []
    for seed in range(2):
        executor = Smooth(seed=seed)
        tables.append(shown(run(study, tmp_path / str(seed), executor), study))
        assert executor.made == 32
    assert tables[0] == tables[1]
    left = [row for row in tables[0] if row["status"] == Status.PRUNED.value]
    assert any("sampling: 32 of" in str(row["reason"]) for row in left)
    # A run of a directory that is done makes nothing again, and chooses the same.
    again = Smooth()
    assert shown(run(study, tmp_path / "0", again), study) == tables[0]
    assert again.made == 0


def test_what_is_chosen_is_near_the_best(tmp_path: Path) -> None:
    sampled = study_of(GIVEN)
    whole = study_of({name: GIVEN[name] for name in GIVEN if name not in {"sampling", "budget"}})
    best = [
        min(row.figures["step_time_s"] or 9 for row in rows if row.status is Status.DONE)
        for rows in (
            run(sampled, tmp_path / "sampled", Smooth()),
            run(whole, tmp_path / "whole", Smooth()),
        )
    ]
    assert best[0] <= 1.5 * best[1]


def test_a_study_that_is_small_enough_is_not_sampled(tmp_path: Path) -> None:
    study = study_of({**GIVEN, "sampling": {"past": 10**6}})
    rows = run(study, tmp_path, Smooth())
    assert not any("sampling" in row.reason for row in rows)


def test_what_sampling_needs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"add budget: \{evaluations: 200\}"):
        study_of({**GIVEN, "budget": {}})
    with pytest.raises(ConfigError, match="sampling"):
        study_of({**GIVEN, "sampling": {"passed": 3}})
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ExtraMissingError, match=r"hespas\[search\]"):
        run(study_of(GIVEN), tmp_path, Smooth())
