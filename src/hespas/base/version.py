"""Versions, which are part of every cache key: that of hespas, and those of installed packages."""

from __future__ import annotations

import re
import sys
from pathlib import Path

__version__ = "0.1.0"

_SEPARATORS = re.compile(r"[-_.]+")


def installed_version(package: str) -> str:
    """Return the version of an installed package; `ModuleNotFoundError` where it is not there.

    The names of packages' directories say it. `importlib.metadata`, which takes 40 ms to import,
    is asked for what is installed in another way.

    >>> installed_version("msgspec")[0].isdigit()
    True
    """
    wanted = _SEPARATORS.sub("_", package).lower()
    for directory in sys.path:
        for found in Path(directory).glob("*.dist-info"):
            name, _, version = found.stem.partition("-")
            if _SEPARATORS.sub("_", name).lower() == wanted:
                return version
    from importlib.metadata import version as other_version  # noqa: PLC0415 - as above

    return other_version(package)
