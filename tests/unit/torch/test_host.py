"""Values of device tensors: known where the host made what they are computed from."""

from __future__ import annotations

import pytest

from hespas.errors import ProgramError, UnsupportedError
from hespas.program.recorded import CollectiveCall, HostWait
from torch_steps import needs_torch, operations, record

pytestmark = needs_torch

COUNTED = """
import torch
import torch.distributed as dist
import triton
import triton.language as tl

@triton.jit
def fill(x, BLOCK: tl.constexpr):
    tl.store(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), 1)

def train():
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
        "the step reads a value",
    ]
    assert len(operations(step, "aten::div")) == 1


@pytest.mark.parametrize(
    "change",
    [
        "labels = torch.zeros_like(labels); labels.index_put_((x[:, 0].long(),), labels[0])",
        "labels.copy_(x[:, 0])",
        "labels.random_(9)",
        "labels = torch.randint_like(labels, 9)",
        "labels = torch.empty_like(labels)",
        "fill[(4,)](labels, BLOCK=1024)",
        "dist.init_process_group('nccl'); dist.all_reduce(labels, dist.ReduceOp.PRODUCT)",
    ],
)
def test_a_written_tensor_is_not_known(change: str) -> None:
    script = COUNTED.replace("        count", f"        {change}\n        count", 1).replace(
        "    def step():", "    def step(labels=labels):"
    )
    with pytest.raises((ProgramError, UnsupportedError), match=r"makes on the host and copies"):
        record(script, eager=True)


def test_values_made_on_the_device_are_not_known() -> None:
    script = COUNTED.replace(
        "torch.arange(4096).cuda()", 'torch.randint(0, 9, (4096,), device="cuda")'
    )
    with pytest.raises((ProgramError, UnsupportedError), match=r"reads a tensor's value"):
        record(script, eager=True)


SAMPLED = """
import torch

def train():
    net = torch.nn.Linear(8, 4).to("cuda")
    def step():
        chosen = torch.distributions.Categorical(logits=net(torch.randn(16, 8, device="cuda")))
        chosen.log_prob(chosen.sample()).sum().backward()
    return step
"""


def test_distributions_have_valid_arguments_and_wait_to_know_it() -> None:
    step = record(SAMPLED, eager=True)
    waits = {call.reason for call in step.calls if isinstance(call, HostWait)}
    assert waits == {"a distribution checks its arguments", "the step reads a value"}


WITHOUT_SHAPES = """
import torch
from torch.nn import functional as F

def ctc():
    scores = torch.randn(75, 4, 100, device="cuda")
    labels = torch.ones(4, 10, dtype=torch.long, device="cuda")
    lengths = torch.full((4,), 75), torch.full((4,), 10)
    return lambda: F.ctc_loss(scores, labels, *lengths)

def sparse():
    rows = torch.sparse_coo_tensor(torch.ones(2, 5).long(), torch.ones(5), (9, 9))
    return lambda: rows.cuda()

def nested():
    def step():
        rows = [torch.randn(length, 8, device="cuda") for length in (3, 5)]
        torch.nested.nested_tensor(rows, layout=torch.jagged)
    return step
"""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("ctc", r"train.py:9: torch does not know the shapes of aten::_use_cudnn_ctc_loss"),
        ("sparse", r"train.py:13: sparse tensors are not recorded; multiply by rows"),
        ("nested", r"train.py:18: nested tensors of different lengths are not recorded"),
    ],
)
def test_what_has_no_shapes_is_an_error_with_its_line(function: str, message: str) -> None:
    with pytest.raises((ProgramError, UnsupportedError), match=message):
        record(WITHOUT_SHAPES, function, eager=True)


def test_numbers_of_a_model_without_memory_are_not_read() -> None:
    script = """
import torch

def train():
    with torch.device("meta"):
        counted = torch.tensor(0)
        counted.zero_()
        norm = torch.nn.BatchNorm2d(8)
    norm.to_empty(device="cuda")
    return lambda: norm(torch.zeros(2, 8, 4, 4, device="cuda")).sum().backward()
"""
    assert operations(record(script, eager=True), "aten::native_batch_norm")


def test_numbers_are_finite() -> None:
    script = """
import torch

def train():
    net = torch.nn.Linear(512, 512, device="cuda")
    def step():
        loss = net(torch.zeros(8, 512, device="cuda")).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
        assert torch.isfinite(loss) and not torch.isnan(loss).any()
        assert torch.tensor([float("inf")]).cuda().isinf().all()
        overflows = torch.zeros(1, device="cuda").bool()
        overflows.logical_or_(loss.isinf())
        assert not overflows.item()
    return step
