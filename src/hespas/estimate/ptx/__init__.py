"""Kernels read, not guessed: what the compiler's PTX says about the time that a kernel takes."""

from __future__ import annotations
