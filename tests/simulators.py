"""Stand-ins for simulators that are programs, which behave as the real ones were seen to."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from hespas.backends import onnxim
from hespas.price.systolic import Product

HAS_ONNX = find_spec("onnx") is not None

FIGURES: Mapping[str, Mapping[tuple[int, int, int], int]] = {
    "cocossim_ws": {
        (128, 128, 128): 883,
        (512, 512, 512): 24_667,
        (300, 700, 1000): 46_445,
        (1, 4096, 4096): 280_006,
        (1024, 1024, 1024): 165_492,
    },
    "cocossim_os": {
        (128, 128, 128): 424,
        (512, 512, 512): 18_772,
        (300, 700, 1000): 37_063,
        (1, 4096, 4096): 266_495,
        (1024, 1024, 1024): 140_973,
    },
    "onnxim_ws": {
        (128, 128, 128): 898,
        (512, 512, 512): 9_352,
        (300, 700, 1000): 19_638,
        (1, 4096, 4096): 133_494,
        (1024, 1024, 1024): 67_207,
    },
}
"""Cycles of (m, k, n) on 128 x 128 at 940 MHz, 2 bytes an element, by the real programs.

COCOSSim's build 8da7e20, with the environment and the whole folds that its output-stationary
figures need; ONNXim's a1e8629 with ramulator2. Source: runs of November 2026.
"""


def _figures(name: str, side: int) -> str:
    """Return figures as a table's text, with m and n rounded up to multiples of ``side``."""
    figures = FIGURES[name].items()
    return repr({(-(-m // side) * side, k, -(-n // side) * side): c for (m, k, n), c in figures})


_COCOSSIM = """
import os, re, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if len(sys.argv) != 15 or set(flags) != {"-c", "-sa_sz", "-vu_sz", "-ws", "-f", "-i", "-o"}:
    sys.exit(f"usage: not {sys.argv[1:]}")
if os.path.basename(os.getcwd()) != "build" or not os.path.isdir("../dramsim3/configs"):
    sys.exit("no ../dramsim3/configs")
if not os.path.exists("../dramsim3/libdramsim3.so"):
    sys.exit("libdramsim3.so: cannot open shared object file")
line = re.fullmatch(r"Conv 1 (\\d+) (\\d+) 1 (\\d+) 1 1 0\\n", open(flags["-i"]).read())
if line is None:
    sys.exit("no convolution of 1 x 1")
k, m, n = map(int, line.groups())
size, clock_ghz = int(flags["-sa_sz"]), float(flags["-f"])
folds = lambda length: -(-length // size)
if flags["-ws"] == "1":
    if (m * n + m * min(k, size)) * 2 >= 2**31:
        cycles = 12345  # a 32-bit number that went round
    else:
        cycles = WS.get((m, k, n), folds(k) * folds(n) * (3 * size + m) + 1)
else:
    m, n = m // size * size, n // size * size
    cycles = OS.get((m, k, n), folds(m) * folds(n) * (2 * size + k))
    if "perturb=255" not in os.environ.get("GLIBC_TUNABLES", ""):
        cycles += 5580 + os.getpid() % 167  # a counter that is never set
open(os.path.realpath(__file__) + ".count", "a").write("x")
print("Layer 0 done")
open(flags["-o"], "w").write(f"Layers 1\\nCycles {cycles}\\nReads 77\\n")
"""
COCOSSIM = _COCOSSIM.replace("WS.get", f"({_figures('cocossim_ws', 1)}).get").replace(
    "OS.get", f"({_figures('cocossim_os', 128)}).get"
)
"""Takes what build 8da7e20 takes, and convolutions of 1 x 1 alone; wrong where that is wrong."""

_ONNXIM = """
import json, os, signal, sys, time
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
count, core = cores["num_cores"], cores["core_config"]["core_0"]
while core["core_type"] == "systolic_os":
    time.sleep(1)  # an assertion that was compiled out
side = core["core_height"]  # the width is not looked at
thin = min(-(-m // side), -(-n // side)) < count
mapping = path[: -len(".onnx")] + ".mapping"
if thin and not os.path.exists(mapping):
    os.kill(os.getpid(), signal.SIGFPE)
if thin:
    total, over, inside = (
        {each[0]: int(each[1:]) for each in part.split()[1:]}
        for part in open(mapping).read().split(" - "))
    assert total == {"N": m, "C": k, "M": n}
    assert all(over[name] * inside[name] >= total[name] for name in total)
cycles = FIGURES.get((m, k, n)) if (side, count) == (128, 1) else None
cycles = cycles or round(m * -(-k // side) * -(-n // side) / count) + 1000
print("[2026-11-22 08:00:00.000] [info] Total 1 models")
print(f"[2026-11-22 08:00:01.000] [info] Simulation Finished at {cycles} cycle {cycles / 1e3} us")
"""
ONNXIM = _ONNXIM.replace("FIGURES.get", f"({_figures('onnxim_ws', 1)}).get")
"""Takes what build a1e8629 takes, and models of one product; crashes and hangs where that does."""

PATTERN = r"Total cycles: (\S+)$"
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


def cocossim_checkout(directory: Path, code: str = COCOSSIM) -> str:
    """Lay out COCOSSim's folder as its build leaves it, and return the path of its program."""
    (directory / "build").mkdir(parents=True, exist_ok=True)
    (directory / "dramsim3" / "configs").mkdir(parents=True, exist_ok=True)
    (directory / "dramsim3" / "libdramsim3.so").touch()
    return program_file(directory / "build" / "perf_model", code)


def do_without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where onnx is not installed, let products reach the stand-in in a form of our own."""
    if HAS_ONNX:
        return

    def written(path: Path, product: Product, *, element_bytes: int, operator: str) -> None:
        del element_bytes, operator
        path.write_text(json.dumps([product.m, product.n, product.k]))

    monkeypatch.setattr(onnxim, "need_onnx", lambda: None)
    monkeypatch.setattr(onnxim, "write_product_model", written)
