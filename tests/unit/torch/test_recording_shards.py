"""Modules of the host that FSDP2 moves, or leaves there."""

from __future__ import annotations

from hespas.frontend.load import load_per_device
from hespas.program.recorded import encode_recorded
from torch_steps import FSDP, bytes_after, collectives, needs_torch, operations, record

pytestmark = needs_torch

ON_HOST = FSDP.replace('    with torch.device("meta"):\n        net = ', "    net = ").replace(
    '    net.to_empty(device="cuda")\n', ""
)
OFFLOADED = (
    ON_HOST.replace("mp_policy=policy)", "mp_policy=policy, offload_policy=CPUOffloadPolicy())")
    .replace("import MixedPrecisionPolicy", "import CPUOffloadPolicy, MixedPrecisionPolicy")
    .replace("fused=True", "foreach=True")
)


def test_a_module_of_the_host_is_moved_to_the_device() -> None:
    moved, usual = record(ON_HOST, devices=8), record(FSDP, devices=8)
    assert bytes_after(moved) == bytes_after(usual)
    assert len(collectives(moved)) == len(collectives(usual))
    assert not moved.host_updates


def test_parameters_that_stay_on_the_host_are_copied_and_updated_there() -> None:
    step, usual = record(OFFLOADED, devices=8), record(FSDP, devices=8)
    held = bytes_after(usual)
    assert bytes_after(step).get("parameter", 0) == 0
    assert step.host_updates * 4 == held["parameter"]
    assert operations(step, "aten::_to_copy")
    program = load_per_device(encode_recorded(step), name="step.json").program
    assert any("the host updates" in warning for warning in program.warnings)


def test_parameters_that_stay_on_the_host_are_initialised_there() -> None:
    drawn = "    for each in net.parameters():\n        nn.init.normal_(each)\n"
    script = OFFLOADED.replace("    optimizer", f"{drawn}    optimizer", 1)
    assert record(script, devices=8).host_updates
