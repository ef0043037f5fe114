"""Progress: one line on a terminal, gone when the stage is; nothing elsewhere."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest

from hespas.base.progress import LOG, Stage, stage
from hespas.cli import progress
from hespas.cli.progress import Durations, ProgressLine, show_progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


@pytest.fixture
def line(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ProgressLine]:
    monkeypatch.setattr(progress, "_FIRST_S", 0.0)
    monkeypatch.setattr(progress, "_EVERY_S", 0.001)
    monkeypatch.setenv("COLUMNS", "80")
    shown = ProgressLine(stream=terminal, durations=Durations(file=tmp_path / "durations.json"))
    LOG.addHandler(shown)
    LOG.setLevel(logging.DEBUG)
    yield shown
    LOG.removeHandler(shown)
    LOG.setLevel(logging.NOTSET)


def wait_for(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def shown_by(terminal: Terminal) -> list[str]:
    """Return the lines that were visible, one after the other."""
    return [text for text in terminal.getvalue().split("\r\x1b[K") if text]


@pytest.mark.usefixtures("line")
def test_the_line_says_what_runs_and_how_far_it_is(terminal: Terminal) -> None:
    with stage(Stage.VALIDATE, "26 measured steps", total=26) as advance:
        advance(3)
        with stage(Stage.COMPILE, "for H100_SXM"):
            wait_for(lambda: "Compiling" in terminal.getvalue())
        wait_for(lambda: "26 measured steps: 0 s, 11 %" in terminal.getvalue())
    assert "3 of 26 done: Compiling for H100_SXM: 0 s" in shown_by(terminal)
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert "\n" not in terminal.getvalue()


def test_the_line_says_what_similar_ones_took(
    terminal: Terminal, line: ProgressLine, tmp_path: Path
) -> None:
    (tmp_path / "durations.json").write_text(
        '{"compile H100_SXM": [[1000, 31.0], [1100, 95.5], [9000, 400.0]]}'
    )
    with stage(Stage.COMPILE, "for it", kind="H100_SXM", size=1000):
        wait_for(lambda: "similar" in terminal.getvalue())
    assert "Compiling for it: 0 s (similar ones took 31 s to 1 min 35 s)" in shown_by(terminal)
    with stage(Stage.COMPILE, "for it", kind="H100_SXM", size=9000):
        wait_for(lambda: "a similar one took 6 min 40 s" in terminal.getvalue())
    assert line.level == logging.NOTSET


@pytest.mark.usefixtures("line")
def test_the_line_is_no_longer_than_the_terminal_is_wide(terminal: Terminal) -> None:
    with stage(Stage.EXPORT, "a model with a name " * 5):
        wait_for(lambda: "Exporting" in terminal.getvalue())
    assert {len(text) for text in shown_by(terminal)} == {79}


@pytest.mark.usefixtures("line")
def test_an_interrupt_leaves_an_empty_line(terminal: Terminal) -> None:
    def interrupted() -> None:
        with stage(Stage.COMPILE, "for H100_SXM"):
            wait_for(lambda: "Compiling" in terminal.getvalue())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert terminal.getvalue().endswith("\r\x1b[K")
    written = len(terminal.getvalue())
    time.sleep(0.01)
    assert len(terminal.getvalue()) == written


def test_short_stages_show_nothing(
    terminal: Terminal, line: ProgressLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_FIRST_S", 10.0)
    with stage(Stage.COMPILE, "for H100_SXM"):
        pass
    assert terminal.getvalue() == ""
    assert line in LOG.handlers


@pytest.mark.parametrize(
    ("stream", "term", "log_is_shown", "level"),
    [
        (Terminal(), "xterm", False, logging.DEBUG),
        (Terminal(), "xterm", True, logging.INFO),
        (Terminal(), "dumb", False, logging.INFO),
        (StringIO(), "xterm", False, logging.INFO),
        (None, "xterm", False, logging.INFO),
    ],
)
def test_only_a_terminal_without_a_log_has_the_line(
    stream: StringIO | None,
    term: str,
    log_is_shown: bool,
    level: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stderr", stream)
    before, old_level = [*LOG.handlers], LOG.level
    show_progress(log_is_shown=log_is_shown)
    show_progress(log_is_shown=log_is_shown)
    ours = [each for each in LOG.handlers if isinstance(each, ProgressLine)]
    assert len(ours) == 1
    assert LOG.level == level
    LOG.handlers[:] = before
    LOG.setLevel(old_level)


def test_nothing_is_written_where_the_log_is_shown(tmp_path: Path) -> None:
    silent = ProgressLine(stream=None, durations=Durations(file=tmp_path / "durations.json"))
    LOG.addHandler(silent)
    LOG.setLevel(logging.INFO)
    with stage(Stage.COMPILE, "for H100_SXM", kind="H100_SXM", size=3):
        pass
    LOG.removeHandler(silent)
    LOG.setLevel(logging.NOTSET)
    assert not re.search("Compiling", "".join(map(str, tmp_path.iterdir())))
