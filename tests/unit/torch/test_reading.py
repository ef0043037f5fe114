"""What scripts read from the device, in their step and before it."""

from __future__ import annotations

import pytest

from hespas.errors import ProgramError
from hespas.program.recorded import HostWait
from torch_steps import LOOP, kernel_calls, needs_torch, operations, record

pytestmark = needs_torch

_READ = "        optimizer.zero_grad()\n"
_FIRST = "    for ids in DataLoader"
_EVALUATION = f"""{LOOP[: LOOP.index(_FIRST)]}
    import numpy as np
    best, losses, correct = 1e9, torch.zeros(2), 0
    with torch.no_grad():
        for position in range(2):
            ids = torch.randint(0, 1000, (4, 128)).cuda()
            losses[position] = loss_of(net, ids).item()
            correct += (net(ids).argmax(-1) == ids).sum().item() / ids.numel()
    loss = losses.mean()
    text = f"{{loss:.3f}} {{correct:.1%}} {{np.mean(losses.numpy())}} %.2f" % loss
    assert text == "unknown unknown unknown nan", text
    if loss < best:
        best = loss
    if max(min(0.0, correct), float(losses[0])) > 3:
        assert len(operations(step, "aten::mul.Tensor")) == 1 + len(
        operations(record(LOOP, ""), "aten::mul.Tensor")
    )
{LOOP[LOOP.index(_FIRST) :]}"""


def test_an_evaluation_before_the_step_decides_nothing_and_is_noted() -> None:
    step = record(_EVALUATION, "")
    assert len(operations(step)) == len(operations(record(LOOP, "")))
    compared, converted, _tokens = step.notes
    assert "before the step, comparisons of the device's numbers are false (train.py:" in compared
    assert "float() of the device's numbers is nan" in converted


def test_what_is_computed_with_numbers_is_launched_and_unknown() -> None:
    lines = """
        import math, numpy as np
        scaled = ids.cuda() * loss.item()
        history = torch.tensor([loss.item(), math.exp(loss.item())])
        shown = f"{history.mean()} {np.exp(loss.item())} {loss.detach().cpu().numpy()}"
        assert shown == "unknown unknown unknown", shown
        assert f"{torch.tensor([[loss, loss]]).sum()}" == "unknown"
        known = torch.zeros(2)
        known[0] = loss.item()
        assert f"{known.sum()}" == "unknown"
        chosen = torch.randn(128, 16, device="cuda").topk(2).indices
        assert chosen.to("cpu").numpy().sum() == 16 * sum(range(16))
        assert loss.item() or False
        import json
        assert json.dumps({"loss": loss.item()}) == '{"loss": null}'
        torch.save(net.state_dict(), "net.pt")
"""
    step = record(LOOP.replace(_READ, _READ + lines.removeprefix("\n")), "")
    assert "torch.save writes no file" in step.notes[0]
    assert len(operations(step, "aten::mul.Tensor")) == 1 + len(
        operations(record(LOOP, ""), "aten::mul.Tensor")
    )


def test_numbers_that_are_printed_make_the_host_wait() -> None:
    script = LOOP.replace(
        _READ,
        _READ
        + "        total = 0.5 * loss.item() + 1\n"
        + '        print(f"{total:.3f} {loss:.3f} {loss.item()}", loss, round(total, 2))\n',
    )
    waits = [call for call in record(script, "").calls if isinstance(call, HostWait)]
    assert len(waits) == 4


@pytest.mark.parametrize(
    "line",
    [
        "if loss.item() > 3: break",
        "best = min(9.0, loss.item())",
        "assert torch.tensor([loss.item()]).max() < 3",
        "range(loss.int().item())",
    ],
)
def test_a_number_that_decides_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(ProgramError, match=r"train.py:\d+: .*no data here"):
        record(LOOP.replace(_READ, f"{_READ}        {line}\n"), "")


def test_the_line_that_decides_is_named_beside_the_one_that_reads() -> None:
    lines = "        read = loss.item()\n        if read > 3: break\n"
    with pytest.raises(ProgramError, match=r"^train.py:54: .*device \(at train.py:53\), and") as e:
        record(LOOP.replace(_READ, _READ + lines), "")
    assert e.value.hint


def test_math_takes_unknown_numbers_for_finite() -> None:
    script = LOOP.replace(
        _READ, f"{_READ}        import math\n        assert math.isfinite(loss.item())\n"
    )
    assert operations(record(script, ""))


_UPDATE = """
@torch.compile(fullgraph=True)
def update(parameter, gradient, mean, decay):
    mean.lerp_(gradient, 1 - decay)
    parameter.sub_(mean)
"""


def test_what_compiles_an_update_reads_no_number_of_the_host() -> None:
    """Torch formats a tensor for the error of an overload that it tries first."""
    lines = """        with torch.no_grad():
            update(net.out.weight[:8], net.out.weight[8:16], torch.zeros(8, 256, device="cuda",
                dtype=torch.bfloat16), torch.tensor(0.9))
"""
    script = LOOP.replace("import argparse", f"{_UPDATE}import argparse")
    step = record(script.replace(_READ, _READ + lines), "")
    assert [call for call in kernel_calls(step) if "lerp" in call.kernel]
