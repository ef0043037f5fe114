"""Predicts how a distributed machine-learning step runs on a cluster one doesn't have."""

from __future__ import annotations

# The folders of the same names are imported before the functions take their place: Python
# would otherwise put a folder there when its first module is imported.
import hespas.estimate  # pyright: ignore[reportUnusedImport]
import hespas.measure  # pyright: ignore[reportUnusedImport]
import hespas.simulate  # pyright: ignore[reportUnusedImport]
import hespas.split  # pyright: ignore[reportUnusedImport]
import hespas.study  # noqa: F401  # pyright: ignore[reportUnusedImport]
from hespas.api import (
    estimate,
    load,
    measure,
    optimise,
    optimize,
    predict,
    predict_pipeline,
    simulate,
    split,
    study,
    trace,
)
from hespas.errors import HespasError
from hespas.version import __version__

__all__ = [
    "HespasError",
    "__version__",
    "estimate",
    "load",
    "measure",
    "optimise",
    "optimize",
    "predict",
    "predict_pipeline",
    "simulate",
    "split",
    "study",
    "trace",
]
