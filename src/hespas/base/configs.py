"""Where the files stand that hespas is shipped with: presets, tables and names."""

from __future__ import annotations

from pathlib import Path

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
