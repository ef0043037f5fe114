"""Where the closed forms end."""

from __future__ import annotations


class NeedsEngineError(Exception):
    """The closed forms don't cover this job on this system; the event engine does."""
