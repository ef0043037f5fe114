"""A study's run: what is pruned, screened and compiled, whoever works and however it is cut off."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hespas.errors import ConfigError, OutputError
from hespas.study import entry as entries
from hespas.study.executor import Ending, Executor, Outcome, Phase, Task
from hespas.study.rows import Row, Status, in_order
from hespas.study.run import run_study
from hespas.study.space import candidate_of
from hespas.study.store import opened, reading
from hespas.study.study import Study, study_of

FIRST = {
    "model": "llama3-100m",
    "cluster": "16xH100_80GB",
    "mesh": {"data": "auto", "fsdp": "auto"},
    "remat": ["full", "minimal_with_context"],
    "global_batch": 64,
    "micro_batch": [1, 2, 4],
}


@dataclass
class Synthetic:
    """Gives figures that follow from the candidate alone, in a random order."""

    seed: int = 0
    stops_after: int | None = None
    evaluated: list[Task] = field(default_factory=list[Task])

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        order = list(tasks)
        random.Random(self.seed).shuffle(order)  # noqa: S311 - no secret
        for task in order:
            if self.stops_after is not None and len(self.evaluated) >= self.stops_after:
                raise KeyboardInterrupt
            self.evaluated.append(task)
            yield task, outcome_of(task)


def outcome_of(task: Task) -> Outcome:
    drawn = random.Random(repr(sorted(task.candidate.items(), key=str)))  # noqa: S311 - as above
    step_s = drawn.uniform(1.0, 2.0)
    if drawn.random() < 0.05:
        return Outcome(ending=Ending.FAILED, reason="it can't be done")
    if task.phase is Phase.COMPILE:
        step_s *= drawn.uniform(0.9, 1.0)
    return Outcome(
        ending=Ending.DONE,
        fidelity=task.phase.value,
        figures={
            "step_time_s": step_s,
            "tokens_per_s": 64 * 4096 / step_s,
            "tokens_per_s_per_device": 4 * 4096 / step_s,
            "peak_memory_bytes": round(drawn.uniform(60e9, 100e9)),
            "memory_capacity_bytes": 85899345920,
            "devices": 16,
        },
    )


@pytest.fixture
def has_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(part: str | None) -> dict[str, str]:
        return {"compiler": "1"}

    monkeypatch.setattr(entries, "compiler_of", installed)


def run(study: Study, directory: Path, executor: Executor) -> list[Row]:
    with opened(directory) as store:
        return run_study(study, store, executor, lambda _rows: None)


def shown(rows: Sequence[Row], study: Study) -> list[dict[str, object]]:
    return [row.to_dict() for row in in_order(rows, study.goal)]


def study(**changes: Any) -> Study:
    return study_of({**FIRST, **changes})


@pytest.mark.usefixtures("has_compiler")
def test_all_are_screened_and_the_best_compiled(tmp_path: Path) -> None:
    chosen = study(budget={"compile": 3})
    executor = Synthetic()
    rows = run(chosen, tmp_path, executor)
    statuses = [row.status for row in rows]
    assert statuses.count(Status.DONE) == 3
    assert Status.WAITING not in statuses
    compiled = [task for task in executor.evaluated if task.phase is Phase.COMPILE]
    assert len(compiled) == 3
    assert all(task.with_report for task in compiled)
    left = [row for row in rows if row.status is Status.SCREENED]
    done = [row for row in rows if row.status is Status.DONE]
    slowest_s = max(row.figures["screened_step_time_s"] or 0 for row in done)
    assert all((row.figures["step_time_s"] or 0) >= slowest_s for row in left)


def test_without_a_compiler_the_model_of_it_is_the_answer(tmp_path: Path) -> None:
    rows = run(study(), tmp_path, Synthetic())
    assert {row.status for row in rows} == {Status.DONE, Status.FAILED}
    assert {row.fidelity for row in rows if row.status is Status.DONE} == {"fused"}


def test_the_order_of_outcomes_changes_nothing(tmp_path: Path) -> None:
    chosen = study(where="memory.fits", budget={"compile": 4})
    tables = [
        shown(run(chosen, tmp_path / str(seed), Synthetic(seed=seed)), chosen) for seed in range(3)
    ]
    assert tables[0] == tables[1] == tables[2]


@pytest.mark.usefixtures("has_compiler")
def test_a_run_that_is_cut_off_anywhere_goes_on_to_the_same_table(tmp_path: Path) -> None:
    chosen = study(where="memory.fits", budget={"compile": 4})
    whole = Synthetic()
    expected = shown(run(chosen, tmp_path / "whole", whole), chosen)
    parts, made, attempts = tmp_path / "parts", 0, 0
    while True:
        attempts += 1
        executor = Synthetic(seed=attempts, stops_after=7)
        try:
            rows = run(chosen, parts, executor)
        except KeyboardInterrupt:
            made += len(executor.evaluated)
            continue
        made += len(executor.evaluated)
        break
    assert attempts > 3
    assert shown(rows, chosen) == expected
    # What stops a run stops it between an outcome and the next: none is made twice.
    assert made == len(whole.evaluated)


def test_a_study_that_is_stopped_again_still_says_what_was_done_before(tmp_path: Path) -> None:
    chosen = study(where="memory.fits")
    decided: list[int] = []
    for seed in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(chosen, tmp_path, Synthetic(seed=seed, stops_after=3))
        with reading(tmp_path) as store:
            decided.append(sum(bool(row.evaluation) for row in store.rows()))
    assert decided == [3, 6]


@pytest.mark.usefixtures("has_compiler")
def test_those_that_turn_out_not_to_fit_make_room_for_the_next(tmp_path: Path) -> None:
    chosen = study(where="memory.fits", budget={"compile": 6})
    executor = Synthetic()
    rows = run(chosen, tmp_path, executor)
    done = [row for row in rows if row.status is Status.DONE]
    assert all(row.fits for row in done)
    pruned = [row for row in rows if row.reason == "where: memory.fits"]
    compiled = sum(task.phase is Phase.COMPILE for task in executor.evaluated)
    failed = [row for row in rows if row.status is Status.FAILED and row.figures.get("step_time_s")]
    assert compiled == len(done) + len(pruned) + len(failed)
    assert len(done) == 6 or compiled == 12


def test_what_cannot_be_divided_is_pruned_with_the_reason(tmp_path: Path) -> None:
    chosen = study(mesh={"fsdp": "auto", "tp": [1, 2]})
    rows = run(chosen, tmp_path, Synthetic())
    reasons = {row.reason for row in rows if (row.candidate["mesh"] == {"fsdp": 8, "tp": 2})}
    assert reasons == {
        "heads = 9 cannot be divided by tp=2 of the mesh; choose a mesh whose tp divides it"
    }


def test_what_needs_too_much_memory_is_not_evaluated(tmp_path: Path) -> None:
    executor = Synthetic()
    chosen = study_of(
        {
            "model": "llama3-70b",
            "cluster": "64xH100_80GB",
            "mesh": {"data": "auto", "fsdp": "auto"},
            "global_batch": 64,
            "where": "memory.fits",
        }
    )
    rows = run(chosen, tmp_path, executor)
    reasons = {str(row.candidate["mesh"]): row.reason for row in rows}
    assert "memory: at least" in reasons["{'data': 64, 'fsdp': 1}"]
    assert all(task.candidate["mesh"] != {"data": 64, "fsdp": 1} for task in executor.evaluated)


def test_the_most_promising_are_predicted_first(tmp_path: Path) -> None:
    executor = Synthetic()
    mesh = {"data": [1, 2], "fsdp": "auto", "tp": [1, 8]}
    chosen = study(model="llama3-8b", mesh=mesh, fidelity="fused")
    run(chosen, tmp_path, executor)
    is_promising = ["'tp': 1" in str(task.candidate["mesh"]) for task in executor.evaluated]
    # Rows cross tp's links in each layer.
    assert (len(is_promising), sum(is_promising), sum(is_promising[:4])) == (24, 12, 4)


class Larger(Synthetic):
    """Candidates take three times the memory that is expected of them."""

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        for task, outcome in super().outcomes(tasks):
            figures = {**outcome.figures, "peak_memory_bytes": 3 * expected_bytes(task)}
            yield task, replace(outcome, figures=figures)


def expected_bytes(task: Task) -> int:
    entry = entries.entry_of(0, candidate_of(task.candidate))
    return round(entry.expected.memory_bytes)


def test_memory_is_expected_as_those_that_are_predicted_need_it(tmp_path: Path) -> None:
    executor = Larger()
    chosen = study(model="llama3-8b", mesh="fsdp=16", sequence=[1024, 2048, 3072, 4096])
    run(chosen, tmp_path, executor)
    needed = [expected_bytes(task) for task in executor.evaluated]
    assert len(needed) == 24
    assert max(needed) < 85.9e9
    fitting = [3 * size < 85.9e9 for size in needed]
    assert 0 < sum(fitting[4:]) <= 16
    # Four are predicted before that is known, and others sixteen at a time.
    assert sum(fitting[4:20]) == sum(fitting[4:])
    assert not all(fitting[20:])


@pytest.mark.usefixtures("has_compiler")
def test_bounds_of_time_prune_what_is_slower_than_what_is_compiled(tmp_path: Path) -> None:
    sizes = [512 * factor for factor in range(1, 61)]
    chosen = study(
        model="llama3-8b",
        micro_batch=1,
        mesh="fsdp=16",
        remat="full",
        sequence=sizes,
        budget={"compile": 2},
    )
    executor = Synthetic()
    rows = run(chosen, tmp_path, executor)
    pruned = [row for row in rows if row.reason.startswith("time: ")]
    assert pruned
    kept = [row.figures["step_time_s"] or 0 for row in rows if row.status is Status.DONE]
    assert all((row.figures["least_step_time_s"] or 0) > min(kept) for row in pruned)


def test_bounds_of_time_prune_without_a_compiler_too(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"micro_batch": 1, "mesh": "fsdp=16", "remat": "full"}
    sizes = [512 * factor for factor in range(1, 61)]
    chosen = study(model="llama3-8b", sequence=sizes, budget={"compile": 2}, **keys)
    rows = run(chosen, tmp_path / "best", Synthetic())
    pruned = {row.number for row in rows if row.reason.startswith("time: ")}
    # All that is pruned takes longer than what the two best take.
    every = study(model="llama3-8b", sequence=sizes, fidelity="fused", **keys)
    whole = run(every, tmp_path / "all", Synthetic())
    done = [row for row in whole if row.status is Status.DONE]
    assert len(done) + sum(row.status is Status.FAILED for row in whole) == len(sizes)
    steps = sorted(row.figures["step_time_s"] or 0 for row in rows if row.status is Status.DONE)
    assert len(pruned) > 20
    assert all((rows[number].figures["least_step_time_s"] or 0) > steps[1] for number in pruned)


def test_a_budget_is_kept(tmp_path: Path) -> None:
    chosen = study(budget={"evaluations": 5})
    executor = Synthetic()
    rows = run(chosen, tmp_path, executor)
    assert len(executor.evaluated) == 5
    assert {row.reason for row in rows if row.status is Status.PRUNED} >= {"budget: 5 evaluations"}
    short = study(budget={"minutes": 1e-9})
    rows = run(short, tmp_path / "short", Synthetic())
    assert {row.reason for row in rows if row.status is Status.PRUNED} >= {"budget: 1e-09 minutes"}


def test_equal_programs_are_predicted_once(tmp_path: Path) -> None:
    executor = Synthetic()
    chosen = study(
        mesh=["fsdp=16", "fsdp=16,data=1"], remat="full", micro_batch=1, fidelity="fused"
    )
    rows = run(chosen, tmp_path, executor)
    assert len(rows) == 2
    assert len(executor.evaluated) == 1
    assert rows[0].figures == rows[1].figures


@dataclass
class Full(Synthetic):
    """A machine whose disk is full after some evaluations."""

    room: int = 5

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        for task, outcome in super().outcomes(tasks):
            if len(self.evaluated) > self.room:
                yield task, Outcome(ending=Ending.REFUSED, reason="No space left on device")
            yield task, outcome


def test_a_machine_that_cannot_go_on_stops_the_study_and_spoils_no_candidate(
    tmp_path: Path,
) -> None:
    chosen = study()
    expected = shown(run(chosen, tmp_path / "whole", Synthetic()), chosen)
    with pytest.raises(OutputError, match="the study cannot go on: No space left on device"):
        run(chosen, tmp_path / "full", Full())
    with opened(tmp_path / "full") as store:
        assert store.counts().evaluations == 5
    assert shown(run(chosen, tmp_path / "full", Synthetic()), chosen) == expected


def test_prices_change_costs_and_nothing_is_evaluated_again(tmp_path: Path) -> None:
    price = {"part": "H100_80GB", "usd_per_device_hour": 3.6, "source": "an example"}
    chosen = study(prices=[price], goal={"minimise": "usd_per_mtoken"}, micro_batch=1)
    rows = run(chosen, tmp_path, Synthetic())
    row = next(row for row in rows if row.status is Status.DONE)
    step_s = row.figures["step_time_s"] or 0
    assert row.figures["usd_per_step"] == pytest.approx(16 * 3.6 / 3600 * step_s)
    tokens = 64 * 4096
    assert row.figures["usd_per_mtoken"] == pytest.approx(16 * 3.6 / 3600 * step_s / (tokens / 1e6))


def test_a_study_in_which_nothing_can_be_run_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no model or file"):
        run(study(model="llama3-100n"), tmp_path, Synthetic())


def test_one_misspelled_model_of_several_is_no_pruned_candidate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'llama3-100m'"):
        run(study(model=["llama3-100m", "llama3-100n"]), tmp_path, Synthetic())
