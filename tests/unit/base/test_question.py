from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest

from hespas.base.process import Limits
from hespas.base.question import ask, reused_processes
from hespas.errors import ProgramError, ToolError

ANSWERER = """
import os
from threading import Event, Thread

import msgspec
from hespas import errors
from hespas.base.question import serve

class Question(msgspec.Struct):
    number: int

class Doubled(msgspec.Struct):
    number: int
    process: int

def answered(question, home):
    if question.number < 0:
        raise errors.ProgramError("it is negative", location="a.mlir", hint="give another")
    if question.number == 0:
        raise errors.ToolError("it broke")
    if question.number == 1:
        raise SystemExit(0)
    if question.number == 3:
        Thread(target=Event().wait).start()
    return Doubled(number=2 * question.number, process=os.getpid())

ANSWERS = (Question, answered)

if __name__ == "__main__":
    serve(*ANSWERS)
"""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    number: int


class Doubled(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    process: int


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "modules").mkdir()
    for module in ("answerer", "other"):
        (tmp_path / "modules" / f"{module}.py").write_text(ANSWERER)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path / "modules"), *sys.path]))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def asked(number: int, home: Path, *, again: bool = False, module: str = "answerer") -> Doubled:
    return ask(
        module,
        Question(number=number),
        Doubled,
        name="the doubler",
        directory=home,
        limits=Limits(time_s=60),
        again=again,
    )


def test_a_question_is_answered(home: Path) -> None:
    assert asked(4, home).number == 8


def test_threads_that_never_end_hold_no_answer_back(home: Path) -> None:
    assert asked(3, home).number == 6


def test_errors_of_the_module_are_raised_here(home: Path) -> None:
    with pytest.raises(ProgramError, match=r"^a\.mlir: it is negative; give another") as caught:
        asked(-1, home)
    assert "answered" in caught.value.__notes__[0]
    assert not home.exists()


@pytest.mark.parametrize(("number", "why"), [(0, "it broke"), (1, "left no answer")])
def test_a_process_that_breaks_keeps_its_log(home: Path, number: int, why: str) -> None:
    with pytest.raises(ToolError, match=why) as caught:
        asked(number, home)
    assert str(home / "log.txt") in str(caught.value)
    assert (home / "log.txt").exists()


def homes(home: Path, count: int) -> list[Path]:
    made = [home / str(number) for number in range(count)]
    for each in made:
        each.mkdir()
    return made


def test_a_process_that_is_kept_answers_all_questions_of_its_block(home: Path) -> None:
    first, second, alone, after = homes(home, 4)
    with reused_processes():
        answers = [asked(4, first, again=True), asked(5, second, again=True)]
        other = asked(6, alone)
    assert [answer.number for answer in answers] == [8, 10]
    assert answers[0].process == answers[1].process != other.process
    with pytest.raises(ProcessLookupError):
        os.kill(answers[0].process, 0)
    assert asked(4, after, again=True).process != answers[0].process


def test_one_process_answers_for_all_modules_and_blocks_inside_of_a_block(home: Path) -> None:
    first, second, third = homes(home, 3)
    with reused_processes():
        with reused_processes():
            one = asked(4, first, again=True)
            other = asked(5, second, again=True, module="other")
        last = asked(6, third, again=True)
    assert [each.number for each in (one, other, last)] == [8, 10, 12]
    assert one.process == other.process == last.process


def test_a_process_that_is_kept_breaks_for_one_question_alone(home: Path) -> None:
    first, negative, broken, last = homes(home, 4)
    with reused_processes():
        process = asked(4, first, again=True).process
        with pytest.raises(ProgramError, match=r"^a\.mlir: it is negative"):
            asked(-1, negative, again=True)
        with pytest.raises(ToolError, match=rf"^{broken}/log\.txt: the doubler "):
            asked(1, broken, again=True)
        answer = asked(5, last, again=True)
    assert answer.number == 10
    assert answer.process != process
