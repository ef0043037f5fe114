"""Compile a training step of one model of each kind for two and four H100, and compare.

    python validation/model_compiled.py [KIND ...]

Memory is compared with XLA's buffer assignment, bytes of collectives along each axis of the mesh
with closed forms. Models have few layers and eight experts, all else as published; layers are
computed again, in 16 bits, attention unfused. Needs hespas[gpu]; some minutes for each kind.
The table in docs/evidence/models.md is written between its marks where all kinds are compiled.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

from hespas.base.home import cache_home
from hespas.compile.cache import CompiledCache
from hespas.compile.compiler import compile_program
from hespas.compile.job import Layout
from hespas.frontend.load import load_source
from hespas.memory.usage import memory_use
from hespas.models.architecture import LayerKind, Routing
from hespas.models.catalogue import model_named
from hespas.models.language import LanguageModel
from hespas.models.model import MeshAxes, parse_mesh
from hespas.models.weights import is_product, layer_weights, part_of
from hespas.program.attrs import CollectiveAttrs
from hespas.program.groups import device_groups
from hespas.program.program import Program, is_communication_op, nested_ops
from hespas.program.types import size_bytes
from hespas.sources.exported import partitioned
from hespas.sources.function import export_model

PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "models.md"
FEW = {"experts": "8", "chosen": "2"}
KINDS: Mapping[str, tuple[str, dict[str, str]]] = {
    "state spaces": ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"layers": "7", **FEW}),
    "gated delta rule": ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"layers": "4", **FEW}),
    "latent attention": ("deepseek-ai/DeepSeek-V2-Lite", {"layers": "3", **FEW}),
    "windows and sinks": ("openai/gpt-oss-20b", {"layers": "2", **FEW}),
}
MESHES = ("fsdp=2", "fsdp=2,expert=2", "fsdp=2,tp=2")
OPTIONS = {"remat": "full", "sequence": "2048", "attention": "unfused"}
SMALLEST_BYTES = 1e6
"""Collectives of fewer bytes, of losses, norms and routers, are left out."""
HEAD = (
    "| kind | mesh | memory, XLA | hespas | along | collective | bytes | closed form | difference |"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Elements of a device: layers' products, experts among them, the head, the embedding, rows."""

    layers: float
    experts: float
    head: float
    embedding: float
    rows: int
    routed_rows: int
    sums: int
    latents: int
    routed: int


def sizes_of(model: LanguageModel) -> Sizes:
    """Return the sizes of what a device has, but for the division by ``fsdp``."""
    axes = {name: tuple(axis for axis in own if axis != "fsdp") for name, own in model.axes.items()}
    layers, experts = 0.0, 0.0
    for kind, count in Counter(model.kinds).items():
        sizes = {**model.sizes, **model.sizes_of(kind)}
        for name, shape in layer_weights(model, kind).items():
            if len(shape) < 2 or not is_product(name):
                continue
            parts = prod(model.mesh.size(*axes.get(dimension, ())) for dimension in shape)
            own = count * prod(sizes[dimension] for dimension in shape) / parts
            layers += own
            experts += own if part_of(name) == "experts" else 0
    sizes, routing, latent = model.sizes_of_layers, model.routing, model.latent
    table = sizes.embedding * sizes.vocabulary / model.mesh.size("tp")
    rows = model.batch * model.sequence
    return Sizes(
        layers=layers,
        experts=experts,
        head=table,
        embedding=table,
        rows=rows * sizes.embedding,
        routed_rows=0 if routing is None else rows * routing.chosen * sizes.embedding,
        sums=sum(map(partial(_sums, routing), model.kinds)),
        latents=0 if latent is None else rows * model.layers * (latent.kv_rank + latent.rope_size),
        routed=sum(kind.is_routed for kind in model.kinds),
    )


def _sums(routing: Routing | None, kind: LayerKind) -> int:
    """Return how often rows are summed over ``tp`` in a layer.

    They are forward and backward, and again where more of the layer comes of the sum: behind a
    mixer, and of experts, whose sum the router weighs. A gate of shared experts keeps their sum
    apart from that of the others, forward and again, and backward three gradients of rows.
    """
    is_gated = kind.is_routed and routing is not None and routing.style.shared_gate
    has_mixer = kind.mixer != "none"
    again = (has_mixer and kind.feeds_forward) + (kind.feeds_forward and kind.is_routed)
    return 2 * (has_mixer + kind.feeds_forward) + again + 5 * is_gated


