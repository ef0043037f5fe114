"""A reader of hespas to the fuzzer: a file that is damaged, and the command that reads it."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from fuzz.mutators import Form
from hespas.cli.commands import commands, run

ROOT = Path(__file__).resolve().parents[2]
NODE = ("--node", "A100_SXM_40GB")
SYSTEM = (*NODE, "--system", "A100_SXM_40GB_4GPU")
EXPORTED = (*SYSTEM, "--as-exported", "--json", "out.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A file that is damaged, and the command that reads it in its directory.

    ``shows_cuts`` says whether the format has an end, so that a file that was cut short is never
    answered. ``is_kept`` are results that may be lost: the answer is then that of the whole file.
    ``needs`` is what has to be installed: without it the whole file is read and then refused.
    ``is_slow`` says that an input takes 60 to 900 ms of CPU in place of 1 to 30 ms, most often
    because it starts a process: it is drawn a tenth as often.
    """

    name: str
    directory: Path
    file: str
    form: Form
    words: tuple[str, ...]
    shows_cuts: bool = True
    is_kept: bool = False
    needs: str = ""
    is_slow: bool = False


def hespas(*words: str) -> None:
    """Run a command that must answer."""
    with redirect_stdout(io.StringIO()):
        code = run(commands, "hespas", words)
    if code != 0:
        raise RuntimeError(f"a good file is refused: hespas {' '.join(words)}")


def at(home: Path, name: str, files: dict[str, str | bytes]) -> Path:
    """Return a directory with files."""
    directory = home / name.replace(" ", "_")
    for file, content in files.items():
        path = directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return directory
