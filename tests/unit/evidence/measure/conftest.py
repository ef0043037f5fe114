"""A measurement that nobody made."""

from __future__ import annotations

import pytest

from hespas.evidence.measure.measured import Measurement
from hespas.xla.compile.messages import MemoryAnalysis


@pytest.fixture
def measured() -> Measurement:
    """Return a measurement of five steps on four A100."""
    memory = MemoryAnalysis(
        argument_bytes=2**30,
        output_bytes=2**30,
        alias_bytes=2**30,
        temporary_bytes=2**30,
        generated_code_bytes=0,
    )
    return Measurement(
        workload="step.mlir",
        devices=4,
        processes=1,
        platform="gpu",
        device_kind="NVIDIA A100-SXM4-40GB",
        warm_up=3,
        durations_s=(0.05, 0.04, 0.03, 0.02, 0.01),
        compile_s=2.0,
        memory=memory,
        free_bytes=30 * 2**30,
        made_inputs=0,
        versions={"jax": "1", "jaxlib": "2"},
        notes=(),
    )
