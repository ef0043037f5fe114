"""Of the configurations of a kernel the fastest counts."""

from __future__ import annotations

import pytest

from hespas import predict
from hespas.frontend.load import load_per_device
from hespas.program.recorded import KernelConfiguration, encode_recorded
from recorded_steps import Recorder

from .conftest import STREAM


def _wasteful(text: str) -> str:
    """Return a kernel that does its arithmetic a hundred times more."""
    work = "add.f32 %f9, %f9, %f9;\n" * 2000
    return text.replace("ret;", f"{work} ret;")


def kernel_s(*configurations: KernelConfiguration) -> float:
    """Return how long a kernel takes that torch may compile in some ways."""
    step = Recorder(world_size=1)
    given, made = step.tensor(4096, 8192), step.tensor(4096, 8192)
    step.kernel("triton_poi_fused_0", (given,), (made,), configurations)
    program = load_per_device(encode_recorded(step.step()), name="step.json").program
    return predict(program, cluster="1xH100_80GB").compute_s


def test_the_fastest_configuration_counts() -> None:
    fast = KernelConfiguration(ptx=STREAM, threads=128)
    slow = KernelConfiguration(ptx=_wasteful(STREAM), threads=128)
    assert kernel_s(slow) > 1.2 * kernel_s(fast)
    assert kernel_s(slow, fast) == pytest.approx(kernel_s(fast))
