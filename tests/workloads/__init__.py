"""Programs that tests read: those of this folder, and those that may lie beside the repository.

JAX exported those of this folder: steps of small Llama models, ``.hlo`` as XLA compiled them for
H100s. No other file names a folder outside of the repository.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_BESIDE = ROOT.parent / "shared" / "data"


def workload(name: str) -> bytes:
    """Return a program of this folder, unpacked."""
    return lzma.decompress(Path(__file__).with_name(f"{name}.xz").read_bytes())


def published(name: str) -> bytes:
    """Return a program of others, which is no part of the repository; skip where it is not here."""
    file = _BESIDE / "mlir" / name
    if not file.is_file():
        pytest.skip(f"{name} is not beside the repository")
    return file.read_bytes()