def closed_forms(model: LanguageModel) -> dict[tuple[str, str], float]:
    """Return the bytes that a device gives to collectives, by axis and kind; all are of 16 bits.

    Layers' weights are gathered forward and where they are computed again, the head once. Gradients
    are scattered once. Forward, again and backward, experts exchange rows twice.
    """
    own, size = sizes_of(model), model.mesh.size
    forms = {
        ("fsdp", "all_gather"): (2 * own.layers + own.head) / size("fsdp"),
        ("fsdp", "reduce_scatter"): own.layers + own.head,
    }
    if size("expert") > 1:
        forms["expert", "all_to_all"] = 6 * own.routed * own.routed_rows
        shared = own.layers - own.experts + own.head + own.embedding
        forms["expert", "all_reduce"] = shared / size("fsdp")
    if size("tp") > 1:
        # Looked-up tokens, gradients of logits, and those of latent vectors that heads share.
        forms["tp", "all_reduce"] = (own.sums + 2) * own.rows + own.latents
        forms["fsdp", "all_gather"] += own.embedding / size("fsdp")
    return {key: 2 * elements for key, elements in forms.items()}


def moved(program: Program, mesh: MeshAxes) -> Counter[tuple[str, str]]:
    """Return the bytes that a device gives to collectives of a program, by axis and kind."""
    counted: Counter[tuple[str, str]] = Counter()
    for op in nested_ops(program.main.body):
        size = sum(size_bytes(value.type) for value in op.operands)
        if is_communication_op(op) and isinstance(op.attrs, CollectiveAttrs):
            counted[axes_of(op.attrs, mesh), op.kind] += size if size >= SMALLEST_BYTES else 0
    return counted


def axes_of(attrs: CollectiveAttrs, mesh: MeshAxes) -> str:
    """Return the axes along which a collective's devices differ."""
    devices = mesh.device_count
    group = device_groups(attrs.groups, attrs.mode, replicas=1, partitions=devices)[0]
    named: list[str] = []
    stride = mesh.device_count
    for axis, size in mesh.axes:
        stride //= size
        if len({device // stride % size for device in group}) > 1:
            named.append(axis)
    return "+".join(named)


def lines_of(kind: str) -> Iterator[str]:
    """Compile the steps of a kind, and yield their lines of the table."""
    name, own = KINDS[kind]
    for mesh in map(parse_mesh, MESHES):
        options = {"mesh": str(mesh), **OPTIONS, **own}
        model: LanguageModel = model_named(name).with_options(options)
        made = compile_program(
            partitioned(export_model(name, options)).content,
            name=kind,
            target="H100_80GB",
            layout=Layout(devices=mesh.device_count, per_host=mesh.device_count),
            cache=CompiledCache(directory=cache_home() / "compiled"),
        )
        program = load_source(made.hlo_proto, name=kind)
        theirs = made.memory.total_bytes - made.memory.generated_code_bytes
        difference = memory_use(program).peak_bytes / theirs - 1
        begin = f"| {kind} | `{mesh}` | {theirs / 1e9:.2f} GB | {100 * difference:+.2f} % "
        counted = moved(program, mesh)
        for (axis, collective), needed in closed_forms(model).items():
            bytes_given = counted[axis, collective]
            yield (
                f"{begin}| {axis} | {collective} | {bytes_given / 1e6:,.1f} MB | "
                f"{needed / 1e6:,.1f} MB | {100 * (bytes_given / needed - 1):+.1f} % |"
            )
            begin = "| | | | "


def main(kinds: list[str]) -> None:
    """Print the table, and write it into the page where all kinds are compiled."""
    lines: list[str] = []
    for kind in kinds or KINDS:
        for line in lines_of(kind):
            lines.append(line)
            print(line, flush=True)
    if not kinds:
        marked = re.compile(r"(<!-- compiled: begin -->\n).*?(<!-- compiled: end -->)", re.DOTALL)
        rule = f"|{'---|' * (HEAD.count('|') - 1)}"
        table = "\n".join(["", HEAD, rule, *lines, "", ""])
        text = marked.sub(lambda match: match[1] + table + match[2], PAGE.read_text())
        PAGE.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
