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
        (advisory("other", versions=["2.4.6"]), False),
        ({**advisory("numpy", versions=["2.4.6"]), "withdrawn": "2026-01-01"}, False),
    ],
)
def test_advisories_of_locked_versions_are_named(
    one: dict[str, object], is_affected: bool, tmp_path: Path
) -> None:
    with ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("one.json", json.dumps(one))
    lock = tmp_path / "run.lock"
    lock.write_text("numpy==2.4.6 \\\n    --hash=sha256:00\npyyaml==6.0.3\n")
    command = [sys.executable, str(ROOT / "validation" / "audit.py"), str(tmp_path / "all.zip")]
    done = subprocess.run(
        [*command, "--locks", str(lock)], capture_output=True, text=True, check=False
    )
    assert done.returncode == is_affected, done.stderr
    assert ("numpy 2.4.6: X-" in done.stdout) == is_affected
    assert "2 locked versions" in done.stdout
