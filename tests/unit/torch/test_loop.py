"""Training loops of scripts, against the same step as a function."""

from __future__ import annotations

from collections import Counter

import pytest

from hespas.errors import ConfigError, ProgramError
from torch_steps import LOOP, TRAIN, collectives, needs_torch, operations, peak_bytes, record

pytestmark = needs_torch


def test_a_loop_launches_what_its_step_does() -> None:
    loop, step = record(LOOP, ""), record(TRAIN)

    def launched(name: str) -> Counter[tuple[str, str]]:
        recorded = loop if name == "loop" else step
        made = {"aten::randint.low", "aten::_to_copy.default"}
        return Counter(
            (call.name, call.phase) for call in operations(recorded) if call.name not in made
        )

    assert launched("loop") == launched("step")
    # The next batch is there before this one goes.
    assert abs(peak_bytes(loop) - peak_bytes(step)) <= 4 * 128 * 8


def test_a_script_gets_its_words() -> None:
    assert peak_bytes(record(LOOP, "", width=512)) > 1.5 * peak_bytes(record(LOOP, ""))


def test_words_that_a_script_refuses_are_said() -> None:
    with pytest.raises(ConfigError, match=r"its words: unrecognized arguments: --depth=3"):
        record(LOOP, "", depth=3)


def test_a_function_may_be_a_loop() -> None:
    script = LOOP.replace('if __name__ == "__main__":', "def main():").replace(
        "parser.parse_args().width", "256"
    )
    assert len(operations(record(script, "main"))) == len(operations(record(LOOP, "")))


_SPAWNED = """
import os
import sys
import torch
from torch import nn
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

def main(rank, world_size):
    torch.distributed.init_process_group("nccl", rank=rank, world_size=world_size)
    net = DistributedDataParallel(nn.Linear(512, 512).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    try:
        for _ in range(100):
            optimizer.zero_grad()
            net(torch.zeros(8, 512, device=rank)).sum().backward()
            optimizer.step()
    except BaseException:
        raise RuntimeError("the program fails behind its step")

if __name__ == "__main__":
    mp.spawn(main, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
"""


def test_parameters_that_the_host_updates_are_counted_of_a_loop_too() -> None:
    script = (
        LOOP.replace("    net = Net", "    own = nn.Linear(8, 8)\n    net = Net")
        .replace("AdamW(net.parameters()", "AdamW([*net.parameters(), *own.parameters()]")
        .replace(", fused=True", "")
        .replace("loss.backward()", "(loss + own.weight.sum().to(loss)).backward()")
    )
    assert record(script, "").host_updates == 8 * 8 + 8


def test_spawned_ranks_are_the_clusters() -> None:
    step = record(_SPAWNED, "", devices=4)
    assert [call.ranks for call in collectives(step)] == [(0, 1, 2, 3)]


def test_a_loop_of_several_backward_passes_is_one_step() -> None:
    script = (
        LOOP.replace(
            "        optimizer.step()\n",
            "        if count % 4: continue\n        optimizer.step()\n",
        )
        .replace("    for ids in DataLoader", "    for count, ids in enumerate(DataLoader")
        .replace("persistent_workers=True):", "persistent_workers=True), 1):")
    )
    products = operations(record(script, ""), "aten::mm.default")
    assert len(products) == 4 * len(operations(record(LOOP, ""), "aten::mm.default"))


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ("print(torch.cuda.device_count())", "no optimizer made a step; let it run a training"),
        ("        optimizer.step(); break", "ended after the first step of its loop"),
    ],
)
def test_a_script_without_two_steps_is_refused(loop: str, message: str) -> None:
    script = LOOP.replace("        optimizer.step()", loop).replace("raise AssertionError", "print")
    if not loop.startswith(" "):
        script = f"import torch\n{loop}\n"
    with pytest.raises(ProgramError, match=message):
        record(script, "")
