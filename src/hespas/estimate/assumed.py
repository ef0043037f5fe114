"""What the prices of a program's computation take for granted."""

from __future__ import annotations

from hespas.estimate.graph import GraphEstimate
from hespas.split.regions import RegionGraph

TF32_ASSUMPTION = (
    "f32 matrix products of default precision run as tf32 where the device has it, as XLA does"
)


def computation_assumptions(graph: RegionGraph, estimates: GraphEstimate) -> tuple[str, ...]:
    """Return what the computation alone takes for granted, each once."""
    listed = [*estimator_assumptions(estimates), *graph.assumptions, *estimates.total.notes]
    return tuple(dict.fromkeys(listed))


def estimator_assumptions(estimates: GraphEstimate) -> tuple[str, ...]:
    """Return what the estimator takes for granted of every region."""
    types = {key for op in estimates.total.per_op.values() for key in op.per_type}
    return (*estimates.assumptions, *([TF32_ASSUMPTION] if "tf32" in types else []))
