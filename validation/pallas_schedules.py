"""Kernels of Pallas: the time that hespas gives a step, against libtpu's own schedule of it.

    python validation/pallas_schedules.py                 print the tables
    python validation/pallas_schedules.py --write         put them into docs/evidence/tpus.md
    python validation/pallas_schedules.py --node TPUv6e   one part, as JSON

Each kernel is compiled for TPUs without having one. libtpu then writes the cycles that it expects
of the kernel (its static profile), and how many operations each instruction has room for, unit by
unit. No step of these kernels depends on a condition, of which libtpu could not know how often it
holds. Needs hespas[tpu].
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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PAGE = Path("docs/evidence/tpus.md")
TOPOLOGIES = {
    "TPUv5e": ("v5e:1x1", (1, 1, 1)),
    "TPUv5p": ("v5p:2x2x1", (2, 2, 1)),
    "TPUv6e": ("v6e:1x1", (1, 1, 1)),
    "TPUv7x": ("tpu7x:2x2x1", (2, 2, 1)),
}
"""libtpu's names of the smallest slices, and the chips of a host."""
COPY_ALONE = ("TPUv7x",)
"""Parts for which libtpu 0.0.42 fails while it writes any other kernel's schedule."""


def cases() -> dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]]:  # noqa: C901
    """Return what makes each kernel, with the shapes of its operands."""
    import jax  # noqa: PLC0415
    import jax.numpy as jnp  # noqa: PLC0415
    from jax.experimental import pallas as pl  # noqa: PLC0415

    bf16, f32 = jnp.bfloat16, jnp.float32

    def index(rank):
        return lambda step: (step, *(0,) * (rank - 1))

    def kernel(body, steps, inputs, outputs):
        """Each operand is cut into blocks along its first dimension, one for each step."""

        def specs(blocks):
            return [pl.BlockSpec(shape, index(len(shape))) for shape, _ in blocks]

        def arrays(blocks):
            return [
                jax.ShapeDtypeStruct((shape[0] * steps, *shape[1:]), kind) for shape, kind in blocks
            ]

        called = pl.pallas_call(
            body,
            grid=(steps,),
            in_specs=specs(inputs),
            out_specs=specs(outputs),
            out_shape=arrays(outputs),
        )
        return called, tuple(arrays(inputs))

    def dot(left, right, over):
        return jax.lax.dot_general(
            left, right, (((over[0],), (over[1],)), ((), ())), preferred_element_type=f32
        )

    def nothing():
        def body(x, out):
            out[...] = x[...]

        return kernel(body, 256, [((8, 128), f32)], [((8, 128), f32)])

    def gelu():
        def body(x, out):
            out[...] = jax.nn.gelu(x[...])

        return kernel(body, 64, [((256, 512), f32)], [((256, 512), f32)])

    def softmax():
        def body(x, out):
            rows = x[...].astype(f32)
            powers = jnp.exp(rows - rows.max(-1, keepdims=True))
            out[...] = (powers / powers.sum(-1, keepdims=True)).astype(bf16)

        return kernel(body, 64, [((128, 2048), bf16)], [((128, 2048), bf16)])

    def product(k):
        def body(x, y, out):
            out[...] = dot(x[...], y[0], (1, 0)).astype(bf16)

        return kernel(body, 16, [((512, k), bf16), ((1, k, 512), bf16)], [((512, 512), bf16)])

    def forward(block, size):
        def body(q, k, v, out):
            scores = dot(q[...], k[...], (1, 1))
            powers = jnp.exp(scores - scores.max(-1, keepdims=True))
            sums = powers.sum(-1, keepdims=True)
            out[...] = (dot(powers.astype(bf16), v[...], (1, 0)) / sums).astype(bf16)

        return kernel(body, 64, [((block, size), bf16)] * 3, [((block, size), bf16)])

    def backward(block, size):
        def body(q, k, v, dout, rows, dk, dv):  # noqa: PLR0917
            p = jnp.exp(dot(q[...], k[...], (1, 1)) - rows[...][:, :1])
            dv[...] = dot(p.astype(bf16), dout[...], (0, 0)).astype(bf16)
            ds = p * (dot(dout[...], v[...], (1, 1)) - rows[...][:, 1:2])
            dk[...] = dot(ds.astype(bf16), q[...], (0, 0)).astype(bf16)

        inputs = [((block, size), bf16)] * 4 + [((block, 128), f32)]
        return kernel(body, 64, inputs, [((block, size), bf16)] * 2)

    return {
        "copy of 8 x 128": nothing,
        "GELU of 256 x 512, f32": gelu,
        "softmax of 128 x 2048, bf16": softmax,
        "product 512 x 1024 x 512": partial(product, 1024),
        "product 512 x 2048 x 512": partial(product, 2048),
        "attention of 256 x 256, heads of 128": partial(forward, 256, 128),
        "attention of 512 x 512, heads of 128": partial(forward, 512, 128),
        "attention of 512 x 512, heads of 256": partial(forward, 512, 256),
        "its gradients for keys and values, heads of 128": partial(backward, 512, 128),
    }


