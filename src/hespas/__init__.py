"""Predicts how a distributed machine-learning step runs on a cluster one doesn't have."""

from __future__ import annotations

# The folders of the same names are imported before the functions take their place: Python
# would otherwise put a folder there when its first module is imported.
import hespas.estimate
import hespas.simulate
import hespas.split
import hespas.trace  # noqa: F401 - imported for the order, as said above
from hespas.api import estimate, load, predict, simulate, split, trace
from hespas.errors import HespasError
from hespas.version import __version__

__all__ = [
    "HespasError",
    "__version__",
    "estimate",
    "load",
    "predict",
    "simulate",
    "split",
    "trace",
]
