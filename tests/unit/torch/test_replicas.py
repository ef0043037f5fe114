"""`DistributedDataParallel`: buckets as torch's reducer makes them."""

from __future__ import annotations

from hespas.program.recorded import WaitEvent
from torch_steps import NET, bytes_after, collectives, needs_torch, operations, record

pytestmark = needs_torch

_SCRIPT = f"""{NET}
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def train(view: bool = False, compiled: bool = False, micro_batches: int = 1):
    dist.init_process_group("nccl")
    net = Net(256, 2).cuda()
    model = DistributedDataParallel(net, device_ids=[0], gradient_as_bucket_view=view)
    called = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(net.parameters())
    def step():
        ids = torch.randint(0, 1000, (4, 128), device="cuda")
        for _ in range(micro_batches - 1):
            with model.no_sync():
                loss_of(called, ids).backward()
        loss_of(called, ids).backward()
        optimizer.step()
        optimizer.zero_grad()
    return step
"""
_PARAMETERS = 2 * 1000 * 256 + 2 * (8 * 256**2 + 2 * 256)
_TENSORS = 10
_MIB = 2**20


def _sizes(*, micro_batches: int = 1, compiled: bool = False) -> list[int]:
    step = record(_SCRIPT, devices=8, micro_batches=micro_batches, compiled=compiled)
    calls = collectives(step)
    assert {call.kind for call in calls} == {"all_reduce"}
    return [call.inputs[0].shape[0] for call in calls]


def test_the_first_bucket_has_a_mebibyte_and_the_others_25() -> None:
    sizes = _sizes()
    assert sum(sizes) == _PARAMETERS
    # The logits' weights and one more make up a mebibyte; all else fits into the second.
    assert [4 * size >= _MIB for size in sizes] == [True, True]
    assert sizes[0] == 1000 * 256 + 1024 * 256


def test_computation_goes_on_while_a_bucket_is_reduced() -> None:
    step = record(_SCRIPT, devices=8)
    reduced = [index for index, call in enumerate(step.calls) if call in collectives(step)]
    between = step.calls[reduced[0] : reduced[1]]
    assert any(call in operations(step, "aten::mm") for call in between)
    assert not any(isinstance(call, WaitEvent) and call.stream == 0 for call in between)


def test_gradients_are_copied_back_unless_they_are_views_of_buckets() -> None:
    assert len(operations(record(_SCRIPT, devices=8), "aten::copy_")) == _TENSORS
    views = record(_SCRIPT, devices=8, view=True)
    assert not operations(views, "aten::copy_")
    assert bytes_after(views)["gradient"] == 4 * _PARAMETERS


def test_accumulated_gradients_are_reduced_once() -> None:
    assert _sizes(micro_batches=3) == _sizes()


def test_a_compiled_model_reduces_as_much() -> None:
    assert sum(_sizes(compiled=True)) == _PARAMETERS


REPLICATED = _SCRIPT.replace(
    "from torch.nn.parallel import DistributedDataParallel",
    "from torch.distributed._composable.replicate import replicate",
).replace(
    "DistributedDataParallel(net, device_ids=[0], gradient_as_bucket_view=view)", "replicate(net)"
)


def test_replicate_reduces_the_same_buckets() -> None:
    found = collectives(record(REPLICATED, devices=8))
    assert [call.kind for call in found] == ["all_reduce"] * 2
    assert [call.inputs[0].shape[0] for call in found] == _sizes()


def test_copied_replicas_reduce_nothing_of_each_other() -> None:
    script = """
from copy import deepcopy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def train():
    dist.init_process_group("nccl")
    net = DistributedDataParallel(nn.Linear(512, 512).cuda())
    mean = deepcopy(net)
    assert next(mean.parameters()) is not next(net.parameters())
    return lambda: net(torch.zeros(8, 512, device="cuda")).sum().backward()
"""
    assert len(collectives(record(script, devices=4))) == 1
