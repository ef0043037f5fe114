"""Write files and output directories atomically."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from hespas.base.frozen import frozen
from hespas.errors import OutputError, option

MARK_FILE = "hespas_output.json"
_OURS = re.compile(
    r"dev\.\d+\.et|comm_group\.json|module_stats\.json|mini_module_\d+\.(mlir|json)"
    rf"|private_functions\.mlir|dependency_graph\.dot|regions\.json|{re.escape(MARK_FILE)}"
)


def change_of(path: Path) -> tuple[int, int]:
    """Return a path's last change (ns) and bytes.

    A process that stays keys by this what it read. Both are 0 for a path that cannot be read.
    """
    try:
        states = [inner.stat() for inner in (path.rglob("*") if path.is_dir() else (path,))]
    except OSError:
        return 0, 0
    changed_ns = max((state.st_mtime_ns for state in states), default=0)
    return changed_ns, sum(state.st_size for state in states)


def json_bytes(value: object) -> bytes:
    r"""Return a value as indented JSON; floats keep every bit.

    >>> json_bytes({"a": [1, 0.5]})
    b'{\n "a": [\n  1,\n  0.5\n ]\n}\n'
    """
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically; `OutputError` on failure."""
    with replaced_file(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replaced_file(path: Path) -> Generator[Path]:
    """Yield a temporary file that replaces ``path`` on success.

    If ``path`` is no plain file, such as a link, a pipe or ``/dev/null``, the content is written to
    it instead. Raises `OutputError` if it cannot be written; ``path`` is unchanged then.
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
        raise _write_error(path, error) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_file(path: Path, *, made_later: Path | None = None) -> None:
    """Raise `OutputError` early if a file cannot be written.

    ``made_later`` is a directory that will exist when the file is written.
    """
    if path.is_dir():
        raise OutputError("is a directory, not a file", location=str(path))
    parent = path.parent
    if parent.is_dir() or (made_later and _resolved(parent) == _resolved(made_later)):
        return
    problem = "is a file, not a directory" if parent.exists() else "is no directory"
    raise OutputError(f"cannot be written: {parent} {problem}", location=str(path), hint="make it")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _write_error(path: Path, error: OSError) -> OutputError:
    return OutputError(
        f"cannot be written: {error.strerror or error}",
        location=str(path),
        hint="choose another path, or change its permissions",
    )


@frozen
class OutputMark:
    """The workload of an output directory: its name and content."""

    workload: str
    content: str


@contextmanager
def staged_directory(target: Path, mark: OutputMark, *, clean: bool) -> Generator[Path]:
    """Yield a directory whose files move to ``target`` on success.

    Files of an earlier run of the same workload are replaced; files that hespas did not write
    stay. Raises `OutputError` if ``target`` holds another workload's files and ``clean`` is
    False, or cannot be written. On any error, Ctrl-C too, ``target`` and the directories above
    it are unchanged.
    """
    check_output(target, mark, clean=clean)
    with directory_beside(target) as stage:
        yield stage
        text = json.dumps({"workload": mark.workload, "content": mark.content})
        (stage / MARK_FILE).write_text(text + "\n")
        _publish(stage, _resolved(target))


@contextmanager
def directory_beside(target: Path) -> Generator[Path]:
    """Yield a temporary empty directory on ``target``'s file system.

    Files left in it are removed. Raises `OutputError` if it or its content cannot be written.
    Directories created above ``target`` are removed if ``target`` does not exist in the end.
    """
    home = _resolved(target)
    created_parents = [parent for parent in home.parents if not parent.exists()]
    stage: Path | None = None
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{home.name}.", dir=home.parent))
        yield stage
    except OSError as error:
        raise _write_error(target, error) from error
    finally:
        if stage is not None:
            shutil.rmtree(stage, ignore_errors=True)
        if not home.exists():
            _remove_empty(created_parents)


def move_directory(stage: Path, target: Path) -> None:
    """Move a directory to an empty or missing target."""
    stage.chmod(0o777 & ~_umask())
    stage.rename(_resolved(target))


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # of Python 3.13, and of earlier ones
        raise OutputError("is a link that leads to itself", location=str(path)) from error


def _remove_empty(directories: list[Path]) -> None:
    """Remove directories, innermost first, until one is not empty."""
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:
            return


def check_output(target: Path, mark: OutputMark, *, clean: bool) -> None:
    """Raise `OutputError` for a file or another workload's directory."""
    nearest = next((path for path in (target, *target.parents) if path.exists()), None)
    if nearest is not None and not nearest.is_dir():
        subject = "" if nearest == target else f"{nearest} "
        raise OutputError(
            f"{subject}is a file, not a directory", location=str(target), hint="choose another path"
        )
    if clean or not target.is_dir():
        return
    present = _read_mark(target)
    if present is not None and present.content != mark.content:
        raise OutputError(
            f"holds the files of another workload ({present.workload})",
            location=str(target),
            hint=f"choose another directory, or replace them with {option('clean')}",
        )
    if present is None and any(_OURS.fullmatch(entry.name) for entry in target.iterdir()):
        raise OutputError(
            "holds trace files of unknown origin",
            location=str(target),
            hint=f"choose another directory, or replace them with {option('clean')}",
        )


def _read_mark(target: Path) -> OutputMark | None:
    try:
        data = json.loads((target / MARK_FILE).read_text())
        return OutputMark(workload=str(data["workload"]), content=str(data["content"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _publish(stage: Path, target: Path) -> None:
    """Move the staged files to ``target``.

    A missing target takes one rename. In an existing target the mark is removed first and written
    last: a directory without a mark is incomplete, as after a power cut.
    """
    if not target.exists():
        move_directory(stage, target)
        return
    old = [entry for entry in target.iterdir() if _OURS.fullmatch(entry.name)]
    for entry in sorted(old, key=lambda entry: entry.name != MARK_FILE):
        entry.unlink()
    for entry in sorted(stage.iterdir(), key=lambda entry: entry.name == MARK_FILE):
        # A cache that another process created meanwhile stays.
        if not (entry.is_dir() and (target / entry.name).exists()):
            entry.replace(target / entry.name)
