"""The audit of locked dependencies, on advisories that are made up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]


def advisory(name: str, **affected: object) -> dict[str, object]:
    package = {"name": name, "ecosystem": "PyPI"}
    return {
        "id": f"X-{name}",
        "summary": "it breaks",
        "affected": [{"package": package, **affected}],
    }


def events(*given: tuple[str, str]) -> dict[str, object]:
    return {"ranges": [{"type": "ECOSYSTEM", "events": [dict([one]) for one in given]}]}


@pytest.mark.parametrize(
    ("one", "is_affected"),
    [
        (advisory("Numpy", versions=["2.4.6"]), True),
        (advisory("numpy", versions=["2.4.5"]), False),
        (advisory("numpy", **events(("introduced", "0"), ("fixed", "2.4.7"))), True),
        (advisory("numpy", **events(("introduced", "0"), ("fixed", "2.4.6"))), False),
        (advisory("numpy", **events(("introduced", "2.0"), ("last_affected", "2.4.6"))), True),
        (advisory("numpy", **events(("introduced", "2.5"))), False),
        (advisory("numpy", **events(("fixed", "2.4.7"), ("introduced", "2.0"))), True),
        (
            advisory(
                "numpy", **events(("introduced", "0"), ("fixed", "2.0"), ("introduced", "2.4"))
            ),
            True,
        ),
        (advisory("numpy", **events(("introduced", "0"), ("last_affected", "2.4.5"))), False),
        (advisory("numpy", versions=["2.4.6.0"]), True),
        (advisory("other", versions=["2.4.6"]), False),
        ({**advisory("numpy", versions=["2.4.6"]), "withdrawn": "2026-01-01"}, False),
    ],
)
def test_advisories_of_locked_versions_are_named(
    one: dict[str, object], is_affected: bool, tmp_path: Path
) -> None:
    with ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("one.json", json.dumps(one))
    done = audited(tmp_path / "all.zip", tmp_path)
    assert done.returncode == is_affected, done.stderr
    assert ("numpy 2.4.6: X-" in done.stdout) == is_affected
    assert "2 locked versions" in done.stdout


REAL = {
    "schema_version": "1.7.3",
    "id": "GHSA-aaaa-bbbb-cccc",
    "modified": "2026-03-01T10:00:00Z",
    "published": "2026-02-27T18:31:04Z",
    "aliases": ["CVE-2026-00001", "PYSEC-2026-1"],
    "summary": "PyYAML runs code of a document",
    "details": "A document with a tag of Python ...",
    "severity": [{"type": "CVSS_V3", "score": "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:H/A:H"}],
    "affected": [
        {
            "package": {"name": "PyYAML", "ecosystem": "PyPI", "purl": "pkg:pypi/pyyaml"},
            "ranges": [
                {
                    "type": "GIT",
                    "repo": "https://example.org/pyyaml",
                    "events": [
                        {"introduced": "0"},
                        {"fixed": "7adc0db3f613a82669f2b168edd98379"},
                    ],
                },
                {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "6.0.4"}]},
            ],
            "versions": ["5.4", "6.0", "6.0.3"],
            "database_specific": {"source": "https://example.org/advisories/1.yaml"},
        },
        {"package": {"name": "pyyaml", "ecosystem": "npm"}, "versions": ["6.0.3"]},
    ],
    "references": [{"type": "WEB", "url": "https://example.org/1"}],
    "database_specific": {"cwe_ids": ["CWE-94"], "severity": "CRITICAL"},
}
"""An advisory with all the fields that those of OSV have."""


@pytest.mark.parametrize("held", [REAL, [REAL, advisory("other")], {"vulns": [REAL]}])
def test_advisories_come_in_one_file_too(held: object, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(json.dumps(held))
    done = audited(tmp_path / "list.json", tmp_path)
    assert done.returncode == 1, done.stderr
    assert "pyyaml 6.0.3: GHSA-aaaa-bbbb-cccc PyYAML runs code" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("1 affect them")


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"summary": "no id"}', b"PK\x03\x04"])
def test_what_holds_no_advisories_is_no_clean_list(content: bytes, tmp_path: Path) -> None:
    for name in ("list.json", "all.zip"):
        (tmp_path / name).write_bytes(content)
        done = audited(tmp_path / name, tmp_path)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert not done.stdout


def audited(advisories: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    lock = directory / "run.lock"
    lock.write_text("numpy==2.4.6 \\\n    --hash=sha256:00\npyyaml==6.0.3\n")
    command = [sys.executable, str(ROOT / "validation" / "audit.py"), str(advisories)]
    return subprocess.run(
        [*command, "--locks", str(lock)], capture_output=True, text=True, check=False
    )
