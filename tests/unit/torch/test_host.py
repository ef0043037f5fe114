"""Values of device tensors: known where the host made what they are computed from."""

from __future__ import annotations

import pytest

from hespas.errors import ProgramError, UnsupportedError
from hespas.program.recorded import HostWait
from torch_steps import needs_torch, operations, record

pytestmark = needs_torch

COUNTED = """
import torch

def train(limit=-100):
    labels = torch.arange(4096).cuda()
    x = torch.randn(4096, 8, device="cuda")
    def step():
        count = (labels != 7).sum().item()
        assert count == 4095
        assert torch.equal(torch.ones(3, device="cuda"), torch.ones_like(x[0, :3]))
        (x / count).sum()
    return step
"""


def test_what_follows_from_the_hosts_values_is_known() -> None:
    step = record(COUNTED, eager=True)
    waits = [call for call in step.calls if isinstance(call, HostWait)]
    assert [wait.reason for wait in waits] == [
        "the step reads a value",
        "the step compares values",
    ]
    assert len(operations(step, "aten::div")) == 1


def test_a_written_tensor_is_not_known() -> None:
    script = COUNTED.replace("        count", "        labels.copy_(x[:, 0])\n        count")
    with pytest.raises((ProgramError, UnsupportedError), match=r"makes on the host and copies"):
        record(script, eager=True)


def test_values_made_on_the_device_are_not_known() -> None:
    script = COUNTED.replace(
        "torch.arange(4096).cuda()", 'torch.randint(0, 9, (4096,), device="cuda")'
    )
    with pytest.raises((ProgramError, UnsupportedError), match=r"reads a tensor's value"):
        record(script, eager=True)
