"""What stages took before tells how long similar ones take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hespas.base.progress import Event, Report, Stage
from hespas.cli.progress import Durations


def ended(size: int, seconds: float | None, kind: str = "H100_SXM") -> Report:
    return Report(
        stage=Stage.COMPILE,
        event=Event.END,
        subject="for it",
        kind=kind,
        size=size,
        total=0,
        seconds=seconds,
    )


def test_similar_ones_are_of_a_kind_and_about_a_size(tmp_path: Path) -> None:
    durations = Durations(file=tmp_path / "not" / "there" / "durations.json")
    assert durations.of_similar(ended(1000, None)) == ()
    for size, seconds in ((1000, 30.04), (1400, 41.0), (5000, 90.0)):
        durations.add(ended(size, seconds))
    durations.add(ended(1000, 7.0, kind="B200"))
    assert durations.of_similar(ended(1000, None)) == (30.0, 41.0)
    assert durations.of_similar(ended(5000, None)) == (90.0,)
    assert durations.of_similar(ended(1000, None, kind="B200")) == (7.0,)
    assert durations.of_similar(ended(1000, None, kind="TPUv5e")) == ()


def test_what_says_nothing_about_others_is_not_kept(tmp_path: Path) -> None:
    durations = Durations(file=tmp_path / "durations.json")
    for report in (ended(1000, 0.2), ended(0, 30.0), ended(1000, None)):
        durations.add(report)
    assert not durations.file.exists()


def test_the_file_stays_small(tmp_path: Path) -> None:
    durations = Durations(file=tmp_path / "durations.json")
    for number in range(30):
        durations.add(ended(1000, 1.0 + number))
    assert durations.of_similar(ended(1000, None)) == tuple(1.0 + each for each in range(10, 30))
    for number in range(230):
        durations.add(ended(1000, 2.0, kind=f"part {number}"))
    kept = json.loads(durations.file.read_text())
    assert len(kept) == 200
    assert "compile part 229" in kept
    assert "compile H100_SXM" not in kept


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"compile H100_SXM": 3}', b"\xff"])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    durations = Durations(file=tmp_path / "durations.json")
    durations.file.write_bytes(content)
    assert durations.of_similar(ended(1000, None)) == ()
    durations.add(ended(1000, 3.0))
    assert durations.of_similar(ended(1000, None)) == (3.0,)


def test_a_directory_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    Durations(file=tmp_path / "file" / "durations.json").add(ended(1000, 3.0))
