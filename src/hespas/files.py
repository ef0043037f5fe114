"""Write files so that nobody ever sees half of one."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hespas.errors import OutputError

MARK_FILE = "hespas_output.json"
_OURS = re.compile(
    r"dev\.\d+\.et|comm_group\.json|module_stats\.json|mini_module_\d+\.(mlir|json)"
    rf"|private_functions\.mlir|dependency_graph\.dot|regions\.json|{re.escape(MARK_FILE)}"
)


def json_bytes(value: object) -> bytes:
    r"""Return a value as indented JSON; floats keep every bit.

    >>> json_bytes({"a": [1, 0.5]})
    b'{\n "a": [\n  1,\n  0.5\n ]\n}\n'
    """
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def write_file(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and move it into place; `OutputError` on failure."""
    with replaced_file(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replaced_file(path: Path) -> Generator[Path]:
    """Give the name of a temporary file to fill, which becomes ``path`` only if all goes well.

    What is no plain file, such as a link, a pipe or ``/dev/null``, stays and is written to.
    Raises `OutputError` where it cannot be written; then ``path`` stays as it was.
    """
    check_file(path)
    plain = not path.is_symlink() and (path.is_file() or not path.exists())
    temporary: Path | None = None
    try:
        directory = path.parent if plain else None
        handle, name = tempfile.mkstemp(dir=directory, prefix=".hespas-")
        temporary = Path(name)
        os.close(handle)
        yield temporary
        if plain:
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
        else:
            path.write_bytes(temporary.read_bytes())
    except OSError as error:
        raise _failed(path, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_file(path: Path, *, made_later: Path | None = None) -> None:
    """Raise `OutputError` where a file can't be written: told before the work, not after.

    ``made_later`` is a directory that will be there when the file is written.
    """
    if path.is_dir():
        raise OutputError("is a directory, not a file", location=str(path))
    parent = path.parent
    if parent.is_dir() or (made_later and _resolved(parent) == _resolved(made_later)):
        return
    what = "is a file, not a directory" if parent.exists() else "is no directory"
    raise OutputError(f"cannot be written: {parent} {what}", location=str(path), hint="make it")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _failed(path: Path, error: OSError) -> OutputError:
    return OutputError(
        f"cannot be written: {error.strerror or error}",
        location=str(path),
        hint="choose another place, or mend its permissions",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputMark:
    """What an output directory holds: the workload's content, and the name it was read from."""

    workload: str
    content: str


@contextmanager
def staged_directory(target: Path, mark: OutputMark, *, clean: bool) -> Generator[Path]:
    """Give a directory to fill; what it holds becomes ``target`` only if all goes well.

    Files of an earlier run of the same workload are replaced; files that hespas didn't write
    stay. Raises `OutputError` where ``target`` holds another workload's files and ``clean`` is
    False, or cannot be written. On any error, Ctrl-C too, ``target`` and the directories above
    it stay as they were.
    """
    check_output(target, mark, clean=clean)
    home = _resolved(target)
    made = _missing_parents(home)
    stage: Path | None = None
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{home.name}.", dir=home.parent))
        yield stage
        text = json.dumps({"workload": mark.workload, "content": mark.content})
        (stage / MARK_FILE).write_text(text + "\n")
        _publish(stage, home)
    except OSError as error:
        raise _failed(target, error) from error
    finally:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)
        if not home.exists():
            _remove_empty(made)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (
        OSError,
        RuntimeError,
    ) as error:  # Python 3.13 raises the first, earlier ones the second
        raise OutputError("is a link that leads to itself", location=str(path)) from error


def _missing_parents(path: Path) -> list[Path]:
    return [parent for parent in path.parents if not parent.exists()]


def _remove_empty(directories: list[Path]) -> None:
    """Remove directories, innermost first, up to one that another process uses by now."""
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:
            return


def check_output(target: Path, mark: OutputMark, *, clean: bool) -> None:
    """Raise `OutputError` where ``target`` is no directory, or holds another workload's files."""
    above = next((path for path in (target, *target.parents) if path.exists()), None)
    if above is not None and not above.is_dir():
        what = "" if above == target else f"{above} "
        raise OutputError(
            f"{what}is a file, not a directory", location=str(target), hint="choose another place"
        )
    if clean or not target.is_dir():
        return
    found = _read_mark(target)
    if found is not None and found.content != mark.content:
        raise OutputError(
            f"holds the files of another workload ({found.workload})",
            location=str(target),
            hint="choose another directory, or replace them with --clean",
        )
    if found is None and any(_OURS.fullmatch(entry.name) for entry in target.iterdir()):
        raise OutputError(
            "holds trace files of unknown origin",
            location=str(target),
            hint="choose another directory, or replace them with --clean",
        )


def _read_mark(target: Path) -> OutputMark | None:
    try:
        data = json.loads((target / MARK_FILE).read_text())
        return OutputMark(workload=str(data["workload"]), content=str(data["content"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _publish(stage: Path, target: Path) -> None:
    """Move the staged files to ``target``, by one rename where nothing is there yet.

    Where something is, the mark goes first and comes last: a directory that a power cut left
    in between has none, and is not taken for a whole one.
    """
    stage.chmod(0o777 & ~_umask())
    if not target.exists():
        stage.rename(target)
        return
    old = [entry for entry in target.iterdir() if _OURS.fullmatch(entry.name)]
    for entry in sorted(old, key=lambda entry: entry.name != MARK_FILE):
        entry.unlink()
    for entry in sorted(stage.iterdir(), key=lambda entry: entry.name == MARK_FILE):
        # A cache that another process made meanwhile stays.
        if not (entry.is_dir() and (target / entry.name).exists()):
            entry.replace(target / entry.name)
