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
    r"|private_functions\.mlir|dependency_graph\.dot|regions\.json|timeline\.json"
    rf"|{re.escape(MARK_FILE)}"
)


def json_bytes(value: object) -> bytes:
    r"""Return a value as indented JSON; floats keep every bit.

    >>> json_bytes({"a": [1, 0.5]})
    b'{\n "a": [\n  1,\n  0.5\n ]\n}\n'
    """
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def write_file(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and move it into place; `OutputError` on failure."""
    temporary = ""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".hespas-", delete=False) as file:
            temporary = file.name
            file.write(content)
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except OSError as error:
        raise _failed(path, error) from error
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _failed(path: Path, error: OSError) -> OutputError:
    return OutputError(
        f"cannot be written: {error.strerror or error}",
        place=str(path),
        mend="choose another place, or mend its permissions",
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
    False, or cannot be written. On any error, Ctrl-C too, ``target`` stays as it was.
    """
    check_output(target, mark, clean=clean)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise _failed(target, error) from error
    try:
        yield stage
        text = json.dumps({"workload": mark.workload, "content": mark.content})
        (stage / MARK_FILE).write_text(text + "\n")
        _publish(stage, target)
    except OSError as error:
        raise _failed(target, error) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def check_output(target: Path, mark: OutputMark, *, clean: bool) -> None:
    """Raise `OutputError` where ``target`` is no directory, or holds another workload's files."""
    if target.exists() and not target.is_dir():
        raise OutputError("is a file, not a directory", place=str(target))
    if clean or not target.is_dir():
        return
    found = _read_mark(target)
    if found is not None and found.content != mark.content:
        raise OutputError(
            f"holds the files of another workload ({found.workload})",
            place=str(target),
            mend="choose another directory, or replace them with --clean",
        )
    if found is None and any(_OURS.fullmatch(entry.name) for entry in target.iterdir()):
        raise OutputError(
            "holds trace files of unknown origin",
            place=str(target),
            mend="choose another directory, or replace them with --clean",
        )


def _read_mark(target: Path) -> OutputMark | None:
    try:
        data = json.loads((target / MARK_FILE).read_text())
        return OutputMark(workload=str(data["workload"]), content=str(data["content"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _publish(stage: Path, target: Path) -> None:
    """Move the staged files to ``target``, by one rename where nothing is there yet."""
    stage.chmod(0o777 & ~_umask())
    if not target.exists():
        stage.rename(target)
        return
    for entry in list(target.iterdir()):
        if _OURS.fullmatch(entry.name):
            entry.unlink()
    for entry in stage.iterdir():
        entry.replace(target / entry.name)
