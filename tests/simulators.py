"""Stand-ins for simulators that are programs, strict in what they are given."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from hespas.backends import onnxim
from hespas.estimate.systolic.array import Product

HAS_ONNX = find_spec("onnx") is not None

COCOSSIM = """
import re, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if len(sys.argv) != 7 or set(flags) != {"--layers", "--size", "-ws"}:
    sys.exit(f"usage: not {sys.argv[1:]}")
if flags["-ws"] not in ("0", "1"):
    sys.exit("-ws is 0 or 1")
text = open(flags["--layers"]).read()
line = re.fullmatch(r"Conv 1 (\\d+) (\\d+) 1 (\\d+) 1 1 0\\n", text)
if line is None:
    sys.exit(f"no convolution of 1 x 1: {text!r}")
k, m, n = map(int, line.groups())
size = int(flags["--size"])
cycles = -(-k // size) * -(-n // size) * (3 * size + m) + int(flags["-ws"])
open(__file__ + ".count", "a").write("x")
print("layer 0 done")
print(f"Total cycles: {cycles}")
"""
"""Takes `COCOSSIM_HARDWARE`, and convolutions of 1 x 1 alone."""

ONNXIM = """
import json, os, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if len(sys.argv) != 5 or set(flags) != {"--config", "--models_list"}:
    sys.exit(f"usage: not {sys.argv[1:]}")
cores = json.load(open(flags["--config"]))
model, = json.load(open(flags["--models_list"]))["models"]
if model["batch_size"] != 1:
    sys.exit("one batch only")
path = os.path.join(os.environ["ONNXIM_HOME"], "models", model["name"], model["name"] + ".onnx")
try:
    import onnx
except ImportError:
    m, n, k = json.load(open(path))
else:
    onnx.checker.check_model(path, full_check=True)
    graph = onnx.load(path, load_external_data=False).graph
    node, = graph.node
    weights, = graph.initializer
    m, k = (each.dim_value for each in graph.input[0].type.tensor_type.shape.dim)
    n = weights.dims[0] if node.op_type == "Gemm" else weights.dims[1]
    assert list(weights.dims) == ([n, k] if node.op_type == "Gemm" else [k, n])
cores_count, core = cores["num_cores"], cores["core_config"]["core_0"]
cycles = m * -(-k // core["core_height"]) * -(-n // core["core_width"]) / cores_count
print("[info] Simulation finished")
print(f"[info] Total cycles: {round(cycles) + 1000}")
"""
"""Takes the interface that is usual, and models of one product."""

PATTERN = r"Total cycles: (\S+)$"
COCOSSIM_HARDWARE: dict[str, object] = {
    "arguments": ["--layers", "{workload}", "--size", "{rows}", "-ws", "{dataflow}"],
    "cycles_pattern": PATTERN,
}
CORES: dict[str, object] = {
    "num_cores": 1,
    "core_freq": 1000,
    "core_config": {
        "core_0": {"core_type": "systolic_ws", "core_height": 16, "core_width": 16},
    },
    "precision": 2,
}


def program_file(path: Path, code: str) -> str:
    """Write a Python program that can be run as it is, and return its path."""
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(0o755)
    return str(path)


def do_without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where onnx is not installed, let products reach the stand-in in a form of our own."""
    if HAS_ONNX:
        return

    def written(path: Path, product: Product, *, element_bytes: int, operator: str) -> None:
        del element_bytes, operator
        path.write_text(json.dumps([product.m, product.n, product.k]))

    monkeypatch.setattr(onnxim, "need_onnx", lambda: None)
    monkeypatch.setattr(onnxim, "write_product_model", written)
