"""Whole steps of PyTorch, recorded for GPUs that are not there, against what is known of them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hespas.errors import ProgramError, UnsupportedError
from hespas.program.recorded import HostWait, Operation
from torch_steps import (
    COMPILED,
    NET,
    TRAIN,
    bytes_after,
    kernel_calls,
    needs_torch,
    operations,
    peak_bytes,
    record,
)

pytestmark = needs_torch

_WIDTH, _LAYERS, _VOCABULARY = 256, 2, 1000
_PARAMETERS = 2 * _VOCABULARY * _WIDTH + _LAYERS * (8 * _WIDTH**2 + 2 * _WIDTH)
_TENSORS = 2 + 4 * _LAYERS


def test_parameters_and_the_states_of_adam_alone_are_held_after_a_step() -> None:
    # bf16 parameters, two moments of their type, and a count of steps in f32 for each.
    held = bytes_after(record(TRAIN))
    assert held == {
        "parameter": 2 * _PARAMETERS,
        "optimizer_state": 2 * 2 * _PARAMETERS + 4 * _TENSORS,
    }


def test_a_linear_layer_is_three_products() -> None:
    step = record(TRAIN)
    products = operations(step, "aten::mm.default")
    assert len(products) == 3 * (2 * _LAYERS + 1)
    assert [product.phase for product in products].count("forward") == 2 * _LAYERS + 1


def test_gradients_are_as_large_as_the_parameters() -> None:
    step = record(TRAIN)
    gradients = [storage for storage in step.storages if storage.role == "gradient"]
    assert sum(storage.size_bytes for storage in gradients) == 2 * _PARAMETERS
    assert {storage.name for storage in gradients} == {
        storage.name for storage in step.storages if storage.role == "parameter"
    }


_TRACKED = (
    NET
    + """
from torch.distributed._tools.mem_tracker import MemTracker
from hespas.torch.messages import GpuDescription
from hespas.torch.device import fake_mode, install_fake_gpus
from hespas.torch.streams import Streams
from hespas.torch.tape import Tape
gpu = GpuDescription(name="GPU", major=9, minor=0, multiprocessors=132, memory_bytes=85 << 30,
    l2_cache_bytes=50 << 20, shared_memory_per_block_bytes=232448, clock_hz=1.98e9,
    shared_memory_per_multiprocessor_bytes=233472, registers_per_multiprocessor=65536,
    threads_per_multiprocessor=2048)
install_fake_gpus(gpu, Streams(Tape()), count=1)
with fake_mode():
    net = Net(256, 2).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    tracker = MemTracker()
    tracker.track_external(net, optimizer)
    for turn in range(2):
        with tracker:
            ids = torch.randint(0, 1000, (4, 128), device="cuda")
            loss_of(net, ids).backward()
            optimizer.step()
            optimizer.zero_grad()
            del ids
        snapshot = tracker.get_tracker_snapshot("peak")
        tracker.reset_mod_stats()
