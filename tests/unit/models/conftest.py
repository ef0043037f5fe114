"""Programs of the zoo, exported once."""

from __future__ import annotations

import pytest

from hespas.sources.exported import Exported, partitioned
from hespas.sources.function import export_model

AS_PUBLISHED = {"attention": "unfused", "state_dtype": "bf16"}
"""The settings in which published Llama-3-like steps differ from the zoo's."""


@pytest.fixture(scope="session")
def llama3_100m() -> Exported:
    """Return the smallest Llama-3-like training step as published, partitioned for 4 devices."""
    return partitioned(export_model("llama3-100m", AS_PUBLISHED))
