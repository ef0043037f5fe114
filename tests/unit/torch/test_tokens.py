"""Tokens of scripts that do not say how many they take in."""

from __future__ import annotations

import pytest

from hespas.program.recorded import RecordedStep
from torch_steps import COMPILED, FSDP, LOOP, NET, TRAIN, needs_torch, record

pytestmark = needs_torch

_SAID = "    step.tokens = 4 * 128 * dist.get_world_size()\n"


def _origin(step: RecordedStep) -> str:
    return next((note for note in step.notes if note.startswith("tokens: ")), "")


def test_tokens_are_what_a_model_takes_and_looks_up() -> None:
    for step in (record(TRAIN), record(LOOP, ""), record(COMPILED)):
        assert step.tokens == 4 * 128
        assert _origin(step).endswith("a forward pass of the model looked up in an embedding: 512")


def test_a_compiled_model_looks_them_up_in_its_kernels() -> None:
    script = TRAIN.replace(
        "torch.bfloat16)\n", "torch.bfloat16)\n    net = torch.compile(net)\n", 1
    )
    assert record(script).tokens == 4 * 128


def test_passes_and_ranks_with_data_of_their_own_count() -> None:
    again = FSDP.replace(_SAID, "").replace(
        "loss_of(net, ids).backward()\n", "[loss_of(net, ids).backward() for _ in range(3)]\n"
    )
    step = record(again, devices=8)
    assert step.tokens == 3 * 4 * 128 * 8
    assert "3 forward passes of the model looked up" in _origin(step)
    assert _origin(step).endswith("on each of 8 ranks with data of its own: 1,536")


@pytest.mark.parametrize(("wrapper", "tokens"), [("DistributedDataParallel", 2048), ("", None)])
def test_ranks_that_sum_gradients_have_data_of_their_own(wrapper: str, tokens: int | None) -> None:
    script = TRAIN.replace(
        "    optimizer =",
        "    from torch.nn.parallel import DistributedDataParallel\n"
        f"    net = {wrapper}(net)\n    optimizer =",
    )
    assert record(script, devices=4).tokens == tokens


def test_what_a_script_says_comes_first() -> None:
    step = record(FSDP, devices=8)
    assert step.tokens == 4 * 128 * 8
    assert not _origin(step)


@pytest.mark.parametrize(
    ("model", "given"),
    [
        # Images beside text: what counts is not known.
        ("lambda ids: both(ids, torch.randn(4, 8, device='cuda'))", "Both"),
        # A frozen encoder, whose text a model of images gets.
        ("lambda ids: seen(net.embedding(ids).float())", "Seen"),
        # Two different numbers of integers.
        ("lambda ids: two(ids, ids[:, :64])", "Two"),
    ],
)
def test_tokens_are_not_guessed(model: str, given: str) -> None:
    classes = """
class Both(Net):
    def forward(self, ids, image):
        return super().forward(ids) + image.sum()

class Seen(nn.Linear):
    pass

class Two(Net):
    def forward(self, ids, others):
        return super().forward(ids) + super().forward(others).sum()
"""
    size = "256, 1000" if given == "Seen" else "256, 1"
    script = f"""{NET}{classes}
def train():
    net = Net(256, 1).to("cuda")
    {given.lower()} = {given}({size}).to("cuda")
    model = {model}
    def step():
        ids = torch.randint(0, 1000, (4, 128), device="cuda")
        loss_of(model, ids).backward()
    return step
"""
    assert record(script, eager=True).tokens is None
