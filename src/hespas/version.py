"""The version, which is part of every cache key."""

from __future__ import annotations

__version__ = "0.1.0"
