"""Report the versions of hespas and of packages."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
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
    for directory in map(Path, sys.path):
        with suppress(OSError):
            versions = _versions_in(directory, directory.stat().st_mtime_ns)
            if normalised_name in versions:
                return versions[normalised_name]
    from importlib.metadata import version as other_version  # noqa: PLC0415 - as above

    return other_version(package)


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    versions: dict[str, str] = {}
    for package in packages:
        with suppress(ModuleNotFoundError):
            versions[package] = installed_version(package)
    return versions


@cache
def _versions_in(directory: Path, changed_ns: int) -> Mapping[str, str]:
    """Return the versions of packages in a directory's state."""
    del changed_ns
    versions: dict[str, str] = {}
    for package in directory.glob("*.dist-info"):
        name, _, version = package.stem.partition("-")
        versions.setdefault(_SEPARATORS.sub("_", name).lower(), version)
    return versions
