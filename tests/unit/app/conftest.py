"""Nothing of the page is tested where its extra is not installed."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("starlette") and find_spec("uvicorn") else ["test_server.py"]
