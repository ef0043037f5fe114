"""Report the versions of hespas and of packages, for cache keys."""

from __future__ import annotations

import re
import sys
from pathlib import Path

__version__ = "0.1.0"

_SEPARATORS = re.compile(r"[-_.]+")


def installed_version(package: str) -> str:
    """Return a package's version; `ModuleNotFoundError` if it isn't installed.

    The names of packages' directories contain it. `importlib.metadata`, which takes 40 ms to
    import, handles packages installed in other ways.

    >>> installed_version("msgspec")[0].isdigit()
    True
    """
    normalised_name = _SEPARATORS.sub("_", package).lower()
    for directory in sys.path:
        for directory_of_package in Path(directory).glob("*.dist-info"):
            name, _, version = directory_of_package.stem.partition("-")
            if _SEPARATORS.sub("_", name).lower() == normalised_name:
                return version
    from importlib.metadata import version as other_version  # noqa: PLC0415 - as above

    return other_version(package)
