"""Predicts how a distributed machine-learning step runs on a cluster one doesn't have."""

from __future__ import annotations

from hespas import stages
from hespas.api import measure_step, predict, predict_pipeline, predict_serving, run_study
from hespas.base.version import __version__
from hespas.errors import HespasError
from hespas.stages import load, optimise, optimize

__all__ = [
    "HespasError",
    "__version__",
    "load",
    "measure_step",
    "optimise",
    "optimize",
    "predict",
    "predict_pipeline",
    "predict_serving",
    "run_study",
    "stages",
]
