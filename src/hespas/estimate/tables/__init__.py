"""Kernels that were measured: tables of published timings, read, completed and interpolated."""

from __future__ import annotations
