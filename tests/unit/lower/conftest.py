"""The example program, fused, once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.frontend.load import load_source
from hespas.lower.fused import fused
from hespas.program.program import Program

EXAMPLE = Path("examples/llama3_100m_fsdp4.mlir")


@pytest.fixture(scope="session")
def llama() -> Program:
    return load_source(EXAMPLE.read_bytes(), name=str(EXAMPLE))


@pytest.fixture(scope="session")
def fused_llama(llama: Program) -> Program:
    return fused(llama)
