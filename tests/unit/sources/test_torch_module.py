"""PyTorch modules through torchax: the program computes what eager PyTorch computes."""

# Neither torch nor torchax need be installed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import pytest

from hespas.api import predict
from hespas.errors import ExtraMissingError, ProgramError, UnsupportedError
from hespas.frontend.load import load_source
from hespas.sources.exported import Exported
from hespas.sources.function import export_named
from hespas.sources.torch_module import export_torch, is_torch_module
from xla_execute import compile_module, run_module

needs_torch = pytest.mark.skipif(
    find_spec("torchax") is None or find_spec("torch") is None, reason="needs hespas[torch]"
)

OWN = """
import torch
from torch import nn
from torch.nn import functional as f

class Block(nn.Module):
    def __init__(self, width=32, heads=2):
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(50, width)
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 50, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens)
        shape = (*tokens.shape, 3, self.heads, -1)
        q, k, v = self.qkv(self.norm(x)).view(shape).permute(2, 0, 3, 1, 4)
        y = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return self.head(x + self.down(f.gelu(self.up(x))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 16, 3, stride=2)
        self.head = nn.Linear(16, 10)

    def forward(self, images):
        x = f.max_pool2d(f.relu(self.norm(self.first(images))), 2)
        return self.head(f.adaptive_avg_pool2d(f.relu(self.second(x)), 1).flatten(1))

class Unknown(nn.Module):
    def forward(self, x):
        return torch.geqrf(x)[0]

class Mixed(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.device = device

    def forward(self, x):
        with torch.autocast(self.device, dtype=torch.bfloat16):
            return x @ x

class Deciding(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

def block():
    torch.manual_seed(0)
    return Block().eval(), (torch.randint(0, 50, (2, 16)),)

def net():
    torch.manual_seed(0)
    return Net().eval(), (torch.randn(2, 3, 16, 16),)

def net_step():
    module, inputs = net()
    return module.train(), inputs, f.cross_entropy, (torch.tensor([3, 7]),)

def block_step():
    module, inputs = block()
    module.up.bias.requires_grad_(False)
    loss = lambda made, wanted: f.cross_entropy(made.flatten(0, 1), wanted.flatten())
    return module.train(), inputs, loss, ((inputs[0] + 7) % 50,)

def large():
    with torch.device("meta"):
        return Block(width=65536).to(torch.bfloat16), (torch.zeros(1, 128, dtype=torch.int32),)

def dropout():
    return nn.Dropout(0.5).train(), (torch.ones(64),)

def unknown():
    return Unknown(), (torch.ones(4, 4),)

def mixed():
    return Mixed("cpu"), (torch.ones(4, 4),)

def mixed_on_gpu():
    return Mixed("cuda"), (torch.ones(4, 4),)

def deciding():
    return Deciding(), (torch.ones(4, 4),)

def lone():
    return nn.Linear(4, 4), torch.ones(4)

def frozen():
    return nn.ReLU(), (torch.ones(4),), torch.sum, ()
"""

Own = Callable[[str], Any]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Own:
    (tmp_path / "own_torch.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_torch", raising=False)
    return lambda name: getattr(import_module("own_torch"), name)()


def state(module: Any) -> dict[str, Any]:
    """Return what the program's first arguments are: parameters that learn, then the others."""
    named = sorted(module.named_parameters())
    buffers = [(name, one) for name, one in named if not one.requires_grad]
    buffers += module.named_buffers()
    return dict([(name, one) for name, one in named if one.requires_grad] + sorted(buffers))


def arrays(module: Any, *data: Any, seed: int = 0) -> list[Any]:
    """Return copies of the program's arguments, 32 bits wide where the module has 64."""
    before, after = (
        [one.detach().numpy() for one in part] for part in (state(module).values(), data)
    )
    given = [*before, numpy.full(4, seed, numpy.uint32), *after]
    return [one.astype(numpy.int32 if one.dtype == numpy.int64 else one.dtype) for one in given]


def run(made: Exported, arguments: list[Any]) -> list[Any]:
    executable = compile_module(made.content.decode(), name=made.name)
    return [result[0] for result in run_module(executable, [[one] for one in arguments])]