import json
print(json.dumps({str(kind): size for kind, size in snapshot[torch.device("cuda:0")].items()}))
"""
)


def test_the_peak_is_that_of_torchs_own_tracker() -> None:
    run = [sys.executable, "-c", _TRACKED]
    printed = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    tracked = json.loads(printed.splitlines()[-1])
    assert peak_bytes(record(TRAIN)) == tracked["Total"]


def test_an_operation_has_module_phase_and_line() -> None:
    lines = dict(enumerate(TRAIN.splitlines(), 1))

    def shown(call: Operation) -> tuple[str, str, str]:
        file, _, number = call.place.partition(":")
        assert file == "train.py"
        return call.scope, call.phase, lines[int(number)].strip()

    step = record(TRAIN)
    block = "return x + self.down(F.gelu(self.up(self.norm(x))))"
    assert [shown(call) for call in operations(step, "aten::gelu")] == [
        ("layers.0", "forward", block),
        ("layers.1", "forward", block),
        ("layers.1", "backward", block),
        ("layers.0", "backward", block),
    ]
    [adam] = operations(step, "aten::_fused_adamw_")
    assert shown(adam) == ("", "optimizer", "optimizer.step()")
    down = [call for call in operations(step, "aten::mm") if call.scope == "layers.0.down"]
    assert [call.phase for call in down] == ["forward", "backward", "backward"]


def test_an_update_shares_the_storages_of_what_it_updates() -> None:
    [adam] = operations(record(TRAIN), "aten::_fused_adamw_")
    roles = [record(TRAIN).storages[tensor.storage].role for tensor in adam.inputs]
    assert roles == (
        ["parameter"] * _TENSORS + ["gradient"] * _TENSORS + ["optimizer_state"] * 3 * _TENSORS
    )


def test_a_foreach_optimizer_counts_its_steps_on_the_host() -> None:
    step = record(TRAIN, fused=None)
    assert operations(step, "aten::_foreach_")
    assert bytes_after(step)["optimizer_state"] == 4 * _PARAMETERS


def test_arguments_are_by_their_names() -> None:
    [embedding] = operations(record(TRAIN), "aten::embedding_dense_backward")
    assert embedding.arguments["num_weights"] == 1000


def test_the_function_gets_its_arguments() -> None:
    step = record(TRAIN, layers=1)
    assert len(operations(step, "aten::mm.default")) == 9


def _step(body: str) -> str:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return (
        f"{NET}\ndef train():\n    net = Net(64, 1).cuda()\n    def step():\n{lines}    return step"
    )


@pytest.mark.parametrize(
    "body",
    [
        "ids = torch.randint(9, (1, 8), device='cuda')\nprint(loss_of(net, ids).item())",
        "ids = torch.randint(9, (1, 8), device='cuda')\nif loss_of(net, ids) > 3: pass",
        "pass\nfloat(torch.rand((), device='cuda'))",
        "pass\ntorch.randn(3, device='cuda').nonzero()",
        "pass\ntorch.randn(3, device='cuda').cpu().numpy()",
    ],
)
def test_a_value_that_the_step_asks_for_is_an_error_with_its_line(body: str) -> None:
    script = _step(body)
    line = next(n for n, text in enumerate(script.splitlines(), 1) if body.splitlines()[1] in text)
    with pytest.raises(UnsupportedError, match="value") as error:
        record(script)
    assert error.value.location == f"train.py:{line}"


@pytest.mark.parametrize(
    ("script", "message", "line"),
    [
        ("import missing_module\n", "missing_module is not installed", "train.py:1"),
        ("import transformer_engine.pytorch\n", "transformer_engine has kernels", "train.py:1"),
        ("def train():\n    return 3\n", "returned a value of type int", "train.py:train"),
        ("def train():\n    pass\n", "returned nothing", "train.py:train"),
        ("def other():\n    pass\n", "no function 'train'", "train.py"),
        ("def train(:\n", "SyntaxError", "train.py:1"),
        ("import sys\ndef train():\n    sys.exit(2)\n", "ends the process", "train.py:3"),
        (
            f"{NET}\na = torch.ones(2, 3, device='cuda')\ndef train():\n    return lambda: a @ a\n",
            "RuntimeError: a and b must have same reduction dim",
            f"train.py:{NET.count(chr(10)) + 4}",
        ),
    ],
)
def test_what_is_wrong_with_a_script_is_said_with_its_line(
    script: str, message: str, line: str
) -> None:
    with pytest.raises(ProgramError, match=message) as error:
        record(script)
    assert error.value.location == line


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("print(x)", "prints a tensor"),
        ("load_inline(name='mine', cpp_sources='', cuda_sources='')", "extension mine is compiled"),
        ("torch.nn.DataParallel(torch.nn.Linear(2, 2))", "DataParallel, which runs several GPUs"),
        ("torch.cuda.CUDAGraph()", "a CUDA graph is not recorded"),
    ],
)
def test_what_is_not_recorded_is_refused_with_its_line(body: str, message: str) -> None:
    lines = (
        "import torch",
        "from torch.utils.cpp_extension import load_inline",
        "def train():",
        "    x = torch.ones(2, device='cuda')",
        "    def step():",
        f"        {body}",
        "    return step",
    )
    with pytest.raises(UnsupportedError, match=message) as error:
        record("\n".join(lines))
    assert error.value.location == "train.py:6"


def test_copied_modules_have_parameters_of_their_own() -> None:
    lines = (
        "import copy, torch",
        "def train():",
        "    layer = torch.nn.Linear(512, 512)",
        "    net = torch.nn.Sequential(layer, copy.deepcopy(layer)).cuda()",
        "    def step():",
        "        net(torch.ones(512, 512, device='cuda')).sum().backward()",
        "    return step",
    )
    after = bytes_after(record("\n".join(lines)))
    assert after["parameter"] == 2 * 4 * (512 * 512 + 512)


_BROKEN = f"""{NET}
class Printed(Net):
    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            torch._dynamo.graph_break()
            x = layer(x)
        return self.out(x)

def train():
    net = torch.compile(Printed(256, 2).to("cuda", torch.bfloat16))
    def step():
        ids = torch.randint(0, 1000, (4, 128), device="cuda")
        loss_of(net, ids).backward()
    return step
"""


def test_functions_that_dynamo_leaves_as_written_are_named() -> None:
    (left,) = record(_BROKEN).uncompiled
    assert left.endswith(" forward")
    assert not record(COMPILED, whole=True).uncompiled


def test_what_stands_in_torchs_place_is_not_compiled_by_itself() -> None:
    script = """
import torch

def train():
    @torch._dynamo.disable(recursive=False)
    def use(x):
        x.record_stream(torch.cuda.current_stream())
        torch.cuda.set_device(torch.cuda.current_device())
    @torch.compile
    def run(x):
        use(x)
        return x * 2
    x = torch.ones(256, device="cuda")
    return lambda: run(x)
