from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_EXPORT = Path(__file__).parent / "export_jax.py"


@pytest.fixture(scope="session")
def jax_exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the programs of ``export_jax.py``, as JAX exports them."""
    directory = tmp_path_factory.mktemp("jax")
    command = [sys.executable, str(_EXPORT), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return directory
