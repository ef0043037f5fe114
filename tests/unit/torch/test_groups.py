"""Steps on several ranks: collectives, their sizes and streams."""

from __future__ import annotations

from collections import Counter

import pytest

from hespas.errors import UnsupportedError
from hespas.program.recorded import CollectiveCall, HostWait, Operation, RecordEvent, WaitEvent
from torch_steps import FSDP, NET, bytes_after, collectives, needs_torch, operations, record

pytestmark = needs_torch

_WIDTH, _LAYERS, _VOCABULARY, _RANKS = 256, 2, 1000, 8
_BLOCK = 8 * _WIDTH**2 + 2 * _WIDTH
_PARAMETERS = 2 * _VOCABULARY * _WIDTH + _LAYERS * _BLOCK


def _elements(call: CollectiveCall) -> int:
    elements = 0
    for tensor in call.inputs:
        count = 1
        for size in tensor.shape:
            count *= size
        elements += count
    return elements


def test_a_step_says_its_mesh_and_its_tokens() -> None:
    step = record(FSDP, devices=_RANKS)
    assert (step.world_size, step.mesh, step.tokens) == (8, (("dp", 8),), 4 * 128 * 8)


def test_fsdp_gathers_blocks_twice_and_the_rest_once() -> None:
    calls = collectives(record(FSDP, devices=_RANKS))
    assert Counter(call.kind for call in calls) == {
        "all_gather": 2 * _LAYERS + 1,
        "reduce_scatter": _LAYERS + 1,
        "all_reduce": 1,
    }
    assert all(call.ranks == tuple(range(_RANKS)) for call in calls)
    gathered = sum(_elements(call) for call in calls if call.kind == "all_gather")
    assert gathered == (_PARAMETERS + _LAYERS * _BLOCK) // _RANKS
    reduced = sum(_elements(call) for call in calls if call.kind == "reduce_scatter")
    assert reduced == _PARAMETERS


def test_a_rank_holds_its_share_after_a_step() -> None:
    held = bytes_after(record(FSDP, devices=_RANKS))
    tensors = 2 + 4 * _LAYERS
    assert held["parameter"] == 4 * _PARAMETERS // _RANKS
    assert held["optimizer_state"] == 2 * 4 * _PARAMETERS // _RANKS + 4 * tensors
    assert held["gathered_parameter"] == 0
    assert "temporary" not in held


