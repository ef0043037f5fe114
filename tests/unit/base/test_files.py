from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest

from hespas.base.files import (
    MARK_FILE,
    OutputMark,
    check_file,
    directory_beside,
    json_bytes,
    move_directory,
    replaced_file,
    staged_directory,
    write_file,
)
from hespas.errors import OutputError

MARK = OutputMark(workload="p.mlir", content="0" * 64)


def fail(file: Path, error: BaseException) -> None:
    file.write_bytes(b"half of the n")
    raise error


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    write_file(file, b"one")
    write_file(file, b"two")
    assert file.read_bytes() == b"two"
    assert names(tmp_path) == {"answer.json"}


def test_a_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    write_file(tmp_path / "ours", b"")
    (tmp_path / "theirs").touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "theirs").stat().st_mode


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    file.write_bytes(b"old")
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), replaced_file(file) as temporary:
            fail(temporary, error())
    with pytest.raises(OutputError, match="No space"), replaced_file(file) as temporary:
        fail(temporary, OSError(28, "No space left on device"))
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == {"answer.json"}


def test_a_pipe_is_written_to_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe, b"answer")
    reader.join()
    assert read == [b"answer"]
    assert pipe.is_fifo()
    assert names(tmp_path) == {"pipe"}


def test_a_link_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    for content in (b"one", b"two"):
        write_file(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "file").read_bytes() == content


def test_links_to_themselves_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for location in (tmp_path / "loop", tmp_path / "loop" / "x"):
        with pytest.raises(OutputError, match="loop"):
            write_file(location, b"")
        with pytest.raises(OutputError, match="loop"):
            fill(location, "dev.0.et")
    assert names(tmp_path) == {"loop"}


def test_files_that_cannot_be_written_are_reported_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a directory, not a file"):
        check_file(tmp_path)
    with pytest.raises(OutputError, match="nowhere is no directory"):
        check_file(tmp_path / "nowhere" / "x")
    with pytest.raises(OutputError, match="file is a file, not a directory"):
        check_file(tmp_path / "file" / "x")
    check_file(tmp_path / "new")
    check_file(tmp_path / "later" / "x", made_later=tmp_path / "later")


def fill(target: Path, *files: str, mark: OutputMark = MARK, clean: bool = False) -> None:
    with staged_directory(target, mark, clean=clean) as stage:
        for name in files:
            (stage / name).parent.mkdir(exist_ok=True)
            (stage / name).write_text(name)


def test_a_directory_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "out"
    with staged_directory(target, MARK, clean=False) as stage:
        (stage / "dev.0.et").touch()
        assert not target.exists()
    assert names(target) == {"dev.0.et", MARK_FILE}
    assert names(target.parent) == {"out"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_no_directory(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), staged_directory(tmp_path / "a" / "b", MARK, clean=False) as stage:
        fail(stage / "dev.0.et", error())
    assert names(tmp_path) == set()


def test_parents_that_others_use_meanwhile_stay(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    with pytest.raises(KeyboardInterrupt), staged_directory(target, MARK, clean=False):
        fail(tmp_path / "a" / "theirs", KeyboardInterrupt())
    assert names(tmp_path) == {"a"}


def test_only_files_of_ours_are_replaced(tmp_path: Path) -> None:
    target = tmp_path / "out"
    fill(target, "dev.0.et", "dev.1.et", "mini_module_3.mlir", "cache/estimates.sqlite")
    for name in ("notes.txt", "dev.x.et", "timeline.json", "mini_module_3.txt"):
        (target / name).touch()
    fill(target, "dev.0.et")
    assert names(target) == {
        "dev.0.et", "cache", MARK_FILE, "notes.txt", "dev.x.et", "timeline.json",
        "mini_module_3.txt",
    }  # fmt: skip


def test_a_link_to_a_directory_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    fill(tmp_path / "link", "dev.0.et")
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "real") == {"dev.0.et", MARK_FILE}


def test_a_publication_that_was_cut_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    fill(target, "dev.0.et", "dev.1.et")
    moved: list[str] = []
    original = Path.replace

    def cut(self: Path, other: Path) -> Path:
        if moved:
            raise KeyboardInterrupt
        moved.append(self.name)
        return original(self, other)

    monkeypatch.setattr(Path, "replace", cut)
    with pytest.raises(KeyboardInterrupt):
        fill(target, "dev.0.et", "dev.1.et")
    monkeypatch.undo()
    assert MARK_FILE not in names(target)
    with pytest.raises(OutputError, match="unknown origin"):
        fill(target, "dev.0.et")
    fill(target, "dev.0.et", clean=True)
    assert names(target) == {"dev.0.et", MARK_FILE}


def test_the_working_directory_may_be_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    fill(Path(), "dev.0.et")
    assert names(Path()) == {"dev.0.et", MARK_FILE}
    assert names(tmp_path) == {"here"}


def test_json_keeps_every_bit() -> None:
    assert json_bytes({"a": 0.1 + 0.2, "b": [1, None]}) == (
        b'{\n "a": 0.30000000000000004,\n "b": [\n  1,\n  null\n ]\n}\n'
    )


def test_the_mask_for_rights_stays_as_it_was(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_file(tmp_path / "x", b"")
        assert os.umask(0o077) == 0o077
        assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_a_directory_moves_to_its_place_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "above" / "made"
    with pytest.raises(OutputError, match="No space left"), directory_beside(target) as stage:
        fail(stage / "one", OSError(28, "No space left on device"))
    assert names(tmp_path) == set()
    with directory_beside(target) as stage:
        (stage / "one").write_bytes(b"1")
        move_directory(stage, target)
    assert names(target) == {"one"}
    assert names(target.parent) == {"made"}
