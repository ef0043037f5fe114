"""What a TPU's compiler expects of single operations, against peaks and against the roofline.

    python validation/tpu_cycles.py            print the tables
    python validation/tpu_cycles.py --write    put them into docs/evidence/tpus.md

Each operation is written in JAX and compiled for TPUs without having one. The first two tables
divide the cycles that the compiler wrote beside what it became by the clock of the node's preset;
the third compares the estimation methods `compiler` and `roofline`. Needs hespas[tpu].
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgspec

from hespas.base.home import cache_home
from hespas.compile.cache import CompiledCache
from hespas.compile.compiler import compile_program
from hespas.compile.job import Layout
from hespas.compile.targets import TpuTarget, find_target
from hespas.frontend.load import load_source
from hespas.hardware.device import Device
from hespas.hardware.presets import device_names, load_device
from hespas.program.program import Program, nested_ops
from hespas.stages import estimate, split
from hespas.xla.compile.topology import TPU_GENERATIONS

PAGE = Path("docs/evidence/tpus.md")
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A function of operands of one shape and type; ``flops`` is None where bytes are counted."""

    name: str
    function: Function
    shape: tuple[int, ...]
    kind: Any
    operands: int
    flops: int | None = None
    result_bytes: int | None = None

    @property
    def bytes_moved(self) -> int:
        """Bytes of the operands and of the result."""
        size = prod(self.shape) * jnp.dtype(self.kind).itemsize
        made = size if self.result_bytes is None else self.result_bytes
        return self.operands * size + made


def product(size: int, kind: Any, name: str) -> Case:
    """Return the product of two square matrices."""
    return Case(
        name=f"product of {size} x {size}, {name}",
        function=lambda a, b: a @ b,
        shape=(size, size),
        kind=kind,
        operands=2,
        flops=2 * size**3,
    )


_WIDE = (8192, 8192)
PRODUCTS = (
    product(1024, jnp.bfloat16, "bf16"),
    product(4096, jnp.bfloat16, "bf16"),
    product(8192, jnp.bfloat16, "bf16"),
    product(4096, jnp.float32, "f32"),
)
MOVING = (
    Case(
        name="a + b, f32",
        function=lambda a, b: a + b,
        shape=(8192, 4096),
        kind=jnp.float32,
        operands=2,
    ),
    Case(
        name="a + b, bf16",
        function=lambda a, b: a + b,
        shape=_WIDE,
        kind=jnp.bfloat16,
        operands=2,
    ),
    Case(name="exp(a), bf16", function=jnp.exp, shape=_WIDE, kind=jnp.bfloat16, operands=1),
    Case(
        name="sum of each row, bf16",
        function=lambda a: jnp.sum(a.astype(jnp.float32), axis=1),
        shape=_WIDE,
        kind=jnp.bfloat16,
        operands=1,
        result_bytes=4 * 8192,
    ),
    Case(
        name="transpose, bf16",
        function=lambda a: a.T + 0,
        shape=_WIDE,
        kind=jnp.bfloat16,
        operands=1,
    ),
)


_ROWS = (8192, 4096)


def _cumulative(a: Any) -> Any:
    return jnp.cumsum(a, -1)


def _largest(a: Any) -> Any:
    return jax.lax.top_k(a, 8)


def _layer_norm(a: Any) -> Any:
    centred = a - a.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6)


def _alone(name: str, function: Function, shape: tuple[int, ...], kind: Any) -> Case:
    """Return a function of one operand, of which only the time is of interest."""
    return Case(name=name, function=function, shape=shape, kind=kind, operands=1)