def test_the_optimizer_updates_the_local_tensors() -> None:
    [adam] = operations(record(FSDP, devices=_RANKS), "aten::_fused_adamw_")
    assert adam.inputs[0].shape == (_VOCABULARY // _RANKS, _WIDTH)


def test_computation_waits_for_its_parameters() -> None:
    step = record(FSDP, devices=_RANKS)
    gathers = [call for call in collectives(step) if call.kind == "all_gather"]
    assert {call.stream for call in gathers} == {gathers[0].stream}
    assert gathers[0].stream != 0
    events = {call.event: call.stream for call in step.calls if isinstance(call, RecordEvent)}
    waits = [call for call in step.calls if isinstance(call, WaitEvent) and call.stream == 0]
    of_gathers = [wait for wait in waits if events[wait.event] == gathers[0].stream]
    assert len(of_gathers) >= len(gathers)


def test_checkpointing_computes_blocks_again() -> None:
    plain, again = record(FSDP, devices=_RANKS), record(FSDP, devices=_RANKS, recompute=True)
    # The last product of a block is not needed again: torch stops before it.
    assert len(operations(again, "aten::mm")) - len(operations(plain, "aten::mm")) == _LAYERS
    repeated = [call for call in operations(again, "aten::mm") if call.phase == "recompute"]
    assert [call.scope for call in repeated] == [
        "layers.1.block.up",
        "layers.0.block.up",
    ]


_TENSOR_PARALLEL = f"""{NET}
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel,
    loss_parallel, parallelize_module)

def train():
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
    with torch.device("cuda"):
        net = Net(256, 1)
    parallelize_module(net, mesh["tp"], {{
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "layers.0.norm": SequenceParallel(),
        "layers.0.up": ColwiseParallel(input_layouts=Shard(1)),
        "layers.0.down": RowwiseParallel(output_layouts=Shard(1)),
        "out": ColwiseParallel(input_layouts=Shard(1), use_local_output=False)}})
    optimizer = torch.optim.AdamW(net.parameters())
    def step():
        ids = torch.randint(0, 1000, (4, 128), device="cuda")
        with loss_parallel():
            loss_of(net, ids).backward()
        optimizer.step()
        optimizer.zero_grad()
    return step
"""


def test_tensor_parallel_layers_gather_and_scatter_sequences() -> None:
    step = record(_TENSOR_PARALLEL, devices=8)
    assert step.mesh == (("dp", 2), ("tp", 4))
    calls = [call for call in collectives(step) if call.phase == "forward" and call.scope]
    assert [(call.kind, call.scope) for call in calls] == [
        ("reduce_scatter", "embedding"),
        ("all_gather", "layers.0.up"),
        ("reduce_scatter", "layers.0.down"),
        ("all_gather", "out"),
    ]
    assert all(call.ranks == (0, 1, 2, 3) for call in calls)
    products = operations(step, "aten::mm")
    assert {product.inputs[1].shape for product in products[:3]} == {
        (256, 256),
        (256, 250),
    }
    shapes = {tensor.shape for call in operations(step) for tensor in call.outputs}
    assert (512, 1000) not in shapes


_EXCHANGE = """
import torch
import torch.distributed as dist

def train():
    def step():
        x = torch.ones(8, 16, device="cuda")
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x, [1] * 8, [1] * 8)
        work = dist.all_reduce(y, async_op=True)
        z = x + 1
        work.wait()
        messages = [dist.P2POp(dist.isend, z, 1), dist.P2POp(dist.irecv, y, 7)]
        for message in dist.batch_isend_irecv(messages):
            message.wait()
        dist.barrier()
        return y + z
    return step
"""


def test_an_asynchronous_collective_runs_on_a_stream_of_its_own() -> None:
    step = record(_EXCHANGE, devices=8)
    calls = collectives(step)
    assert [call.kind for call in calls][:4] == ["all_to_all", "all_reduce", "send", "receive"]
    assert [call.stream == 0 for call in calls[:4]] == [True, False, False, False]
    assert calls[0].splits == (1,) * 8
    assert (calls[2].ranks, calls[3].ranks) == ((0, 1), (0, 7))
    assert calls[2].group == calls[3].group == tuple(range(8))
    position = {id(call): at for at, call in enumerate(step.calls)}
    [one, last] = operations(step, "aten::add")
    between = step.calls[position[id(one)] : position[id(last)]]
    waited = [call for call in between if isinstance(call, WaitEvent) and call.stream == 0]
    assert len(waited) == 3


_COALESCED = """
import torch
import torch.distributed as dist

def train():
    parts = [torch.ones(1024, device="cuda") for _ in range(2)]
    wholes = [torch.ones(8192, device="cuda") for _ in range(2)]
    def step():
        with dist._coalescing_manager(async_ops=True) as both:
            for part in parts:
                dist.all_reduce(part)
        both.wait()
        with dist._coalescing_manager():
            for whole, part in zip(wholes, parts):
                dist.all_gather_into_tensor(whole, part)
        with dist._coalescing_manager():
            for whole, part in zip(wholes, parts):
                dist.reduce_scatter_tensor(part, whole)
        return parts[0] + parts[1]
    return step
"""


def test_coalesced_collectives_are_one_each() -> None:
    calls = collectives(record(_COALESCED, devices=8, eager=True))
    assert [(call.kind, len(call.inputs), len(call.outputs)) for call in calls] == [
        ("all_reduce", 2, 2),
        ("all_gather", 2, 2),
        ("reduce_scatter", 2, 2),
    ]


_FUNCTIONAL = """
import torch
import torch.distributed._functional_collectives as messages
from torch.distributed.device_mesh import init_device_mesh

def train():
    mesh = init_device_mesh("cuda", (8,))
    x = torch.randn(1024, device="cuda")
    return lambda: messages.wait_tensor(messages.all_reduce(x, "sum", mesh)).mul(2)
"""


def test_what_is_waited_for_is_what_was_received() -> None:
    step = record(_FUNCTIONAL, devices=8, eager=True)
    (reduced,), (doubled,) = collectives(step), operations(step, "aten::mul")
    assert doubled.inputs[0].storage == reduced.outputs[0].storage


_FUSED = """
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory

def train(fused: bool = True):
    group = dist.group.WORLD.group_name
    part = torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
    def step():
        _, (product,) = torch.ops.symm_mem.fused_all_gather_matmul(part, [weight], 0, group)
        torch.ops.symm_mem.fused_matmul_reduce_scatter(product, weight, "sum", 0, group)
    def unknown():
        torch.ops.symm_mem.one_shot_all_reduce(part, "sum", group)
    return step if fused else unknown
"""


def test_products_beside_their_messages_are_recorded_with_them() -> None:
    step = record(_FUSED, devices=8, eager=True)
    assert [call.kind for call in collectives(step)] == ["all_gather", "reduce_scatter"]
    products = operations(step, "aten::mm")
    assert [call.inputs[0].shape for call in products] == [(4096, 1024)] * 2
    assert any("asynchronous tensor parallelism" in note for note in step.notes)


def test_other_messages_over_shared_memory_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"train.py:14: what symm_mem::one_shot_all_reduce"):
        record(_FUSED, devices=8, eager=True, fused=False)


_FLAT = f"""{NET}
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

def train():
    dist.init_process_group("nccl")
    net = FullyShardedDataParallel(
        Net({_WIDTH}, {_LAYERS}, {_VOCABULARY}),
        auto_wrap_policy=ModuleWrapPolicy({{Block}}),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        device_id=torch.cuda.current_device(),
        sync_module_states=True,
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    def step():
        ids = torch.randint(0, {_VOCABULARY}, (4, 128), device="cuda")
        loss_of(net, ids).backward()
        net.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    return step
"""


