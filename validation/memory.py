"""What compiled programs need of memory, by hespas and by XLA's own memory analysis.

    python validation/memory.py            print the table
    python validation/memory.py --write    put it into docs/evidence/memory.md

Needs hespas[gpu]; the first run compiles for some minutes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hespas.base.home import cache_home
from hespas.compile.cache import CompiledCache
from hespas.compile.compiler import compile_program
from hespas.compile.job import Layout
from hespas.frontend.load import load_source
from hespas.memory.usage import memory_use
from hespas.sources.exported import partitioned
from hespas.sources.function import export_model
from hespas.xla.cpu import use_cpu

PAGE = Path("docs/evidence/memory.md")
BLOCK = Path("examples/attention_block.mlir")
_TABLE = re.compile(r"<!-- table -->\n.*?<!-- end -->", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model of the zoo with its options, or the example where that is empty, and a node."""

    title: str
    node: str
    devices: int = 4
    model: str = ""
    options: Mapping[str, str] = field(default_factory=dict[str, str])

    def source(self) -> bytes:
        """Return the program as it is compiled."""
        if not self.model:
            return BLOCK.read_bytes()
        return partitioned(export_model(self.model, self.options)).content


_AS_RECORDED = {"attention": "unfused", "state_dtype": "bf16"}
_LOOP = {"scan": "true", **_AS_RECORDED}
CASES = (
    Case(
        title="llama3-100m, FSDP over 4",
        node="A100_SXM_40GB",
        model="llama3-100m",
        options=_AS_RECORDED,
    ),
    Case(
        title="llama3-100m, FSDP over 4",
        node="H100_80GB",
        model="llama3-100m",
        options=_AS_RECORDED,
    ),
    Case(
        title="llama3-100m, layers in a loop (`--scan`)",
        node="H100_80GB",
        model="llama3-100m",
        options=_LOOP,
    ),
    Case(
        title="llama3-200m, FSDP over 4",
        node="H100_80GB",
        model="llama3-200m",
        options=_AS_RECORDED,
    ),
    Case(
        title="llama3-1b, layers in a loop (`--scan`)",
        node="H100_80GB",
        model="llama3-1b",
        options=_LOOP,
    ),
    Case(
        title="llama3-8b, FSDP over 8, four micro-batches",
        node="H100_80GB",
        devices=8,
        model="llama3-8b",
        options={"mesh": "fsdp=8", "batch": "4", "accumulation": "4", "remat": "full", **_LOOP},
    ),
    Case(
        title="llama3-70b, FSDP over 256, two micro-batches",
        node="H100_80GB",
        devices=256,
        model="llama3-70b",
        options={"mesh": "fsdp=256", "batch": "2", "accumulation": "2", "remat": "full", **_LOOP},
    ),
    Case(
        title="llama3-70b, data over 16, FSDP over 16, two micro-batches",
        node="H100_80GB",
        devices=256,
        model="llama3-70b",
        options={
            "mesh": "data=16,fsdp=16",
            "batch": "2",
            "accumulation": "2",
            "remat": "full",
            **_LOOP,
        },
    ),
    Case(title="ResNet-50 training, 4 x 256 images", node="H100_80GB", model="resnet50"),
    Case(
        title="ResNet-50 inference, 4 x 256 images",
        node="A100_SXM_40GB",
        model="resnet50-inference",
    ),
    Case(title=f"{BLOCK}", node="H100_80GB"),
)


def row(case: Case) -> str:
    """Return a row of the table."""
    made = compile_program(
        case.source(),
        name=case.title,
        target=case.node,
        layout=Layout(devices=case.devices, per_host=min(case.devices, 8)),
        cache=CompiledCache(directory=cache_home() / "compiled"),
    )
    ours = memory_use(load_source(made.hlo_proto, name=case.title))
    theirs_bytes = made.memory.total_bytes - made.memory.generated_code_bytes
    cells = (
        case.title,
        case.node,
        f"{ours.peak_bytes / 1e6:,.1f}",
        f"{theirs_bytes / 1e6:,.1f}",
        f"{100 * (ours.peak_bytes / theirs_bytes - 1):+.2f} %",
        f"{ours.gap_bytes / 1e6:,.1f}",
    )
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """Return all rows with their head."""
    head = "| program | compiled for | hespas, MB | XLA, MB | difference | gaps, MB |"
    return "\n".join([head, "|---|---|---|---|---|---|", *map(row, CASES)])


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE}")
    is_written = parser.parse_args().write
    use_cpu()
    made = table()
    print(made)
    if is_written:
        page = PAGE.read_text()
        PAGE.write_text(_TABLE.sub(lambda _: f"<!-- table -->\n{made}\n<!-- end -->", page))


if __name__ == "__main__":
    main()
