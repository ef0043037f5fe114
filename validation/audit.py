"""Hold the locked dependencies against known vulnerabilities, without a network.

``python validation/audit.py ADVISORIES.zip`` reads advisories in OSV's format, one JSON file each,
as https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip has those of PyPI. It prints what
affects a locked version, and exits with 1 if there is any.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

LOCKS = sorted((Path(__file__).resolve().parents[1] / "requirements").glob("*.lock"))
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def main() -> int:
    """Print the advisories that affect a locked version; 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("advisories", type=Path, help="a zip archive of OSV's JSON files")
    parser.add_argument("--locks", type=Path, nargs="*", default=LOCKS)
    given = parser.parse_args()
    pins = {pin for lock in given.locks for pin in pinned(lock.read_text())}
    found = sorted(affecting(pins, read_advisories(given.advisories)))
    for name, version, advisory, summary in found:
        print(f"{name} {version}: {advisory} {summary}")
    print(f"{len(pins)} locked versions, {len(found)} advisories affect them")
    return 1 if found else 0


def pinned(lock: str) -> list[tuple[str, str]]:
    r"""Return the names and versions of a lock file.

    >>> pinned("numpy==2.4.6\n    # via jax\nPyYAML==6.0.3\n")
    [('numpy', '2.4.6'), ('pyyaml', '6.0.3')]
    """
    return [(canonicalize_name(name), version) for name, version in _PIN.findall(lock)]


def read_advisories(archive: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the advisories of an archive that are not withdrawn."""
    with ZipFile(archive) as files:
        for name in files.namelist():
            if name.endswith(".json"):
                advisory: dict[str, Any] = json.loads(files.read(name))
                if "withdrawn" not in advisory:
                    yield advisory


def affecting(
    pins: set[tuple[str, str]], advisories: Iterator[Mapping[str, Any]]
) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, version, advisory and summary of what affects a version."""
    versions: dict[str, list[str]] = {}
    for name, version in pins:
        versions.setdefault(name, []).append(version)
    for advisory in advisories:
        for affected in advisory.get("affected", ()):
            package = affected.get("package", {})
            name = canonicalize_name(str(package.get("name", "")))
            if package.get("ecosystem") != "PyPI":
                continue
            for version in versions.get(name, ()):
                if _is_affected(version, affected):
                    yield name, version, str(advisory["id"]), str(advisory.get("summary", ""))


def _is_affected(version: str, affected: Mapping[str, Any]) -> bool:
    if version in affected.get("versions", ()):
        return True
    return any(
        _is_within(Version(version), each.get("events", ()))
        for each in affected.get("ranges", ())
        if each.get("type") == "ECOSYSTEM"
    )


def _is_within(version: Version, events: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a version lies between an ``introduced`` and what ends it."""
    is_in = False
    for event in events:
        ((kind, text),) = event.items()
        try:
            at = Version(text)
        except InvalidVersion:
            continue
        match kind:
            case "introduced":
                is_in = is_in or version >= at
            case "fixed":
                is_in = is_in and version < at
            case "last_affected":
                is_in = is_in and version <= at
            case _:
                pass
    return is_in


if __name__ == "__main__":
    sys.exit(main())
