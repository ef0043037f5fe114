"""The user's files that a program is made of, as its imports name them."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from modulefinder import ModuleFinder
from pathlib import Path

from hespas.base.version import installed_versions

_SCRIPT = ".py"
_MOST_READ_BYTES = 2**20


def program_digests(program: str) -> dict[str, str]:
    """Return the digests of a script or module, and of the modules that it imports.

    They are found in the working directory and beside the script. Of an installed package the
    version is returned, and of packages that are imported nothing.
    """
    is_script = program.endswith(_SCRIPT)
    beside = [str(Path(program).resolve().parent)] if is_script else []
    finder = ModuleFinder(path=[*beside, str(Path.cwd())])
    # What cannot be read or parsed is refused where the program runs.
    with suppress(SyntaxError, ImportError, OSError, UnicodeDecodeError):
        if is_script:
            finder.run_script(program)
        else:
            finder.import_hook(program)
    files = {name: getattr(module, "__file__", None) for name, module in finder.modules.items()}
    found = {name: file_digest(Path(file)) for name, file in sorted(files.items()) if file}
    return found | installed_versions((program.partition(".")[0],))


def file_digest(file: Path) -> str:
    """Return what tells a file's content from others: of a large one its size and time.

    It is empty for one that is absent.
    """
    if not file.is_file():
        return ""
    status = file.stat()
    if status.st_size > _MOST_READ_BYTES:
        return f"{status.st_size} {status.st_mtime_ns}"
    return sha256(file.read_bytes()).hexdigest()