TIMED = (
    *PRODUCTS,
    _alone("softmax, f32[4,8,2048,2048]", jax.nn.softmax, (4, 8, 2048, 2048), jnp.float32),
    _alone("softmax, bf16[4,8,2048,2048]", jax.nn.softmax, (4, 8, 2048, 2048), jnp.bfloat16),
    _alone("layer norm, f32[8192,4096]", _layer_norm, _ROWS, jnp.float32),
    _alone("sum of each row, f32[8192,4096]", lambda a: a.sum(-1), _ROWS, jnp.float32),
    _alone("cumulative sum of each row, f32[4096,4096]", _cumulative, (4096, 4096), jnp.float32),
    _alone("8 largest of each row, f32[8192,4096]", _largest, _ROWS, jnp.float32),
    MOVING[0],
    MOVING[4],
)
TIMED_ON = ("TPUv5e", "TPUv5p", "TPUv6e")


def compiled(case: Case, node: str) -> Program:
    """Return what the compiler makes of a case for one chip."""
    target = find_target(node)
    if not isinstance(target, TpuTarget):
        raise SystemExit(f"{node} is no TPU")
    types = [jax.ShapeDtypeStruct(case.shape, case.kind)] * case.operands
    made = compile_program(
        jax.jit(case.function).lower(*types).as_text().encode(),
        name=case.name,
        target=node,
        layout=Layout(devices=TPU_GENERATIONS[target.generation].devices_per_chip),
        cache=CompiledCache(directory=cache_home() / "compiled"),
    )
    return load_source(made.hlo_proto, name=case.name)


def cycles(case: Case, node: str) -> int | None:
    """Return what the compiler expects of a case on a node; None where it doesn't say."""
    operations = nested_ops(compiled(case, node).main.body)
    known = [op.estimated_cycles for op in operations if op.estimated_cycles is not None]
    return sum(known) if known else None


def times(case: Case, node: str) -> str:
    """Return the time by the roofline and by all of the compiler's cycles, in us."""
    graph, device = split(compiled(case, node)), load_device(node)
    core = device.tensor_core
    if core is not None:
        device = replace(device, tensor_core=msgspec.structs.replace(core, product_cycles=1.0))
    by_method = (
        estimate(graph, device, method=method).total.time_s for method in ("roofline", "compiler")
    )
    return " / ".join(f"{time_s * 1e6:.0f}" for time_s in by_method)


def comparison() -> str:
    """Return a Markdown table of both methods: a row for each case, a column for each node."""
    lines = [
        f"| us, `roofline` / `compiler` | {' | '.join(TIMED_ON)} |",
        f"|---|{'---|' * len(TIMED_ON)}",
    ]
    lines += [
        f"| {case.name} | {' | '.join(times(case, node) for node in TIMED_ON)} |" for case in TIMED
    ]
    return "\n".join(lines)


def cell(case: Case, device: Device) -> str:
    """Return work a cycle, and the part that it is of the device's peak."""
    found = cycles(case, device.name)
    if found is None or device.clock_hz is None:
        return "not given"
    work = case.bytes_moved if case.flops is None else case.flops
    peak = device.memory_bandwidth_bytes_per_s
    if case.flops is not None:
        peak = device.per_datatype_flops["bf16"]
    return f"{work / found:.0f} ({100 * work / found * device.clock_hz / peak:.0f} %)"


def table(cases: tuple[Case, ...], devices: list[Device], unit: str) -> str:
    """Return a Markdown table: a row for each case, a column for each device."""
    head = " | ".join(device.name for device in devices)
    lines = [f"| {unit} | {head} |", f"|---|{'---|' * len(devices)}"]
    for case in cases:
        cells = " | ".join(cell(case, device) for device in devices)
        lines.append(f"| {case.name} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    devices = [load_device(name) for name in device_names() if name.startswith("TPU")]
    arguments = parser.parse_args()
    products = table(PRODUCTS, devices, "FLOP/cycle (of the peak of bf16)")
    moving = table(MOVING, devices, "bytes/cycle (of the memory bandwidth)")
    text = f"{products}\n\n{moving}"
    if not arguments.write:
        print(f"{text}\n\n{comparison()}")
        return
    place = re.compile(r"<!-- cycles -->\n.*?<!-- end -->", re.DOTALL)
    PAGE.write_text(place.sub(f"<!-- cycles -->\n{text}\n<!-- end -->", PAGE.read_text()))


if __name__ == "__main__":
    main()
