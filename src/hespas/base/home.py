"""Name the user's directories of hespas."""

from __future__ import annotations

import os
from pathlib import Path


def cache_home() -> Path:
    """Return the user's cache directory, which may not exist."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "hespas"


def data_home() -> Path:
    """Return the user's data directory, which may not exist."""
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "hespas"
