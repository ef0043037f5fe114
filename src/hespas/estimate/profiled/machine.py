"""Which machine this is: times taken on one are not those of another."""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def machine_name() -> str:
    """Return the processor's model and how many of them there are."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = next((line for line in lines if line.startswith("model name")), "")
    model = named.partition(":")[2].strip() or platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} cores"