"""
    assert len(kernel_calls(record(script))) == 1


_CALLS = """
import torch
from torch.nn import functional as F

def train(inference: bool = False):
    linear = torch.nn.Linear(64, 64, device="cuda", dtype=torch.bfloat16)
    convolution = torch.nn.Conv2d(4, 4, 3, device="cuda")
    context = torch.inference_mode if inference else torch.no_grad
    @context()
    def step():
        x = torch.randn(8, 16, 64, device="cuda", dtype=torch.bfloat16)
        y = linear(x)
        y @ y.transpose(1, 2)
        convolution(torch.randn(2, 4, 8, 8, device="cuda"))
        heads = y.view(8, 16, 2, 32).transpose(1, 2)
        F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        F.dropout(F.layer_norm(x, (64,)).softmax(-1), 0.1)
        torch.einsum("bsd,de->bse", x, linear.weight)
        torch.tensor([1.0], device="cuda") + torch.arange(3, device="cuda")
    return step
"""


def test_inference_mode_launches_what_no_grad_does() -> None:
    without, inference = record(_CALLS), record(_CALLS, inference=True)
    names = [call.name for call in operations(inference)]
    assert names == [call.name for call in operations(without)]
    assert "aten::addmm.default" in names
    assert "aten::_scaled_dot_product_cudnn_attention.default" in names


_SCALED = f"""{NET}
def train(fused: bool | None = None):
    net = Net(64, 1).cuda()
    optimizer = torch.optim.SGD(net.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cuda")
    def step():
        ids = torch.zeros(1, 8, dtype=torch.long, device="cuda")
        with torch.autocast("cuda", torch.float16):
            loss = loss_of(net, ids)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:
            optimizer.zero_grad()
    return step
"""


def test_a_gradient_scaler_finds_no_infinite_gradient_and_waits_for_the_answer() -> None:
    step = record(_SCALED)
    waits = [call for call in step.calls if isinstance(call, HostWait)]
    assert len(waits) == 3
    assert [call.phase for call in operations(step, "aten::_foreach_add_.List")] == ["optimizer"]


def test_parameters_outside_of_modules_are_parameters() -> None:
    script = (
        "import torch\ndef train():\n"
        "    weight = torch.nn.Parameter(torch.ones(64, 64, device='cuda'))\n"
        "    optimizer = torch.optim.SGD([weight])\n"
        "    def step():\n"
        "        weight.sum().backward()\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
        "    return step\n"
    )
    assert bytes_after(record(script)) == {"parameter": 64 * 64 * 4}


@pytest.mark.parametrize("step", ["net(ids).mean().backward()", "pass"])
def test_a_step_that_the_host_computes_is_refused(step: str) -> None:
    script = f"""{NET}
def train():
    net, ids = Net(64, 1), torch.randint(0, 1000, (4, 128))
    def step():
        {step}
    return step
"""
    with pytest.raises(UnsupportedError, match="computes nothing on the device; move the model"):
        record(script)


def test_a_compiled_optimizer_has_its_states() -> None:
    script = COMPILED.replace(
        "    optimizer = torch.optim.AdamW(net.parameters(), fused=True)\n",
        "    optimizer = torch.optim.AdamW(net.parameters())\n"
        "    update = torch.compile(optimizer.step)\n",
    ).replace("        optimizer.step()\n", "        update()\n")
    step = record(script)
    updates = [call for call in kernel_calls(step) if call.phase == "optimizer"]
    assert updates
    # A compiled update counts its steps on the device, in f32.
    states = bytes_after(step)["optimizer_state"]
    assert states == 2 * bytes_after(step)["parameter"] + 4 * _TENSORS


def test_recurrent_layers_are_said_to_be_longer_than_cudnns() -> None:
    script = """
import torch

def train():
    net = torch.nn.LSTM(64, 64).cuda()
    return lambda: net(torch.zeros(4, 2, 64, device="cuda"))[0].sum().backward()
"""
    (note,) = record(script, eager=True).notes
    assert "recorded token by token; cuDNN has fewer kernels" in note
    assert not [each for each in record(TRAIN).notes if "cuDNN" in each]


_REGIONS = f"""{NET}
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

def train(wrapped: bool = True):
    net = Net(256, 1).to("cuda", torch.bfloat16)
    block = torch.compile(net.layers[0], options={{"wrap_inductor_compiled_regions": wrapped}})
    x = torch.randn(4, 128, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    def contexts():
        return create_selective_checkpoint_contexts([torch.ops.aten.mm.default])
    def step():
        checkpoint(block, x, use_reentrant=False, context_fn=contexts).sum().backward()
    return step
"""


def test_compiled_code_that_is_called_in_one_piece_is_recorded() -> None:
    wrapped, usual = (
        [call.kernel for call in kernel_calls(record(_REGIONS, wrapped=each))]
        for each in (True, False)
    )
    assert wrapped
    assert set(wrapped) == set(usual)