def test_fsdps_first_version_sends_as_much_as_the_second() -> None:
    first, second = record(_FLAT, devices=_RANKS), record(FSDP, devices=_RANKS)
    for kind in ("all_gather", "reduce_scatter"):
        calls, others = (
            [call for call in collectives(step) if call.kind == kind] for step in (first, second)
        )
        assert len(calls) == len(others)
        assert sum(map(_elements, calls)) == pytest.approx(sum(map(_elements, others)))
    held = bytes_after(first)
    assert held["parameter"] == 4 * _PARAMETERS // _RANKS
    assert held["gathered_parameter"] == 0
    # The rate limiter waits for events, not for streams.
    waits = [call for call in first.calls if isinstance(call, HostWait)]
    assert waits
    assert all(call.event is not None for call in waits)


_OUTER = """
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

def train(strategy):
    strategy = ShardingStrategy[strategy]
    blocks = [nn.Linear(256, 256, device="cuda") for _ in range(3)]
    parts = [FullyShardedDataParallel(block, sharding_strategy=strategy) for block in blocks]
    net = FullyShardedDataParallel(nn.Sequential(*parts), sharding_strategy=strategy)
    return lambda: net(torch.randn(64, 256, device="cuda")).sum().backward()
"""


@pytest.mark.parametrize(
    ("strategy", "kinds"),
    [
        ("FULL_SHARD", {"all_gather": 6, "reduce_scatter": 3}),
        ("SHARD_GRAD_OP", {"all_gather": 3, "reduce_scatter": 3}),
        ("NO_SHARD", {"all_reduce": 3}),
    ],
)
def test_an_outer_module_of_wrapped_ones_has_no_weights_of_its_own(
    strategy: str, kinds: dict[str, int]
) -> None:
    calls = collectives(record(_OUTER, devices=_RANKS, strategy=strategy))
    assert Counter(call.kind for call in calls) == kinds


OBJECTS = """
import torch
import torch.distributed as dist

def train():
    dist.init_process_group("nccl")
    def step():
        all_of_them, sent, found = [None] * 8, [3], [None] * 8
        dist.all_gather_object(all_of_them, {"loss": 1.5})
        dist.broadcast_object_list(sent, src=0)
        dist.gather_object(5, found, dst=0)
        assert (all_of_them[7], sent, found[0]) == ({"loss": 1.5}, [3], 5)
        dist.all_reduce(torch.randn(10, device="cuda"))
    return step
"""


def test_objects_are_exchanged_at_once() -> None:
    assert [call.kind for call in collectives(record(OBJECTS, devices=8))] == ["all_reduce"]


def test_hosts_wait_for_each_other_beside_the_step() -> None:
    """Lightning's Fabric does so before it makes files."""
    script = """
import torch
import torch.distributed as dist

def train():
    dist.init_process_group("nccl")
    hosts = dist.new_group(backend="gloo")
    def step():
        hosts.monitored_barrier()
        dist.monitored_barrier(hosts)
        torch.ones(4, device="cuda").sum()
    return step
"""
    assert not collectives(record(script, devices=_RANKS, eager=True))


def test_scripts_may_ask_for_nccl() -> None:
    script = """
import torch
import torch.distributed as dist

def train():
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.max_ctas = 8
    group = dist.new_group(range(8), pg_options=options)
    dist.distributed_c10d._set_pg_timeout(dist.distributed_c10d.default_pg_timeout, group)
    x = torch.ones(8, device="cuda")
    return lambda: dist.all_reduce(x, group=group)
"""
    assert collectives(record(script, devices=8, eager=True))


def test_shards_of_weights_are_drawn() -> None:
    script = FSDP.replace(
        """net.to_empty(device="cuda")
""",
        """net.to_empty(device="cuda")
    for module in net.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
""",
    )
    assert script != FSDP
    assert len(collectives(record(script, devices=8))) == len(collectives(record(FSDP, devices=8)))


_FUTURES = """
import torch, torch.distributed as dist

def train(how: str):
    dist.init_process_group("nccl")
    arrays = [torch.zeros(64, 64, device="cuda") for _ in range(2)]
    def step():
        futures = [dist.all_reduce(each, async_op=True).get_future() for each in arrays]
        if how == "wait":
            for future in futures:
                future.wait()
        elif how == "collect_all":
            torch.futures.collect_all(futures).wait()
        elif how == "wait_all":
            torch.futures.wait_all(futures)
        elif how == "then":
            for future in futures:
                future.then(lambda done: done.value())
        arrays[0] @ arrays[1]
    return step
"""


@pytest.mark.parametrize("how", ["wait", "collect_all", "wait_all", "then"])
def test_the_stream_waits_for_futures(how: str) -> None:
    calls = record(_FUTURES, devices=4, how=how).calls
    waits = [call.stream for call in calls if isinstance(call, WaitEvent)]
    (product,) = (call for call in calls if isinstance(call, Operation))
    assert waits.count(product.stream) == 2
    assert calls[-1] is product