"""
    waits = [call for call in record(script, eager=True).calls if isinstance(call, HostWait)]
    assert [wait.reason for wait in waits] == ["the step reads a value"] * 5


def test_shapes_follow_from_known_masks() -> None:
    script = """
import torch

def train():
    labels = torch.tensor([[1, 5, 7, -100], [2, -100, -100, 3]]).cuda()
    hidden = torch.randn(2, 4, 64, device="cuda", requires_grad=True)
    def step():
        mask = labels != -100
        kept = hidden[mask]
        assert kept.shape == (5, 64)
        assert labels[mask].shape == (5,) == torch.masked_select(labels, mask).shape
        assert torch.unique(labels[mask]).shape == (5,)
        assert hidden[..., 0].masked_select(mask).shape == (5,)
        assert (labels == 7).nonzero()[0, 1].item() == 2
        kept.sum().backward()
    return step
"""
    step = record(script, eager=True)
    (gathered,) = [
        call for call in operations(step, "aten::index.Tensor") if len(call.outputs[0].shape) == 2
    ]
    assert gathered.outputs[0].shape == (5, 64)
    assert operations(step, "aten::nonzero")


def test_shapes_do_not_follow_from_unknown_masks() -> None:
    script = """
import torch

def train():
    x = torch.randn(64, device="cuda")
    return lambda: x[x > 0].sum()
"""
    with pytest.raises(UnsupportedError, match=r"train.py:6: aten::index.Tensor needs a tensor's"):
        record(script, eager=True)


def test_ranks_have_the_same_values() -> None:
    script = """
import torch
import torch.distributed as dist

def train():
    counts = [torch.tensor([3.0], device="cuda") for _ in range(3)]
    dist.all_reduce(counts[0])
    dist.all_reduce(counts[1], dist.ReduceOp.AVG)
    dist.broadcast(counts[2], 0)
    assert [count.item() for count in counts] == [24.0, 3.0, 3.0]
    whole, parts = torch.empty(8, device="cuda"), [torch.empty(1, device="cuda")] * 8
    dist.all_gather_into_tensor(whole, counts[1])
    dist.all_gather(parts, counts[1])
    assert whole.sum().item() == 24.0 == sum(part.item() for part in parts)
    return lambda: counts[0].mul_(2)
"""
    assert operations(record(script, eager=True, devices=8), "aten::mul_")


def test_functional_messages_tell_values_too() -> None:
    script = """
import torch
import torch.distributed._functional_collectives as messages
from torch.distributed.device_mesh import init_device_mesh

def train():
    mesh = init_device_mesh("cuda", (8,))
    count = torch.tensor(5).cuda()
    assert int(messages.all_reduce(count, "sum", mesh)) == 40
    assert int(messages.wait_tensor(messages.all_reduce(count, "max", mesh))) == 5
    assert messages.all_gather_single(count.view(1), 0, mesh).tolist() == [5] * 8
    return lambda: count.add_(2)
"""
    assert operations(record(script, eager=True, devices=8), "aten::add_")


def test_values_are_known_in_any_type_and_of_positions() -> None:
    script = """
import torch

def train():
    state = torch.tensor([1, 1, 0, 0], dtype=torch.uint8).cuda()
    assert state.cpu().view(torch.int32).item() == 257
    positions = torch.arange(512, device="cuda")
    assert positions.new_full((4,), 3)[positions[2]].item() == 3
    assert torch.where(positions > 5, 1, 0).sum().item() == 506
    return lambda: positions.add_(2)
"""
    assert operations(record(script, eager=True), "aten::add_")


def test_samples_of_initial_weights_are_in_their_bounds() -> None:
    script = """
import torch

def train():
    net = torch.nn.Linear(512, 512, device="cuda")
    torch.nn.init.trunc_normal_(net.weight, std=0.02)
    torch.nn.init.trunc_normal_(net.weight, a=0.0)
    torch.nn.init.trunc_normal_(torch.empty(512, 512), a=0.5, b=0.7)
    return lambda: net(torch.zeros(8, 512, device="cuda")).sum().backward()
"""
    assert operations(record(script, eager=True), "aten::addmm")


def test_what_compiled_code_computes_on_the_host_is_not_known() -> None:
    script = """