@needs_torch
@pytest.mark.parametrize(("name", "products"), [("block", 7), ("net", 3)])
def test_the_program_computes_what_the_module_does(own: Own, name: str, products: int) -> None:
    module, inputs = own(name)
    made = export_named(f"own_torch:{name}")
    (found,) = run(made, arrays(module, *inputs))
    expected = module(*inputs).detach().numpy()
    assert numpy.abs(found - expected).max() < 1e-6 * numpy.abs(expected).max()
    text = made.content.decode()
    assert text.count("stablehlo.dot_general") + text.count("stablehlo.convolution(") == products
    assert any("int64 of the PyTorch module" in note for note in made.notes)


@needs_torch
@pytest.mark.parametrize("name", ["block_step", "net_step"])
def test_a_step_learns_as_pytorch_does(own: Own, name: str) -> None:
    module, inputs, loss, targets = own(name)
    made = export_named(f"own_torch:{name}")
    assert made.content.count(b"tf.aliasing_output") == len(state(module))
    found, *after = run(made, arrays(module, *inputs, *targets))
    expected = loss(module(*inputs), *targets)
    expected.backward()
    import_module("torch").optim.SGD(module.parameters(), lr=0.01).step()
    assert found == pytest.approx(expected.item(), rel=1e-6)
    for (location, wanted), value in zip(state(module).items(), after, strict=True):
        # torchax counts the batches, but keeps no average over them.
        if "running_" not in location:
            assert value == pytest.approx(wanted.detach().numpy(), abs=1e-6), location


@needs_torch
def test_the_same_bytes_again_whatever_the_types_elsewhere(own: Own) -> None:
    module, inputs = own("block")
    jax = import_module("jax")
    with jax.enable_x64(True):
        wide = export_torch(module, inputs)
    with jax.enable_x64(False):
        assert export_torch(module, inputs) == wide


@needs_torch
def test_weights_are_neither_read_nor_there(own: Own) -> None:
    made = export_torch(*own("large"))
    assert b"tensor<196608x65536xbf16>" in made.content
    assert len(made.content) < 100_000
    assert made.notes == ()


@needs_torch
def test_what_is_random_comes_from_the_seed(own: Own) -> None:
    module, inputs = own("dropout")
    made = export_torch(module, inputs)
    assert made.content.count(b"stablehlo.rng_bit_generator") == 1
    first, again, other = (run(made, arrays(module, *inputs, seed=n))[0] for n in (1, 1, 2))
    assert sorted(set(first)) == [0, 2]
    assert (first == again).all()
    assert (first != other).any()


@needs_torch
def test_a_step_is_predicted(own: Own) -> None:
    module, inputs, loss, targets = own("net_step")
    made = export_torch(module, inputs, loss=loss, targets=targets)
    assert any("learning rate of 0.01" in note for note in made.notes)
    program = load_source(made.content, name=made.name)
    assert predict(program, "H100_SXM_80GB").step_time_s > 0


@needs_torch
@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("unknown", UnsupportedError, "aten::geqrf has no lowering"),
        ("mixed", UnsupportedError, "own_torch:mixed: torchax has no torch.autocast"),
        ("mixed_on_gpu", ProgramError, "autocast"),
        ("deciding", ProgramError, "ConcretizationTypeError"),
        ("lone", ProgramError, r"let it return \(module, inputs\)"),
        ("frozen", ProgramError, "no parameter requires a gradient"),
    ],
)
def test_modules_of_no_use(own: Own, name: str, error: type[ProgramError], message: str) -> None:
    with pytest.raises(error, match=message):
        export_named(f"own_torch:{name}")


@needs_torch
def test_targets_need_a_loss(own: Own) -> None:
    module, inputs = own("net")
    with pytest.raises(ProgramError, match="targets without a loss"):
        export_torch(module, inputs, targets=inputs)


@needs_torch
def test_torch_itself_stays_as_it_was(own: Own) -> None:
    export_torch(*own("dropout"))
    with pytest.raises(AttributeError):
        _ = import_module("torch").ops.aten.unbind.Dimname


def test_without_torch_nothing_is_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not is_torch_module(object())


@pytest.mark.parametrize("missing", ["torch._ops", "torchax"])
def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ExtraMissingError, match=r"pip install 'hespas\[torch\]'"):
        export_torch(object(), ())


def test_the_extra_is_named_to_who_imports_torch(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ExtraMissingError, match=r"own_torch:block needs .*'hespas\[torch\]'"):
        export_named("own_torch:block")