def judged(node: str) -> dict[str, Any]:
    """Return cycles of a step by hespas and by libtpu."""
    with TemporaryDirectory() as directory:
        home = Path(directory)
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["TPU_SKIP_MDS_QUERY"] = os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
        os.environ["LIBTPU_INIT_ARGS"] = (
            f"--xla_jf_dump_to={home} --xla_jf_dump_llo_text=true "
            f"--xla_jf_dump_llo_pass_label_regex=final "
            f"--xla_jf_dump_static_llo_profile_to={home / 'profile'}"
        )
        return _judged(node, home)


def _judged(node: str, home: Path) -> dict[str, Any]:
    import jax  # noqa: PLC0415
    from jax.experimental import topologies  # noqa: PLC0415
    from jax.sharding import SingleDeviceSharding  # noqa: PLC0415

    name, host = TOPOLOGIES[node]
    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=name, num_slices=1, chips_per_host_bounds=host
    )
    sharding = SingleDeviceSharding(topology.devices[0])
    rows: dict[str, Any] = {}
    for case, make in list(cases().items())[: 1 if node in COPY_ALONE else None]:
        function, shapes = make()
        for old in home.rglob("*.txt*"):
            old.unlink()
        given = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in shapes]
        traced = jax.jit(function).trace(*given).lower(lowering_platforms=("tpu",))
        traced.compile()
        rows[case] = _ours(traced.as_text(), node) | {"libtpu": _expected(home)}
    return {"rows": rows}


def _ours(text: str, node: str) -> dict[str, float]:
    from hespas.frontend.load import load_source  # noqa: PLC0415
    from hespas.hardware.presets import load_device  # noqa: PLC0415
    from hespas.price.tpu import priced_kernel  # noqa: PLC0415
    from hespas.program.operations.traits import Category  # noqa: PLC0415
    from hespas.program.program import all_ops  # noqa: PLC0415
    from hespas.work.mosaic.kernel import kernel_load  # noqa: PLC0415

    device = load_device(node)
    program = load_source(text.encode(), name="kernel")
    (op,) = [op for op in all_ops(program) if op.traits.category is Category.CUSTOM_CALL]
    priced, steps = priced_kernel(op, device), kernel_load(op).steps
    if priced is None or device.clock_hz is None:
        raise SystemExit(f"{node} does not describe its units")
    cycles = device.clock_hz / steps
    return {
        "steps": steps,
        "peak": priced.at_peak.time_s * cycles,
        "scheduled": priced.scheduled.time_s * cycles,
    }


def _expected(home: Path) -> int:
    texts = [file.read_text() for file in (home / "profile").glob("tpu_custom_call*")]
    (cycles,) = [re.findall(r"estimated_cycles: (\d+)", text)[0] for text in texts]
    return int(cycles)


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", choices=TOPOLOGIES)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.node:
        print(json.dumps(judged(options.node)))
        return
    found: dict[str, Any] = {}
    for node in TOPOLOGIES:
        command = [sys.executable, __file__, "--node", node]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        found[node] = json.loads(done.stdout.splitlines()[-1])
    text = table(found)
    print(text)
    if options.write:
        page = PAGE.read_text()
        start, end = (
            page.index("<!-- pallas -->"),
            page.index("<!-- end -->", page.index("<!-- pallas")),
        )
        PAGE.write_text(f"{page[:start]}<!-- pallas -->\n{text}\n{page[end:]}")


def table(found: dict[str, Any]) -> str:
    """Return the table as Markdown."""
    lines = ["| cycles of a step, hespas/libtpu | " + " | ".join(found) + " |"]
    lines.append("|---|" + "---|" * len(found))
    for case in next(iter(found.values()))["rows"]:
        cells = [_cell(each["rows"].get(case)) for each in found.values()]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: dict[str, float] | None) -> str:
    if row is None:
        return "not given"
    expected, scheduled = row["libtpu"] / row["steps"], row["scheduled"]
    error = scheduled / expected - 1
    return f"{scheduled:.0f}/{expected:.0f} ({error:+.0%})"


if __name__ == "__main__":
    main()
