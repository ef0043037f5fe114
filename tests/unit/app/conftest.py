"""Nothing of the page is tested where its extra is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from hespas.base.process import stay

collect_ignore_glob = [] if find_spec("starlette") and find_spec("uvicorn") else ["test_server.py"]


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    """Let exports run in processes of their own again, where a worker answered in this one."""
    yield
    stay(stays=False)
