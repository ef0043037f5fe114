"""A prediction that one study made is there for the next one, and only what can be known is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hespas.study.executor import Ending, Outcome, Task
from hespas.study.rows import Row
from hespas.study.run import run_study
from hespas.study.store import OutcomeCache, opened
from hespas.study.study import study_of

BLOCK = Path(__file__).parents[3] / "examples" / "attention_block.mlir"
MODEL: dict[str, Any] = {
    "model": "llama3-100m",
    "cluster": "8xH100_80GB",
    "mesh": {"data": "auto", "fsdp": "auto"},
    "fidelity": "fused",
}


@dataclass
class Counting:
    """Gives every task figures, or the reason why it failed, and counts tasks."""

    ending: Ending = Ending.DONE
    asked: list[Task] = field(default_factory=list[Task])

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        for task in tasks:
            self.asked.append(task)
            figures: dict[str, float | int | None] = {"step_time_s": len(str(task.candidate)) / 7}
            is_done = self.ending is Ending.DONE
            yield (
                task,
                Outcome(
                    ending=self.ending,
                    figures=figures if is_done else {},
                    reason="" if is_done else "no",
                    elapsed_s=3.0,
                ),
            )


def run(
    given: dict[str, Any], directory: Path, kept: Path, ending: Ending = Ending.DONE
) -> tuple[list[Row], int]:
    """Return the rows of a study, and how many tasks were made for it."""
    executor = Counting(ending)
    with opened(directory) as store:
        outcomes = OutcomeCache(directory=kept)
        rows = run_study(study_of(given), store, executor, lambda _: None, cache=outcomes)
    return rows, len(executor.asked)


def test_another_study_of_the_same_candidates_predicts_nothing(tmp_path: Path) -> None:
    first, made = run(MODEL, tmp_path / "a", tmp_path / "kept")
    again, made_again = run({**MODEL, "title": "another"}, tmp_path / "b", tmp_path / "kept")
    assert (made, made_again) == (4, 0)
    assert again == first
    with opened(tmp_path / "b") as store:
        assert store.counts().evaluations == 4
        assert store.counts().elapsed_s == 0


def test_other_candidates_and_other_ways_are_predicted(tmp_path: Path) -> None:
    run(MODEL, tmp_path / "a", tmp_path / "kept")
    for number, changed in enumerate(({"sequence": 512}, {"fidelity": "exported"})):
        _, made = run({**MODEL, **changed}, tmp_path / str(number), tmp_path / "kept")
        assert made == 4


def test_what_failed_is_tried_again(tmp_path: Path) -> None:
    run(MODEL, tmp_path / "a", tmp_path / "kept", Ending.FAILED)
    _, made = run(MODEL, tmp_path / "b", tmp_path / "kept")
    assert made == 4


def test_what_names_do_not_say_is_predicted_again(tmp_path: Path) -> None:
    slow = tmp_path / "slow.yaml"
    slow.write_text("devices: [{devices: [0], compute_scale: 2}]\n")
    program = {"model": str(BLOCK), "cluster": "4xH100_80GB", "fidelity": "exported"}
    for name, given in {"file": {**MODEL, "imperfect": str(slow)}, "program": program}.items():
        made = [run(given, tmp_path / f"{name}{at}", tmp_path / "kept")[1] for at in range(2)]
        assert made[0] == made[1] > 0


def test_a_damaged_file_and_a_directory_that_cannot_be_used_count_as_nothing(
    tmp_path: Path,
) -> None:
    rows, _ = run(MODEL, tmp_path / "a", tmp_path / "kept")
    for file in (tmp_path / "kept").iterdir():
        file.write_bytes(file.read_bytes()[:-3])
    assert run(MODEL, tmp_path / "b", tmp_path / "kept") == (rows, 4)
    (tmp_path / "file").write_text("")
    assert run(MODEL, tmp_path / "c", tmp_path / "file") == (rows, 4)
