"""How much questions, uploads and processes of the page may take."""

from __future__ import annotations

MEMORY_VARIABLE = "HESPAS_APP_MEMORY_BYTES"
"""The environment's name of how much memory a worker may address; empty for no limit."""
MOST_BODY_BYTES = 1 << 20
"""Of a question."""
MOST_UPLOAD_BYTES = 32 << 20
"""Of a ``config.json`` or a program."""
TIME_S = 120.0
"""Of a modelled answer."""
LONG_TIME_S = 1800.0
"""Of one that compiles, or serves."""
