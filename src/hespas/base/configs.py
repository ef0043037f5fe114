"""Locate the files shipped with hespas: presets, tables, names."""

from __future__ import annotations

from pathlib import Path

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
