"""Hold the locked dependencies against known vulnerabilities, without a network.

``python validation/audit.py FILE`` reads advisories in OSV's format: an archive of JSON files, as
https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip has those of PyPI, or one file
of an advisory, of a list of them, or of what OSV answers (``{"vulns": [...]}``). It prints what
affects a locked version, and exits with 1 if there is any, and with 2 for another file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile, ZipFile

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

LOCKS = sorted((Path(__file__).resolve().parents[1] / "requirements").glob("*.lock"))
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def main() -> int:
    """Print the advisories that affect a locked version; 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("advisories", type=Path, help="OSV's JSON files in a zip archive, or one")
    parser.add_argument("--locks", type=Path, nargs="*", default=LOCKS)
    given = parser.parse_args()
    pins = {pin for lock in given.locks for pin in pinned(lock.read_text())}
    try:
        advisories = list(read_advisories(given.advisories))
    except (OSError, BadZipFile, ValueError) as error:
        print(f"{given.advisories}: holds no advisories: {error}", file=sys.stderr)
        return 2
    found = sorted(set(affecting(pins, advisories)))
    for name, version, advisory, summary in found:
        print(f"{name} {version}: {advisory} {summary}")
    read = f"{len(advisories)} advisories read"
    print(f"{len(pins)} locked versions, {read}, {len(found)} affect them")
    return 1 if found else 0


def pinned(lock: str) -> list[tuple[str, str]]:
    r"""Return the names and versions of a lock file.

    >>> pinned("numpy==2.4.6\n    # via jax\nPyYAML==6.0.3\n")
    [('numpy', '2.4.6'), ('pyyaml', '6.0.3')]
    """
    return [(canonicalize_name(name), version) for name, version in _PIN.findall(lock)]


def read_advisories(file: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the advisories of an archive or a JSON file that are not withdrawn.

    Raises `ValueError` for what is no advisory.
    """
    for content in _contents(file):
        for advisory in _listed(json.loads(content)):
            if not isinstance(advisory, dict) or "id" not in advisory:
                raise ValueError("an entry has no id")
            if "withdrawn" not in advisory:
                yield cast("dict[str, Any]", advisory)


def _listed(said: Any) -> list[Any]:
    if isinstance(said, list):
        return cast("list[Any]", said)
    known = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    return known.get("vulns", [said])


def _contents(file: Path) -> Iterator[bytes]:
    if file.suffix == ".json":
        yield file.read_bytes()
        return
    with ZipFile(file) as files:
        yield from (files.read(name) for name in files.namelist() if name.endswith(".json"))


def affecting(
    pins: set[tuple[str, str]], advisories: Iterable[Mapping[str, Any]]
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
    at = Version(version)
    if any(at == known for known in map(_version, affected.get("versions", ()))):
        return True
    return any(
        _is_within(at, each.get("events", ()))
        for each in affected.get("ranges", ())
        if each.get("type") == "ECOSYSTEM"
    )


def _is_within(version: Version, events: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a version lies between an ``introduced`` and what ends it.

    Events take effect in the order of their versions, in whatever order they are listed.
    """
    dated = [
        (at, kind) for event in events for kind, text in event.items() if (at := _version(text))
    ]
    is_in = False
    for at, kind in sorted(dated):
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


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


if __name__ == "__main__":
    sys.exit(main())