import torch
from torch._higher_order_ops import while_loop

def train():
    x, zero = torch.randn(64, 64, device="cuda"), torch.zeros((), dtype=torch.int64)
    repeated = torch.compile(
        lambda x: while_loop(lambda i, _: i < 3, lambda i, each: (i + 1, each @ each), (zero, x))
    )
    return lambda: repeated(x)
"""
    with pytest.raises((ProgramError, UnsupportedError), match="reads a tensor's value"):
        record(script)


ROUTED = """
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as messages

def train():
    dist.init_process_group("nccl")
    router = torch.randn(64, 16, device="cuda", requires_grad=True)
    def step():
        x = torch.randn(128, 64, device="cuda")
        weights, chosen = (x @ router).softmax(-1).topk(2, dim=-1)
        counts = torch.histc(chosen, bins=16, min=0, max=16)
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        again = messages.all_to_all_single(counts, None, None, dist.group.WORLD)
        assert counts.tolist() == received.tolist() == again.tolist() == [16] * 16
        order = chosen.flatten().argsort(stable=True)
        rows = x[order // 2]
        sent = counts.view(8, -1).sum(1).int().tolist()
        got = torch.empty(sum(sent), 64, device="cuda")
        dist.all_to_all_single(got, rows, sent, sent)
        # As Megatron has it.
        chosen_by = torch.zeros(128, 1024, device="cuda").int().scatter(1, chosen, 1).bool()
        of_experts = torch.arange(128, device="cuda").expand(1024, -1)
        assert of_experts.masked_select(chosen_by.T.contiguous()).shape == (256,)
        assert chosen_by.sum(0).to("cpu", non_blocking=True).tolist()[:17] == [16] * 16 + [0]
        for expert in range(2):
            mine, which = torch.where(chosen == expert)
            assert mine.shape == which.shape == (16,)
        weights.sum().backward()
    return step
"""


def test_each_expert_is_chosen_as_often() -> None:
    step = record(ROUTED, eager=True, devices=8)
    exchanged = [call for call in step.calls if isinstance(call, CollectiveCall)]
    assert [call.splits for call in exchanged] == [(), (2,) * 8, (32,) * 8]
    assert any(note.startswith("experts: each gets as many") for note in step.notes)


def test_what_chooses_of_a_vocabulary_is_not_known() -> None:
    script = """
import torch

def train():
    logits = torch.randn(4, 32000, device="cuda")
    return lambda: logits[:1].topk(1).indices.item()
"""
    with pytest.raises(ProgramError, match=r"reads a tensor's value"):
        record(script, eager=True)


_MANY = """
import torch

def train():
    order = torch.randperm(1_281_167, generator=torch.Generator().manual_seed(0)).tolist()
    assert isinstance(order[0], int)
    assert sorted(order) == list(range(len(order)))
    labels = torch.randint(0, 9, (8, 16384))
    x = torch.randn(8, 16384, device="cuda")
    def step():
        x[(labels > 7).cuda()].sum() * order[0]
    return step
"""


def test_many_integers_have_data_as_orders_of_samples() -> None:
    assert operations(record(_MANY, eager=True), "aten::sum")


_STATES = """
import torch
import torch.distributed as dist

def train():
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state().to("cuda")
    dist.broadcast(state, 0)
    x = torch.randn(8, device="cuda")
    def step():
        generator.set_state(state.cpu())
        assert torch.arange(9).cuda().cpu().numpy().sum() == 36
        (x * 2).sum()
    return step
"""


def test_what_is_copied_back_to_the_host_has_its_data() -> None:
    """Accelerate gives all ranks' generators of samples one state."""
    step = record(_STATES, devices=8, eager=True)
    waits = [call for call in step.calls if isinstance(call, HostWait)]
    assert [wait.reason for wait in waits] == ["copy to the host"] * 2


def test_what_a_metric_chooses_is_not_known() -> None:
    """As the accuracy of the five likeliest classes, which scripts of images compute."""
    script = """
import torch

def train():
    net = torch.nn.Linear(8, 1000, device="cuda")
    labels = torch.arange(4).cuda()
    def step():
        scores = net(torch.randn(4, 8, device="cuda"))
        with torch.no_grad():
            chosen = scores.topk(5)[1].t()
            chosen.eq(labels.expand_as(chosen)).float().sum().item()
    return step
"""
    with pytest.raises(UnsupportedError, match="reads a tensor's value"):
        record(script, eager=True)
