from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_EXPORT = Path(__file__).parent / "programs" / "export_programs.py"


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every program of tests/judge/programs, exported by JAX."""
    directory = tmp_path_factory.mktemp("exported")
    command = [sys.executable, str(_EXPORT), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory
