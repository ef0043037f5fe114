"""Predicts how a distributed machine-learning step runs on a cluster one doesn't have."""

from __future__ import annotations

__version__ = "0.1.0"
