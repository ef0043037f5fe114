"""What scripts commonly ask of ``torch.cuda``, and data of the host."""

from __future__ import annotations

from hespas.program.recorded import HostWait
from torch_steps import NET, bytes_after, needs_torch, operations, record

pytestmark = needs_torch

_SCRIPT = f"""{NET}
from torch.utils.data import DataLoader, TensorDataset

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net(64, 1)
        self.drop = nn.Dropout(0.1)
        self.net.out.weight = self.net.embedding.weight

    def forward(self, x):
        return self.drop(self.net(x))

def train():
    torch.manual_seed(0)
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    assert "H100" in torch.cuda.get_device_name() and torch.cuda.device_count() == 1
    assert torch.cuda.get_device_capability() == (9, 0)
    model = Tied().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    data = TensorDataset(torch.arange(640).reshape(64, 10))
    batches = iter(DataLoader(data, batch_size=8, pin_memory=True))
    assert torch.tensor(8, pin_memory=True).to(device, non_blocking=True).item() == 8
    seen = []
    def step():
        (batch,) = next(batches)
        seen.append(batch[0, 1].item())
        batch = batch.to(device, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        host = loss.detach().to("cpu")
        assert torch.cuda.max_memory_allocated() > torch.cuda.memory_allocated() > 0
        assert seen == [1, 81][: len(seen)]
    return step
"""


def test_a_usual_script_runs_as_it_is() -> None:
    step = record(_SCRIPT)
    # Tied weights are one parameter, before and after the model moves.
    parameters = 4 * (1000 * 64 + 2 * 64 + 8 * 64**2)
    assert bytes_after(step)["parameter"] == parameters
    assert bytes_after(step)["optimizer_state"] == 2 * parameters
    products = operations(step, "aten::mm")
    assert {tensor.dtype for call in products for tensor in call.inputs} == {"bfloat16"}


def test_the_host_waits_where_the_script_does() -> None:
    waits = [call for call in record(_SCRIPT).calls if isinstance(call, HostWait)]
    assert [wait.reason for wait in waits] == ["torch.cuda.synchronize", "copy to the host"]
    assert all(wait.place.startswith("train.py:") for wait in waits)


def test_an_optimiser_that_was_made_before_the_move_has_what_was_moved() -> None:
    moved_first = record(_SCRIPT)
    lines = _SCRIPT.splitlines()
    (move,) = [line for line in lines if line.endswith(".to(device)") and "model" in line]
    made_first = _SCRIPT.replace(move, "    model = Tied()").replace(
        "    schedule =", "    model.to(device)\n    schedule ="
    )
    made = record(made_first)
    assert bytes_after(made) == bytes_after(moved_first)
    assert made.host_updates == 0
    moved_updates, updates = (
        [call.name for call in operations(step) if call.phase == "optimizer"]
        for step in (moved_first, made)
    )
    assert updates == moved_updates != []


def test_tensors_have_addresses_of_their_own() -> None:
    record("""
import torch

def train():
    first, second = (torch.randn(300, 300, device=device) for device in ("cpu", "cuda"))
    weight = torch.nn.Parameter(second)
    assert first.data_ptr() != second.data_ptr() == weight.data_ptr()
    assert weight.untyped_storage().data_ptr() == weight.data_ptr()
    assert second[1:].data_ptr() - second.data_ptr() == 1200
    return lambda: second.add_(1)
""")


def test_what_profilers_and_logs_ask_for_is_answered() -> None:
    record("""
import torch

def train():
    x = torch.zeros(1024, 256, device="cuda")
    with torch.cuda.nvtx.range("step"):
        y = x + 1
    statistics = torch.cuda.memory_stats()
    assert statistics["active_bytes.all.peak"] >= 2 * 4 * 1024 * 256
    assert statistics["num_alloc_retries"] == 0
    return lambda: x.add_(1)
""")


def test_generators_of_the_device_have_states() -> None:
    script = """
import torch

def train():
    own = torch.Generator(device="cuda").manual_seed(3)
    assert isinstance(own, torch.Generator) and own.device.type == "cuda"
    for generator in (own, torch.cuda.default_generators[0]):
        generator.set_state(generator.get_state())
    host, other = torch.Generator().manual_seed(3), torch.Generator()
    other.set_state(host.get_state())
    assert torch.rand(3, generator=host).equal(torch.rand(3, generator=other))
    return lambda: torch.rand(3, device="cuda", generator=own)
"""
    assert operations(record(script, eager=True), "aten::rand")


def test_a_moved_parameter_keeps_what_is_noted_at_it() -> None:
    script = """
import torch

def train():
    net = torch.nn.Linear(512, 512)
    net.weight.is_shard = net.bias.is_shard = True
    net.cuda().bfloat16()
    assert net.weight.is_shard and net.bias.is_shard
    return lambda: net(torch.ones(8, 512, device="cuda", dtype=torch.bfloat16)).sum().backward()
"""
    assert operations(record(script, eager=True), "aten::addmm")[0].outputs[0].dtype == "bfloat16"


def test_tensors_are_on_the_device_that_the_program_sets() -> None:
    script = """
import torch

def train():
    torch.cuda.set_device(3)
    net = torch.compile(torch.nn.Linear(512, 512).to("cuda"))
    x = torch.ones(8, 512, device=torch.device("cuda", 3))
    with torch.cuda.device(2):
        assert torch.cuda.current_device() == 2
    assert torch.cuda.current_device() == 3
    return lambda: net(x).sum().backward()
"""
    assert operations(record(script, devices=8), "aten::addmm")


def test_weights_of_a_class_of_their_own_move_and_change_their_data() -> None:
    script = """
import torch

class Packed(torch.nn.Parameter):
    def __new__(cls, data, requires_grad=False):
        packed = torch.Tensor._make_subclass(cls, data, requires_grad)
        packed.is_packed = False
        return packed

    def to(self, *arguments, **options):
        # As bitsandbytes' weights in 4 bits do it.
        self.data = super().to(*arguments, **options).detach().to(torch.uint8)
        self.is_packed = True
        return self

def train():
    net = torch.nn.Linear(512, 512, bias=False)
    net.weight = Packed(net.weight.data)
    net.to("cuda")
    assert type(net.weight).__name__ == "Packed" and net.weight.is_packed
    assert net.weight.device.type == "cuda" and not net.weight.requires_grad
    x = torch.ones(8, 512, device="cuda")
    return lambda: torch.nn.functional.linear(x, net.weight.float())
"""
    (copied,) = operations(record(script, eager=True), "aten::_to_copy")
    assert copied.inputs[0].dtype == "uint8"
