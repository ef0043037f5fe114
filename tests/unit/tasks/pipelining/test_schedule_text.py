from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import ConfigError
from hespas.tasks.pipelining.schedule import load_schedule, read_schedule


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("", "no stage has a pass"),
        ("# nothing", "no stage has a pass"),
        ("F0 B0 X1", "mine:1: 'X1' is not a pass"),
        ("F0 B0\nF0 B0 F", "mine:2: 'F' is not a pass"),
        ("F0 B0\nF0", "stage 1 lacks B0; give every stage F0 to F0, B0 to B0"),
        ("F0 F0 B0", "stage 0 has F0 2 times"),
        ("F0 B0\nF0 B0 W0", "stage 1 has W0"),
        ("F0 F1000000 B0", "micro-batch 1000000 is named"),
        ("B0 F0", "deadlocks: stage 0 at B0 waits for F0"),
        (
            "F0 B0 F1 B1\nF1 F0 B0 B1",
            "stage 0 at B0 waits for B0 of stage 1, stage 1 at F1 waits for F1 of stage 0; move",
        ),
    ],
)
def test_what_can_not_run_is_refused_in_a_line(text: str, refusal: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_schedule(text, name="mine")
    assert refusal in str(error.value)
    assert "\n" not in str(error.value)


def test_comments_and_names_of_stages_are_left_out() -> None:
    schedule = read_schedule("# mine\nfirst: F0 B0 # both\n\nF0 B0\n", name="mine")
    assert schedule.stages == 2


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.txt: cannot be read: No such file"):
        load_schedule(tmp_path / "none.txt")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is no text"):
        load_schedule(tmp_path / "bytes")
