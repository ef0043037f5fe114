"""What libtpu's instructions and its cycles say of kernels that move, compute or reduce, by hespas.

    python validation/tpu_vectors.py                 print the table
    python validation/tpu_vectors.py --node TPUv6e   one part, as JSON

Each program is compiled for a TPU without having one. libtpu then writes how many operations of
each unit its instructions have. A kernel's instructions times its windows are the cycles that its
vector unit works, beside which memory fetches the next windows. Needs hespas[tpu].
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from math import exp, log, prod
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

TOPOLOGIES = {"TPUv5e": "v5e:1x1", "TPUv6e": "v6e:1x1"}
WINDOW_KIB = 4096
"""Memory for windows: small ones have few instructions, so that compiling takes a second."""
_WRITTEN = re.compile(r'%(\S+) = .*"estimated_cycles":"(\d+)"')
_FIGURES = ("memory", "libtpu", "hespas", "written")
_WINDOWS = re.compile(r'"iteration_bounds":\[([^\]]*)\]')


def cases() -> dict[str, tuple[Any, ...]]:
    """Return each program: a function, and the shape and type of each operand."""
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415

    bf16, f32, i32 = jnp.bfloat16, jnp.float32, jnp.int32
    wide, narrow = ((4096, 4096), f32), ((4096, 4096), bf16)
    heads, angles = ((2, 2048, 32, 128), bf16), ((2048, 1, 64), f32)
    logits, words = ((2048, 32000), bf16), ((2048,), i32)

    def layer_norm(a):
        centred = a - a.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6)

    def rms_norm(a, scale):
        x = a.astype(f32)
        return (x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)).astype(bf16) * scale

    def rope(a, cosine, sine):
        x, y = jnp.split(a.astype(f32), 2, -1)
        turned = [x * cosine - y * sine, y * cosine + x * sine]
        return jnp.concatenate(turned, -1).astype(bf16)

    def adam(weights, gradient, first, second):
        g = gradient.astype(f32)
        first, second = 0.9 * first + 0.1 * g, 0.95 * second + 0.05 * g * g
        update = first / (jnp.sqrt(second) + 1e-8) + 0.1 * weights
        return weights - 1e-3 * update, first, second

    def gated(a, b):
        return jax.nn.silu(a) * b

    def entropy(given, at):
        rows = given.astype(f32)
        chosen = jnp.take_along_axis(rows, at[:, None], -1)[:, 0]
        return jnp.sum(jax.nn.logsumexp(rows, -1) - chosen)

    def entropy_gradient(given, at):
        rows = given.astype(f32)
        return (jax.nn.softmax(rows) - jax.nn.one_hot(at, rows.shape[-1])).astype(bf16)

    def dropout(a, key):
        kept = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, a.shape)
        return jnp.where(kept, a / 0.9, 0)

    return {
        "a + b, f32": (lambda a, b: a + b, wide, wide),
        "a + b, bf16": (lambda a, b: a + b, narrow, narrow),
        "f32 to bf16": (lambda a: a.astype(bf16), wide),
        "bf16 to f32": (lambda a: a.astype(f32), narrow),
        "exp, f32": (jnp.exp, wide),
        "exp, bf16": (jnp.exp, narrow),
        "tanh, f32": (jnp.tanh, wide),
        "rsqrt, f32": (jax.lax.rsqrt, wide),
        "a / b, f32": (lambda a, b: a / b, wide, wide),
        "erf, f32": (jax.lax.erf, wide),
        "sin, f32": (jnp.sin, wide),
        "GELU, bf16": (jax.nn.gelu, narrow),
        "SwiGLU, bf16": (gated, narrow, narrow),
        "its gradient": (
            lambda a, b, g: jax.vjp(gated, a, b)[1](g),
            narrow,
            narrow,
            narrow,
        ),
        "softmax, f32": (jax.nn.softmax, wide),
        "softmax, bf16": (jax.nn.softmax, narrow),
        "layer norm, f32": (layer_norm, wide),
        "layer norm, bf16": (lambda a: layer_norm(a.astype(f32)).astype(bf16), narrow),
        "RMS norm, bf16": (rms_norm, narrow, ((4096,), bf16)),
        "sum of rows, bf16": (lambda a: a.astype(f32).sum(-1), narrow),
        "sum of columns, f32": (lambda a: a.sum(0), wide),
        "sum of columns, bf16": (lambda a: a.astype(f32).sum(0), narrow),
        "largest of rows, bf16": (lambda a: a.max(-1), narrow),
        "Adam": (adam, wide, narrow, wide, wide),
        "RoPE, bf16": (rope, heads, angles, angles),
        "transpose, f32": (lambda a: a.T + 0, wide),
        "transpose, bf16": (lambda a: a.T + 0, narrow),
        "heads before sequence, bf16": (lambda a: a.transpose(0, 2, 1, 3) + 0, heads),
        "cross-entropy, bf16": (entropy, logits, words),
        "gradient of cross-entropy, bf16": (entropy_gradient, logits, words),
        "dropout, bf16": (dropout, narrow, ((2,), jnp.uint32)),
    }


SKIPPED = {"TPUv5e": ("cross-entropy, bf16", "gradient of cross-entropy, bf16", "dropout, bf16")}
"""libtpu 0.0.42 ends while it writes the instructions of the first of them for v5e."""


def judged(node: str) -> dict[str, dict[str, float]]:
    """Return cycles of each program: memory, instructions by libtpu and by hespas, and written."""
    with TemporaryDirectory() as directory:
        home = Path(directory)
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["TPU_SKIP_MDS_QUERY"] = os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
        os.environ["LIBTPU_INIT_ARGS"] = (
            f"--xla_jf_dump_to={home} --xla_jf_dump_llo_text=true "
            "--xla_jf_dump_llo_pass_label_regex=final "
            f"--xla_tpu_scoped_vmem_limit_kib={WINDOW_KIB}"
        )
        return dict(_judged(node, home))


def _judged(node: str, home: Path) -> Iterator[tuple[str, dict[str, float]]]:
    import jax  # noqa: PLC0415
    from jax.experimental import topologies  # noqa: PLC0415
    from jax.sharding import SingleDeviceSharding  # noqa: PLC0415

    topology = topologies.get_topology_desc(
        platform="tpu",
        topology_name=TOPOLOGIES[node],
        num_slices=1,
        chips_per_host_bounds=(1, 1, 1),
    )
    sharding = SingleDeviceSharding(topology.devices[0])
    for case, (function, *operands) in cases().items():
        if case in SKIPPED.get(node, ()):
            continue
        for old in home.rglob("*.txt*"):
            old.unlink()
        given = [jax.ShapeDtypeStruct(*each, sharding=sharding) for each in operands]
        compiled = jax.jit(function).trace(*given).lower(lowering_platforms=("tpu",)).compile()
        yield case, _compared(compiled.as_text() or "", node, home)


def _compared(text: str, node: str, home: Path) -> dict[str, float]:
    from hespas.frontend.load import load_source  # noqa: PLC0415
    from hespas.hardware.presets import load_device  # noqa: PLC0415
    from hespas.price.tpu import vector_cycles, vector_load  # noqa: PLC0415
    from hespas.program.types import size_bytes  # noqa: PLC0415
    from hespas.work.expand import Leaf, expand  # noqa: PLC0415

    device = load_device(node)
    core, clock_hz = device.tensor_core, device.clock_hz
    if core is None or clock_hz is None:
        raise SystemExit(f"{node} does not describe its units")
    program = load_source(text.encode(), name="case.hlo")
    costs = expand(program.main.body.operations, program.functions, custom_calls={})
    leaves = {cost.op.estimated_cycles: cost for cost in costs if isinstance(cost, Leaf)}
    total: dict[str, float] = dict.fromkeys(_FIGURES, 0.0)
    for line in text.splitlines():
        written = _WRITTEN.search(line)
        found = _instructions(home, written.group(1)) if written else None
        if written is None or found is None:
            continue
        leaf = leaves[int(written.group(2))]
        load = vector_load(leaf.op, leaf.work, core)
        windows = _WINDOWS.search(line)
        count = prod(map(int, re.findall(r"\d+", windows.group(1)))) if windows else 1
        values = (*leaf.op.operands, *leaf.op.results)
        moved = sum(size_bytes(value.type) for value in values)
        total["memory"] += moved / device.memory_bandwidth_bytes_per_s * clock_hz
        total["libtpu"] += found * count
        total["hespas"] += 0.0 if load is None else vector_cycles(load, core)
        total["written"] += int(written.group(2))
    return total


def _instructions(home: Path, kernel: str) -> int | None:
    """Return how many instructions libtpu wrote for a kernel."""
    name = f"*-{kernel}-*-final_hlo-static-per-bundle-utilization.txt"
    file = next((each for each in home.glob(name)), None)
    return None if file is None else sum(line[:1].isdigit() for line in _rows(file))


def _rows(file: Path) -> list[str]:
    return file.read_text().partition("== UTILIZATION:")[2].split("\n")


def table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the table as Markdown."""
    columns = [f"{node}: memory | instructions: libtpu / hespas | written" for node in found]
    lines = ["| thousand cycles | " + " | ".join(columns) + " |", "|---|" + "---|" * 3 * len(found)]
    names = dict.fromkeys(name for rows in found.values() for name in rows)
    for name in names:
        cells = [_cells(rows.get(name)) for rows in found.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for node, rows in found.items():
        ratios = [row["hespas"] / row["libtpu"] for row in rows.values()]
        slower = [row["written"] / row["memory"] for row in rows.values()]
        typical, longer = (f"{exp(mean(map(log, each))):.1f}" for each in (ratios, slower))
        said = (
            f"{node}: geometric means of {len(rows)}: hespas' instructions are {typical} of "
            f"libtpu's, and the cycles written {longer} times memory's."
        )
        lines += ["", said]
    return "\n".join(lines)


def _cells(row: dict[str, float] | None) -> str:
    if row is None:
        return "not given | |"
    memory, libtpu, hespas, written = (row[name] / 1e3 for name in _FIGURES)
    return f"{memory:.0f} | {libtpu:.0f} / {hespas:.0f} | {written:.0f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", choices=TOPOLOGIES)
    options = parser.parse_args()
    if options.node:
        print(json.dumps(judged(options.node)))
        return
    found: dict[str, Any] = {}
    for node in TOPOLOGIES:
        command = [sys.executable, __file__, "--node", node]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        found[node] = json.loads(done.stdout.splitlines()[-1])
    print(table(found))


if __name__ == "__main__":
    main()
