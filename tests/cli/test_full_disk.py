"""A study on a disk that is full: one line, and nothing that the next run has to put right."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

Call = Callable[..., CompletedProcess[str]]


def test_a_full_disk_is_one_line_and_the_study_goes_on(
    call: Call, block: Path, tmp_path: Path
) -> None:
    """A limit of files' sizes stands for it: the results' file can't grow."""
    small = tmp_path / "small.yaml"
    small.write_text(
        f"model: {block}\ncluster: [4xA100_SXM_40GB, 4xH100_80GB, 4xB200_180GB]\n"
        "algorithm: [ring, direct]\nfidelity: exported\n"
    )
    hespas = [sys.executable, "-m", "hespas", "study", "run", str(small), "-o", "full"]
    ran = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -f "$0"; exec "$@"', "96", *hespas, "--workers", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode not in {0, 1, 70}
    assert ran.stderr.count("\n") == 1
    assert "run the study again" in ran.stderr
    again = call("hespas", "study", "run", small, "-o", "full", "--workers", "2")
    assert again.returncode == 0, again.stderr
    call("hespas", "study", "run", small, "-o", "whole", "--workers", "2")
    tables = [call("hespas", "study", "table", each, "--json", "-") for each in ("full", "whole")]
    assert tables[0].stdout == tables[1].stdout
    assert len(json.loads(tables[0].stdout)["rows"]) == 6
