"""Directories for runs of other programs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_directory(purpose: str) -> Generator[Path]:
    """Make a directory that goes after the work in it, and stays, for its log, where that fails.

    ``purpose`` is part of its name. With a user's interruption it goes too.

    >>> with scratch_directory("example") as directory:
    ...     directory.is_dir()
    True
    >>> directory.exists()
    False
    """
    directory = Path(tempfile.mkdtemp(prefix=f"hespas-{purpose}-"))
    try:
        yield directory
    except Exception:
        raise
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory, ignore_errors=True)
