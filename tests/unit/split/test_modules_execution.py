from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

_RUN = Path(__file__).parent / "run_regions.py"
_TESTS = Path(__file__).parents[2]
NAMES = ("elementwise", "loops", "copies_and_fusions", "bitcasts", "collectives", "control")


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Return the largest difference between each program run whole and region by region."""
    output = tmp_path_factory.mktemp("run") / "differences.json"
    done = subprocess.run(
        [sys.executable, str(_RUN), str(output)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(_TESTS)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(output.read_text())
    return found


@pytest.mark.parametrize(
    ("name", "strategy", "merge"),
    [*product(NAMES, ("linear_split", "individual_split"), (0, 1))],
)
def test_regions_in_order_give_the_numbers_of_the_whole(
    differences: dict[str, float], name: str, strategy: str, merge: int
) -> None:
    assert differences[f"{name} {strategy} {bool(merge)}"] <= 1e-6
    assert len(differences) == 4 * len(NAMES)
