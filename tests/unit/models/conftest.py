"""Programs of the zoo, exported once."""

from __future__ import annotations

import pytest

from hespas.export.exported import Exported, partitioned
from hespas.export.function import export_model


@pytest.fixture(scope="session")
def llama3_100m() -> Exported:
    """Return the smallest Llama-3-like training step, partitioned for 4 devices."""
    return partitioned(export_model("llama3-100m"))
